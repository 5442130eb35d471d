#pragma once

#include <functional>
#include <vector>

#include "models/weight_list.h"

namespace minfer {

// Elements [begin, begin + n) along one axis of a weight.
struct ShardRange {
  int64_t begin = 0, n = 0;
  bool operator==(const ShardRange&) const = default;
};

// How the weights of a model are cut for ranks that share it (tensor parallelism). A rank computes
// some query heads of each layer with the key and value heads that they use, some elements of the
// feed-forward network, and some rows of the output layer. It has the embedding and all norms.
class Shards {
 public:
  // unit_of(weight): how many neighbouring columns of that matrix cannot be cut apart, because they
  // share a scale or a block. Throws Usage, with the numbers of ranks that work, if the model
  // cannot be cut for n_ranks.
  using UnitOf = std::function<int64_t(const WeightInfo&)>;
  Shards(const ModelSpec& whole, int n_ranks, const UnitOf& unit_of);

  int n_ranks() const { return static_cast<int>(specs_.size()); }
  // What the rank computes: its sizes, and the output layer as a matrix of its own.
  const ModelSpec& spec(int rank) const { return specs_.at(static_cast<size_t>(rank)); }
  // The rows (SliceAxis::Out) or columns (SliceAxis::In) that a rank has of a weight of the whole
  // model, in its order. Key and value heads may stand there several times.
  std::vector<ShardRange> slice(const WeightInfo& weight, int rank) const;

 private:
  struct LayerShard {
    ShardRange q_heads;
    std::vector<int64_t> kv_heads;  // of each local key/value head
    ShardRange ffn;                 // of a mixture of experts: of every expert
    ShardRange shared;              // of the shared expert
  };

  LayerShard layer_shard(const LayerSpec& layer, int rank, int64_t head_unit, int64_t ffn_unit,
                         int64_t shared_unit) const;

  std::vector<ModelSpec> specs_;                 // by rank
  std::vector<std::vector<LayerShard>> layers_;  // by rank and layer
  std::vector<int64_t> head_dims_;               // by layer
};

}  // namespace minfer
