#include "models/chat_template.h"

#include <algorithm>

namespace minfer {
namespace {

char unescaped(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    default:
      return letter;
  }
}

// Reads the string that starts at source[at] (its quote) and moves `at` behind it.
std::string read_string(std::string_view source, size_t& at) {
  const char quote = source[at++];
  std::string text;
  for (; at < source.size() && source[at] != quote; ++at) {
    const bool escape = source[at] == '\\' && at + 1 < source.size();
    if (escape) ++at;
    text += escape ? unescaped(source[at]) : source[at];
  }
  at = std::min(at + 1, source.size());
  return text;
}

}  // namespace

std::vector<TemplateLiteral> template_literals(std::string_view source) {
  std::vector<TemplateLiteral> literals;
  size_t at = 0;
  while (at < source.size()) {
    const size_t tag = std::min(
        {source.find("{{", at), source.find("{%", at), source.find("{#", at), source.size()});
    if (tag > at) literals.push_back({std::string(source.substr(at, tag - at)), ""});
    if (tag == source.size()) break;
    const bool comment = source[tag + 1] == '#';
    const std::string_view closing = comment ? "#}" : source[tag + 1] == '%' ? "%}" : "}}";
    std::string before;
    at = tag + 2;
    while (at < source.size() && !source.substr(at).starts_with(closing)) {
      if (!comment && (source[at] == '\'' || source[at] == '"')) {
        literals.push_back({read_string(source, at), before});
        before.clear();
      } else {
        if (source[at] > ' ') before += source[at];
        ++at;
      }
    }
    at = std::min(at + closing.size(), source.size());
  }
  return literals;
}

std::string default_system_message(std::string_view source) {
  constexpr std::string_view kOpen = "<|im_start|>system\n", kClose = "<|im_end|>";
  if (source.find("<|im_start|>") == source.npos) return "";
  std::string assigned;
  for (const TemplateLiteral& literal : template_literals(source)) {
    if (const size_t open = literal.text.find(kOpen); open != std::string::npos) {
      const size_t begin = open + kOpen.size(), end = literal.text.find(kClose, begin);
      if (end != std::string::npos && end > begin) return literal.text.substr(begin, end - begin);
    }
    const std::string_view before = literal.before;
    const size_t set = before.find("set");  // behind the tag's "-", if it has one
    if (assigned.empty() && set <= 1 && before.ends_with("system_message="))
      assigned = literal.text;
  }
  return assigned;
}

}  // namespace minfer
