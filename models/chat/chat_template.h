#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer.h"

namespace minfer {

struct ChatOptions {
  std::vector<std::pair<std::string, std::string>> variables;  // name and JSON text of its value
  bool add_generation_prompt = true;
  bool parse_special = false;
};

class ChatTemplate {
 public:
  explicit ChatTemplate(const std::string& source);
  static ChatTemplate built_in(const std::string& name);
  // messages: the JSON text of a list of {"role", "content", ...}.
  std::vector<TextPart> render(const Tokenizer& tokenizer, const std::string& messages,
                               const ChatOptions& options) const;

 private:
  std::string source_;
};

struct ChatPrompt {
  std::vector<TokenId> tokens;
  std::vector<TokenId> end_ids;
};

ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            const std::string& messages, const ChatOptions& options);

}  // namespace minfer
