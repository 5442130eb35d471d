#include "tools/chat_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

size_t length_of(const std::vector<TextPart>& parts) {
  size_t n = 0;
  for (const TextPart& part : parts) n += part.text.size();
  return n;
}

}  // namespace

void ChatCommandOptions::add_to(CommandNode& command) {
  command.add_text("--messages", messages, "FILE",
                   "A JSON list of {\"role\", \"content\"}: the conversation so far, - for stdin");
  command.add_text("--chat-template", chat_template, "FILE|NAME",
                   "A Jinja file, or chatml, llama2, llama3, zephyr or mistral, instead of the "
                   "model's own template",
                   Show::More);
  command.add_repeatable("--template-var", variables, "NAME=JSON",
                         "A variable of the chat template, as in enable_thinking=false; repeatable",
                         Show::More);
}

void ChatCommandOptions::check() const { chat_options(false); }

ChatOptions ChatCommandOptions::chat_options(bool parse_special) const {
  ChatOptions options{.variables = {}, .parse_special = parse_special};
  for (const std::string& text : variables) {
    const size_t equals = text.find('=');
    MINFER_REQUIRE(Usage, equals != std::string::npos && equals > 0, "--template-var: \"",
                   shortened(text), "\" is not NAME=JSON");
    std::string json = text.substr(equals + 1);
    MINFER_REQUIRE(Usage, Json::accept(json), "--template-var: ", shortened(json),
                   " is not JSON; a text needs quotes: ", shortened(text.substr(0, equals)),
                   "='\"text\"'");
    options.variables.emplace_back(text.substr(0, equals), std::move(json));
  }
  return options;
}

ChatTemplate choose_chat_template(const std::string& option, const Tokenizer& tokenizer) {
  if (option.empty()) {
    MINFER_REQUIRE(Input, !tokenizer.chat_template().empty(),
                   "the model has no chat template; choose chatml, llama2, llama3, zephyr, mistral "
                   "or a file by --chat-template");
    return ChatTemplate(tokenizer.chat_template());
  }
  try {
    return ChatTemplate::built_in(option);
  } catch (const Error&) {
    std::error_code fault;
    if (!std::filesystem::exists(option, fault)) throw;
  }
  return ChatTemplate(read_text(option));
}

std::string with_turn(const std::string& messages, const std::string& role,
                      const std::string& content) {
  std::string turn = Json{{"role", role}, {"content", content}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
  if (messages.empty()) return "[" + turn + "]";
  const size_t end = messages.find_last_not_of(" \t\r\n");
  MINFER_REQUIRE(Input, end != std::string::npos && messages[end] == ']' && Json::accept(messages),
                 "the messages are not a JSON list");
  const size_t last = messages.find_last_not_of(" \t\r\n", end - 1);
  const bool first = messages[last] == '[';
  return messages.substr(0, last + 1) + (first ? "" : ",") + turn + "]";
}

ChatPrompt make_turn_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            const std::string& user, const std::optional<std::string>& system,
                            const ChatOptions& options) {
  const std::string without = with_turn("", "user", user);
  if (!system) return make_chat_prompt(tokenizer, chat_template, without, options);
  const std::string with = with_turn(with_turn("", "system", *system), "user", user);
  if (!system->empty()) return make_chat_prompt(tokenizer, chat_template, with, options);
  const std::vector<TextPart> plain = chat_template.render(tokenizer, without, options);
  try {
    const std::vector<TextPart> emptied = chat_template.render(tokenizer, with, options);
    if (length_of(emptied) < length_of(plain))
      return make_chat_prompt(tokenizer, chat_template, with, options);
  } catch (const Error&) {
    // The template takes no system message, so it has none of its own.
  }
  return make_chat_prompt(tokenizer, chat_template, without, options);
}

}  // namespace minfer
