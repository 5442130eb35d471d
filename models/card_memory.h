#pragma once

#include <cstdint>
#include <string>

namespace minfer {

// The memory that a session allocates besides the weights, all of it before the first token.
struct SessionMemory {
  int64_t n_positions = 0;  // of the KV cache
  int64_t kv_bytes = 0;
  int64_t kv_bytes_as_int8 = 0;     // equal to kv_bytes if the cache is int8 already
  int64_t activation_bytes = 0;     // of one pass, with logits, RoPE tables and workspaces
  std::string context_option = {};  // the option that sets n_positions: "--ctx-size"; empty: none
  int64_t n_rows = 1, n_logit_rows = 1;  // of a pass, and those whose logits are made at once
};

// Bytes of the weights as they are, and after `minfer quantize` with its defaults.
struct WeightMemory {
  int64_t bytes = 0, bytes_as_int4 = 0;
};

// Throws Memory if the card has fewer bytes free than needed. The message is one line: the bytes
// needed, part by part, and at most two options that make it fit, those that cost least.
void require_card_memory(int64_t free_bytes, const WeightMemory& weights,
                         const SessionMemory& session);
// Does the same for the host's memory and a model that runs there.
void require_memory_of_model(int64_t free_bytes, const WeightMemory& weights,
                             const SessionMemory& session);

}  // namespace minfer
