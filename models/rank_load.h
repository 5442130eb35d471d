#pragma once

#include <map>
#include <optional>
#include <vector>

#include "models/model.h"
#include "models/shards.h"
#include "models/weight_names.h"

namespace minfer {

// What one rank loads: its spec, its weights, and where they come from. With one rank, all.
struct RankLoad {
  Model model;
  std::vector<WeightBinding> bindings;  // of the whole model, into the weights of this one
  std::map<const Matrix*, const TensorEntry*> entries;  // of each matrix
  const Shards* shards = nullptr;                       // null: one rank
  int rank = 0;

  // The rows or columns that the rank has of a part; none: all.
  std::optional<std::vector<ShardRange>> slice(const WeightPart& part) const;
  // The rows of the entry that the rank has, if it can read them alone; none: it reads all of it.
  // They are then the slices of all parts, one after the other.
  std::optional<std::vector<ShardRange>> rows_alone(const WeightBinding& binding) const;
  // A matrix of the rank's spec as the file has it.
  StoredMatrix stored(const WeightInfo& weight) const;
};

// Binds the weights of the whole model. With several ranks, the output layer is a matrix of its own
// even if the file ties it to the embedding.
void bind(RankLoad& load, const TensorSource& source, const ModelSpec& whole);

// Bytes of the rank's weights on a card, padding included.
int64_t card_weight_bytes(const TensorSource& source, const ModelSpec& whole, const Shards& shards,
                          int rank);

}  // namespace minfer
