#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat/chat_template.h"

namespace minfer {

// One message of a conversation: its JSON object {"role", "content", ...}, as a chat template is
// given it.
struct ChatMessage {
  std::string role;
  std::string json;
};

// A message that is a text. Throws Usage where it is not UTF-8, which JSON cannot hold.
ChatMessage chat_message(const std::string& role, std::string_view content);

// The content of a message; none where it is not a text.
std::optional<std::string> text_of(const ChatMessage& message);

// From the JSON text of a list of messages; fields other than `role` are kept as they are, in their
// order. Throws Input for anything else.
std::vector<ChatMessage> parse_chat_messages(std::string_view json);

// The reverse, a message a line.
std::string chat_messages_json(std::span<const ChatMessage> messages);

// Tokens of a conversation. A system message at its beginning whose text is empty means none, not
// even the template's own. A template leaves its own out either where there is no system message or
// where there is an empty one; the shorter prompt of the two is the one without.
ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            std::span<const ChatMessage> messages, const ChatOptions& options);

}  // namespace minfer
