#include "models/shards.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace minfer {
namespace {

// Part `rank` of n units, as equal as can be.
ShardRange part_of(int64_t n_units, int n_ranks, int rank) {
  const int64_t begin = n_units * rank / n_ranks;
  return {begin, n_units * (rank + 1) / n_ranks - begin};
}

// Units of a layer's query heads and of its feed-forward elements: what ranks can share out.
struct LayerUnits {
  int64_t head_unit = 1, ffn_unit = 1, shared_unit = 1;
};

std::vector<LayerUnits> units_of(const ModelSpec& whole, const Shards::UnitOf& unit_of) {
  std::vector<LayerUnits> units(whole.layers.size());
  for_each_weight(whole, [&](const WeightInfo& weight) {
    if (!weight.is_matrix() || !weight.is_in_block()) return;
    const LayerSpec& layer = whole.layer(weight.layer);
    LayerUnits& of_layer = units[static_cast<size_t>(weight.layer)];
    const int64_t unit = unit_of(weight);
    if (weight.role == WeightRole::Wo) of_layer.head_unit = unit / std::gcd(unit, layer.head_dim);
    if (weight.role == WeightRole::WDown) of_layer.ffn_unit = unit;
    if (weight.role == WeightRole::ExpertDown) {
      of_layer.ffn_unit = std::lcm(of_layer.ffn_unit, unit);
    }
    if (weight.role == WeightRole::SharedDown) of_layer.shared_unit = unit;
  });
  return units;
}

// Query heads that one rank must have together: those of whole key/value heads, where a norm is
// over the keys of all ranks, so that no two ranks have the same.
int64_t heads_together(const LayerSpec& layer, const LayerUnits& units) {
  if (layer.qk_norm != QkNorm::WholeWidth) return units.head_unit;
  return std::lcm(units.head_unit, layer.n_heads / layer.n_kv_heads);
}

// Ranks that the heads and the feed-forward network of every layer are enough for.
int64_t most_ranks(const ModelSpec& whole, const std::vector<LayerUnits>& units) {
  int64_t most = whole.vocab_size;
  for (size_t i = 0; i < units.size(); ++i) {
    const LayerSpec& layer = whole.layers[i];
    most = std::min(
        {most, layer.n_heads / heads_together(layer, units[i]), layer.ffn_dim / units[i].ffn_unit});
    if (layer.shared_ffn_dim > 0) {
      most = std::min(most, layer.shared_ffn_dim / units[i].shared_unit);
    }
  }
  return most;
}

// Whether the parts of a layer end where its units do.
bool are_whole(const LayerSpec& layer, const LayerUnits& units) {
  return layer.n_heads % heads_together(layer, units) == 0 && layer.ffn_dim % units.ffn_unit == 0 &&
         layer.shared_ffn_dim % units.shared_unit == 0;
}

}  // namespace

Shards::Shards(const ModelSpec& whole, int n_ranks, const UnitOf& unit_of) {
  const std::vector<LayerUnits> units = units_of(whole, unit_of);
  const int64_t most = most_ranks(whole, units);
  for (size_t i = 0; i < units.size(); ++i) {
    const LayerSpec& layer = whole.layers[i];
    MINFER_REQUIRE(Usage, are_whole(layer, units[i]), "--tp ", n_ranks, ": layer ", i,
                   " cannot be cut: ", layer.n_heads, " heads in units of ",
                   heads_together(layer, units[i]), ", ", layer.ffn_dim,
                   " elements of the feed-forward network in units of ", units[i].ffn_unit);
    head_dims_.push_back(layer.head_dim);
  }
  MINFER_REQUIRE(Usage, n_ranks <= most, "--tp ", n_ranks, ": this model can be cut for ",
                 most == 1 ? std::string("1 rank") : cat("1 to ", most, " ranks"));
  specs_.resize(static_cast<size_t>(n_ranks));
  for (int rank = 0; rank < n_ranks; ++rank) {
    ModelSpec& spec = specs_[static_cast<size_t>(rank)] = whole;
    std::vector<LayerShard>& shards = layers_.emplace_back();
    for (size_t i = 0; i < units.size(); ++i) {
      LayerSpec& layer = spec.layers[i];
      // Where the units are small, cuts that suit the kernels: 64 columns.
      const auto suited = [&](int64_t n, int64_t unit) {
        int64_t best = unit;
        for (int64_t larger = unit; larger <= 64; larger *= 2) {
          if (n % larger == 0 && n / larger >= n_ranks) best = larger;
        }
        return best;
      };
      const LayerShard shard =
          layer_shard(layer, rank, units[i].head_unit, suited(layer.ffn_dim, units[i].ffn_unit),
                      suited(layer.shared_ffn_dim, units[i].shared_unit));
      layer.n_heads = shard.q_heads.n;
      layer.n_kv_heads = std::ssize(shard.kv_heads);
      layer.ffn_dim = shard.ffn.n;
      layer.shared_ffn_dim = shard.shared.n;
      shards.push_back(shard);
    }
    const ShardRange output = part_of(whole.vocab_size, n_ranks, rank);
    if (n_ranks > 1) {
      spec.tied_output = false;
      spec.output_begin = output.begin;
      spec.output_rows = output.n;
    }
  }
}

Shards::LayerShard Shards::layer_shard(const LayerSpec& layer, int rank, int64_t head_unit,
                                       int64_t ffn_unit, int64_t shared_unit) const {
  LayerShard shard;
  const auto part = [&](int64_t n, int64_t unit) {
    const ShardRange units = part_of(n / unit, n_ranks(), rank);
    return ShardRange{units.begin * unit, units.n * unit};
  };
  // Key and value heads are cut if there are enough of them, even if the ranks then have unequal
  // numbers: a head in two caches costs more.
  const int64_t per_kv = layer.n_heads / layer.n_kv_heads;
  const int64_t whole_kv = std::lcm(head_unit, per_kv);
  const bool is_by_kv = layer.n_heads % whole_kv == 0 && layer.n_heads / whole_kv >= n_ranks();
  shard.q_heads = part(layer.n_heads, is_by_kv ? whole_kv : head_unit);
  shard.ffn = part(layer.ffn_dim, ffn_unit);
  shard.shared = part(layer.shared_ffn_dim, shared_unit);
  const int64_t begin = shard.q_heads.begin, end = begin + shard.q_heads.n;
  const int64_t first = begin / per_kv, last = (end - 1) / per_kv;
  // The kernels want as many query heads for each key/value head. If the cut leaves other numbers,
  // each query head gets a copy of its own.
  const bool are_whole = begin % per_kv == 0 && end % per_kv == 0;
  if (are_whole || first == last) {
    for (int64_t i = first; i <= last; ++i) shard.kv_heads.push_back(i);
  } else {
    for (int64_t i = begin; i < end; ++i) shard.kv_heads.push_back(i / per_kv);
  }
  return shard;
}

std::vector<ShardRange> Shards::slice(const WeightInfo& weight, int rank) const {
  const ModelSpec& own = spec(rank);
  if (weight.slice == SliceAxis::None) return {{0, weight.shape[0]}};
  if (weight.role == WeightRole::Output) return {{own.output_begin, own.n_output_rows()}};
  const auto layer = static_cast<size_t>(weight.layer);
  const LayerShard& shard = layers_.at(static_cast<size_t>(rank)).at(layer);
  const int64_t head_dim = head_dims_[layer];
  switch (weight.role) {
    case WeightRole::Wq:
    case WeightRole::QNorm:
    case WeightRole::Wo:
      return {{shard.q_heads.begin * head_dim, shard.q_heads.n * head_dim}};
    case WeightRole::Sinks:
      return {shard.q_heads};
    case WeightRole::Wk:
    case WeightRole::KNorm:
    case WeightRole::Wv: {
      std::vector<ShardRange> rows;
      for (const int64_t head : shard.kv_heads) {
        if (!rows.empty() && rows.back().begin + rows.back().n == head * head_dim) {
          rows.back().n += head_dim;
        } else {
          rows.push_back({head * head_dim, head_dim});
        }
      }
      return rows;
    }
    case WeightRole::WGate:
    case WeightRole::WUp:
    case WeightRole::WDown:
    case WeightRole::ExpertGate:
    case WeightRole::ExpertUp:
    case WeightRole::ExpertDown:
      return {shard.ffn};
    case WeightRole::SharedGate:
    case WeightRole::SharedUp:
    case WeightRole::SharedDown:
      return {shard.shared};
    default:
      throw Error(ErrorKind::Internal, "a weight that no rank knows how to cut");
  }
}

}  // namespace minfer
