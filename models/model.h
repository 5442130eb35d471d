#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/card_memory.h"
#include "models/spec.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weights.h"

namespace minfer {

class Shards;  // models/shards.h

// A loaded model: read-only, shared by any number of sessions. The backend outlives it.
struct Model {
  std::string name;          // for people: the path's last part, or the synthetic name
  std::string description;   // "llama 135M Q4_1": for people and bench rows
  std::string weight_types;  // the most common storage type in the file, "Q4_1"
  ModelSpec spec;
  Weights weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the model has none: llama2.c, synthetic
  int64_t n_params = 0;
  int64_t file_bytes = 0;       // of the tensors as stored
  int64_t bytes_per_token = 0;  // weights that one decode step reads on the ranks of this process
  double load_seconds = 0;
  std::vector<std::string> warnings;  // of the load, one line each
  // With several ranks in this process, what the others have; spec and weights are the first one's.
  std::vector<Model> other_ranks;

  // Ids below this are tokens of the tokenizer that have a row of the embedding: what can be
  // produced. Rows past the tokenizer's vocabulary are padding, tokens past the rows have no
  // logits.
  int64_t n_usable_tokens() const {
    return tokenizer == nullptr ? spec.vocab_size
                                : std::min(tokenizer->n_tokens(), spec.vocab_size);
  }
};

// A model whose files are open and understood, and of which no weight has been read. Everything the
// architecture needs is there with the expected shape.
struct OpenedModel {
  std::unique_ptr<TensorSource> owned_source;
  const TensorSource* source = nullptr;
  Model model;                           // without weights
  std::shared_ptr<const Shards> shards;  // null: one rank
  double seconds = 0;
};

// Plans how the model is cut for ranks. Throws Usage if that cannot be.
void cut_for_ranks(OpenedModel& opened, int n_ranks);

// The first half of a load: from here on prompts become tokens and sessions are planned.
//   tokenizer_path  empty: the model's own
// Throws Input, System, Memory.
OpenedModel open_model(const std::string& path, const std::string& tokenizer_path = "");
// The same from a source that is open already and outlives it.
OpenedModel open_model(const TensorSource& source, const std::string& tokenizer_path = "");

struct LoadOptions {
  std::string tokenizer_path = {};  // as open_model has it
  // Called after each tensor with bytes done and in all; may be null.
  std::function<void(int64_t, int64_t)> progress = nullptr;
  // What the session to come takes: for the check of memory in front of the first weight.
  SessionMemory session = {};
};

// The second half. options.tokenizer_path has been used. Throws Input, System, Memory.
Model load_weights(OpenedModel opened, Backend& backend, const LoadOptions& options = {});

// Both at once.
Model load_model(const std::string& path, Backend& backend, const LoadOptions& options = {});
Model load_model(const TensorSource& source, Backend& backend, const LoadOptions& options = {});

// BF16 where most of the source's floats are, else F16: what a card computes in without loss.
DType float_type_of(const TensorSource& source);

// All of load_model's checks of headers, names, shapes and types, reading no weights.
ModelSpec check_model(const TensorSource& source);

}  // namespace minfer
