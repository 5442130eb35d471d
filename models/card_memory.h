#pragma once

#include <cstdint>
#include <string>

namespace minfer {

// What a session takes beside the weights, all of it before the first token.
struct SessionMemory {
  int64_t n_positions = 0;  // of the KV cache
  int64_t kv_bytes = 0;
  int64_t kv_bytes_as_int8 = 0;     // kv_bytes where it is int8 already
  int64_t activation_bytes = 0;     // of one pass, and what attention needs besides
  std::string context_option = {};  // "--ctx-size", which says n_positions; empty: nothing does
  int64_t n_rows = 1, n_logit_rows = 1;  // of a pass, and those whose logits are made at once
};

// Bytes of weights as they are, and as `minfer quantize` leaves them by default.
struct WeightMemory {
  int64_t bytes = 0, bytes_as_int4 = 0;
};

// Throws Memory where a card has fewer bytes free: one line with what is needed, part by part, and
// of what makes it fit the two ways that cost least.
void require_card_memory(int64_t free_bytes, const WeightMemory& weights,
                         const SessionMemory& session);
// The same of the host's memory, for a model that runs there.
void require_memory_of_model(int64_t free_bytes, const WeightMemory& weights,
                             const SessionMemory& session);

}  // namespace minfer
