#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "models/model.h"
#include "tools/inspection_tokenizer.h"

namespace minfer {

// What `minfer inspect` says about a checkpoint, from its headers alone.
struct Inspection {
  std::string path, format, architecture;
  std::optional<ModelSpec> spec;  // where the model is supported
  std::string refusal;            // why it is not
  std::vector<std::string> warnings;
  TokenizerInspection tokenizer;
  std::string input_activations;  // as TensorSource has it

  struct TypeCount {
    int64_t n_tensors = 0, n_params = 0;
    uint64_t file_bytes = 0;
    std::string kept;  // how the CPU keeps it: "4-bit codes, groups of 32, f16 scales"; of groups
    std::string card_kept;  // how a card does; of floats too: "f16"
    int64_t card_bytes = 0;
  };
  std::map<std::string, TypeCount> types;
  int64_t n_tensors = 0, n_params = 0;
  uint64_t file_bytes = 0;

  // Memory of a run on the CPU, and on a card.
  int64_t ctx = 0;
  int64_t weight_memory_bytes = 0, card_weight_bytes = 0;
  // The KV cache in f16 of one sequence of ctx tokens. A card evaluates a prompt in larger chunks,
  // so that it needs a larger cache if the model has a sliding window.
  int64_t kv_bytes = 0, card_kv_bytes = 0;
  // The same of each of several cards that share the model.
  struct Rank {
    int64_t weight_bytes = 0, kv_bytes = 0;
  };
  std::vector<Rank> ranks;  // empty: one card
};

//   ctx      tokens of context; 0: the trained context
//   n_ranks  cards that share the model. Throws Usage if it cannot be cut for so many
Inspection inspect(const TensorSource& source, int64_t ctx, int n_ranks);

std::string to_text(const Inspection& inspection, const TensorSource& source, bool list_tensors);

// What has been held against checksums, and found equal.
struct Checked {
  std::optional<int64_t> n_files;  // of SHA256SUMS, where there is one
  int64_t n_tensors = 0;           // that have an XXH3
};
std::string to_text(const Checked& checked);
//   checked  where check_values has passed too
std::string to_json(const Inspection& inspection, const TensorSource& source,
                    const std::optional<Checked>& checked);

// Reads every tensor and refuses the first value that is not finite (Input).
//   progress  called with tensors done and in all
void check_values(const TensorSource& source,
                  const std::function<void(int64_t, int64_t)>& progress);

}  // namespace minfer
