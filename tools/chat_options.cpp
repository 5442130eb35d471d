#include "tools/chat_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tools/text_input.h"

namespace minfer {
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
    MINFER_REQUIRE(Usage, nlohmann::json::accept(json), "--template-var: ", shortened(json),
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

}  // namespace minfer
