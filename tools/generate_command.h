#pragma once

#include <optional>
#include <string>

#include "tools/chat_options.h"
#include "tools/command_line.h"
#include "tools/commands.h"
#include "tools/generation_options.h"
#include "tools/text_input.h"

// What `generate` of one prompt and of a file of prompts have in common.
namespace minfer {

struct GenerateCommandOptions : GenerationOptions {
  TextOptions prompt;
  std::optional<std::string> prompt_ids;  // in place of a text
  bool chat = false, no_chat = false;
  std::optional<std::string> system;
  ChatCommandOptions conversation;
  bool special = false, no_bos = false, echo = false;
  std::optional<std::string> prompts;  // a file of JSON lines, "-" for stdin, in place of all those
  std::optional<int64_t> n_parallel;   // with it alone

  // Whether the prompt goes through a chat template.
  bool is_chat() const { return chat || conversation.messages; }
  // Whether something is said that only a chat template takes.
  bool has_chat_options() const {
    return system || !conversation.chat_template.empty() || !conversation.variables.empty();
  }
};

// The tokens of a text: as it is, or, with --chat, as a user's turn behind --system. Throws Usage
// where there are none.
ChatPrompt prompt_of_text(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                          const std::string& text);
// Of a conversation, a JSON list of messages; --system takes the place of their system message.
ChatPrompt prompt_of_messages(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                              const std::string& messages);

// Says that there is a chat template where a text does not go through it.
void tell_of_chat_template(const GenerateCommandOptions& options, const Tokenizer& tokenizer);

// Positions that a prompt and its text need, within --ctx-size and what the model was trained for:
// of an answer that ends where the model ends it, kMaxAnswerTokens. Throws Usage where the prompt
// alone does not fit.
int64_t needed_positions(const GenerateCommandOptions& options, const ModelSpec& spec,
                         int64_t n_prompt, int64_t n_predict);

// generate --prompts FILE.
void run_generate_prompts(const GenerateCommandOptions& options, Context& context);

}  // namespace minfer
