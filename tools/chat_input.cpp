#include "tools/chat_input.h"

#include <string_view>
#include <utility>

namespace minfer {
namespace {

using Got = LineReader::Got;

constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = ". ";
constexpr std::string_view kQuotes = "\"\"\"";
constexpr const char* kBlanks = " \t";

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Where a block of quotes begins: the first text of a message, or of a command's argument.
size_t block_begin(const std::string& line) {
  size_t begin = line.find_first_not_of(kBlanks);
  if (begin == 0 && line[0] == '/') begin = line.find_first_not_of(kBlanks, line.find(' '));
  const bool is_block =
      begin != std::string::npos && std::string_view(line).substr(begin).starts_with(kQuotes);
  return is_block ? begin : std::string::npos;
}

// The text of a block, of which `text` is the first line without its quotes: up to a line that ends
// with the closing ones. Line ends beside the quotes are not the text's.
Got read_block(LineReader& reader, std::string& text) {
  std::string line = std::exchange(text, "");
  while (true) {
    const size_t end = line.find_last_not_of(kBlanks) + 1;  // 0: an empty line
    if (std::string_view(line).substr(0, end).ends_with(kQuotes)) {
      text += line.substr(0, end - kQuotes.size());
      if (text.ends_with('\n')) text.pop_back();
      return Got::Line;
    }
    if (!text.empty() || end > 0) text += line + '\n';
    const Got got = reader.read(kMorePrompt, line);
    if (got != Got::Line) return got;
  }
}

// The lines that backslashes join to `text`.
Got read_continued(LineReader& reader, std::string& text) {
  while (text.ends_with('\\')) {
    text.pop_back();
    std::string line;
    const Got got = reader.read(kMorePrompt, line);
    if (got != Got::Line) return got;
    text += '\n' + line;
  }
  return Got::Line;
}

ChatInput command_of(const std::string& line, const std::string& block) {
  const size_t blank = line.find_first_of(" \t\n");
  ChatInput input{ChatInput::Kind::Command, line.substr(1, blank - 1), ""};
  if (blank != std::string::npos) input.argument = trimmed(line.substr(blank)) + block;
  return input;
}

}  // namespace

ChatInput read_chat_input(LineReader& reader) {
  while (true) {
    std::string line, block;
    Got got = reader.read(kPrompt, line);
    if (got == Got::EndOfInput) return {ChatInput::Kind::EndOfInput, "", ""};
    const size_t begin = got == Got::Line ? block_begin(line) : std::string::npos;
    const bool has_block = begin != std::string::npos;
    if (has_block) {
      block = line.substr(begin + kQuotes.size());
      line.resize(begin);
      got = read_block(reader, block);
    } else if (got == Got::Line) {
      got = read_continued(reader, line);
    }
    if (got == Got::Interrupt) return {ChatInput::Kind::Interrupt, "", ""};
    if (line.starts_with('/')) return command_of(line, block);
    if (has_block) line = block;
    const bool is_empty = line.find_first_not_of(" \t\n") == std::string::npos;
    if (!is_empty) return {ChatInput::Kind::Message, line, ""};
  }
}

}  // namespace minfer
