#pragma once

#include <string>
#include <vector>

#include "models/chat/chat_messages.h"

namespace minfer {

// The messages of a conversation in a file, as `generate --messages` takes it. "~/" is the home
// directory.
//
// Throws Usage without a path, Input where there is no such file or it holds something else.
std::vector<ChatMessage> read_conversation(const std::string& path);
// Whole or not at all. Throws System where the file exists and holds no conversation, which is not
// replaced, or cannot be written.
void write_conversation(const std::string& path, const std::vector<ChatMessage>& messages);

}  // namespace minfer
