#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/conversation.h"

namespace minfer {

// One answer, and the seed of its draws, if there were any.
struct ChatTurn {
  GenerateResult result;
  std::optional<uint64_t> seed;
};

// What /stats prints: tokens of the last turn that were evaluated, and that the cache held already.
std::string stats_text(const Conversation& conversation, const std::vector<ChatTurn>& turns);

// The last line of an answer in `chat --jsonl`.
std::string turn_json_line(const ChatTurn& turn);
// The object of `chat --json`.
std::string chat_json(const Conversation& conversation, const std::vector<ChatTurn>& turns,
                      const Model& model, const std::string& activations);

}  // namespace minfer
