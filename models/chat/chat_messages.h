#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat/chat_template.h"

namespace minfer {

// One message of a conversation, with the JSON object {"role", "content", ...} that a chat template
// gets.
struct ChatMessage {
  std::string role;
  std::string json;
};

// Makes a message from a text. Throws Usage if the text is not UTF-8, which JSON cannot hold.
ChatMessage chat_message(const std::string& role, std::string_view content);

// The content of a message; nothing if it is not a text.
std::optional<std::string> text_of(const ChatMessage& message);

// Reads the JSON text of a list of messages; their fields are kept as they are, in their order.
// Throws Input for anything else.
std::vector<ChatMessage> parse_chat_messages(std::string_view json);

// The reverse, with one message per line.
std::string chat_messages_json(std::span<const ChatMessage> messages);

// The tokens of a conversation. An empty system message at its beginning means that there is to be
// none, not even the template's own. A template leaves its own out either if there is no system
// message or if there is an empty one, so both are rendered and the shorter prompt is taken.
ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            std::span<const ChatMessage> messages, const ChatOptions& options);

}  // namespace minfer
