#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/tokenizer.h"

namespace minfer {

enum class ChatFamily { ChatMl, Llama2, Llama3, Zephyr, Mistral };

// "chatml" and so on; throws Usage for another name, with the list.
ChatFamily chat_family_by_name(const std::string& name);

// The family that a Jinja template belongs to, by the markers it writes. Throws Input for an empty
// or unknown template, with the list of families and the option that chooses one.
ChatFamily recognize_chat_family(const std::string& chat_template);

struct ChatPrompt {
  std::vector<TokenId> tokens;  // ready for the model, BOS where the template or tokenizer puts one
  std::vector<TokenId> end_ids;  // tokens that end the answer
};

// One user turn in the model's own form, with the generation prompt behind it.
//   system  none: the template's own default message where it has one; "": no system message
// Strings of control tokens in `user` and `system` stay ordinary text unless `parse_special`.
ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, ChatFamily family, const std::string& user,
                            const std::optional<std::string>& system, bool parse_special = false);

}  // namespace minfer
