#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/chat/chat_template.h"
#include "tools/command_line.h"

namespace minfer {

// The options of a conversation, for every command that has one.
struct ChatCommandOptions {
  std::optional<std::string> messages;  // a JSON file, "-" for stdin
  std::string chat_template;            // a file or a built-in name; empty: the model's own
  std::vector<std::string> variables;   // "NAME=JSON"

  void add_to(CommandNode& command);
  // What the options say that cannot be, before a model is read.
  void check() const;
  ChatOptions chat_options(bool parse_special) const;
};

// The template that --chat-template names, or the model's own. Throws Input where it has none.
ChatTemplate choose_chat_template(const std::string& option, const Tokenizer& tokenizer);

}  // namespace minfer
