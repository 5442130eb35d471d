#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace minfer {

struct ChatOptions {
  std::vector<std::pair<std::string, std::string>> variables;  // name and JSON text of its value
  bool add_generation_prompt = true;
  bool parse_special = false;  // strings of special tokens in messages become those tokens
};

// A chat template in Jinja, run as Hugging Face transformers runs it (docs/chat_templates.md).
// Parsed once and cheap to copy; thread-safe.
class ChatTemplate {
 public:
  // Throws Input, with the line, for a syntax error or (by name) an unsupported construct.
  explicit ChatTemplate(const std::string& source);
  // chatml, llama2, llama3, zephyr, mistral. Throws Usage, with the list, for any other name.
  static ChatTemplate built_in(const std::string& name);

  // messages: the JSON text of a list of {"role", "content", ...}. Joined, the parts are the text
  // of the prompt. Text from messages, tools and template variables is in parts of its own, unless
  // parse_special is set. Throws Usage, with the template's message, if the template calls
  // raise_exception, and Input for every other fault.
  std::vector<TextPart> render(const Tokenizer& tokenizer, const std::string& messages,
                               const ChatOptions& options) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

struct ChatPrompt {
  std::vector<TokenId> tokens;   // ready for the model
  std::vector<TokenId> end_ids;  // tokens that end the answer
};

// The tokens of a rendered conversation. No BOS is added, since the template writes its own.
ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            const std::string& messages, const ChatOptions& options);

}  // namespace minfer
