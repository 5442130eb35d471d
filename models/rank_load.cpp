#include "models/rank_load.h"

#include <algorithm>

#include "models/host_memory.h"

namespace minfer {

namespace {

// Lets the output layer be a matrix of its own, from the tensor of the embedding.
void untie(RankLoad& load) {
  const auto is_embedding = [](const WeightBinding& binding) {
    return binding.parts.front().weight.role == WeightRole::Embedding;
  };
  WeightBinding& embedding = *std::ranges::find_if(load.bindings, is_embedding);
  embedding.parts.front().is_table = true;
  WeightBinding output = embedding;
  WeightPart& part = output.parts.front();
  part.matrix = &load.model.weights.output;
  part.is_table = false;
  part.weight.role = WeightRole::Output;
  part.weight.slice = SliceAxis::Out;
  load.bindings.push_back(std::move(output));
}

}  // namespace

std::optional<std::vector<ShardRange>> RankLoad::slice(const WeightPart& part) const {
  if (shards == nullptr) return std::nullopt;
  const WeightInfo& weight = part.weight;
  const std::vector<ShardRange> ranges = shards->slice(weight, rank);
  const int64_t n = weight.shape[weight.slice == SliceAxis::In ? 1 : 0];
  if (ranges == std::vector<ShardRange>{{0, n}}) return std::nullopt;
  return ranges;
}

std::optional<std::vector<ShardRange>> RankLoad::rows_alone(const WeightBinding& binding) const {
  const TensorEntry& entry = *binding.entry;
  const bool has_other_rows = binding.transposed || binding.qkv_heads > 0 ||
                              entry.shape.rank != binding.parts.front().weight.shape.rank;
  if (shards == nullptr || has_other_rows || entry.quant) return std::nullopt;
  const bool is_plain = std::cmp_equal(bytes_of(entry.dtype, entry.shape), entry.file_bytes);
  if (!is_plain) return std::nullopt;  // rows of it are no bytes of the file
  std::vector<ShardRange> rows;
  int64_t begin = 0;
  bool is_cut = false;
  for (const WeightPart& part : binding.parts) {
    const auto ranges = slice(part);
    if (ranges && part.weight.slice == SliceAxis::In) return std::nullopt;
    is_cut |= ranges.has_value();
    for (const ShardRange& range : ranges.value_or(std::vector{ShardRange{0, part.n_rows}})) {
      rows.push_back({begin + range.begin, range.n});
    }
    begin += part.n_rows;
  }
  return is_cut ? std::optional(std::move(rows)) : std::nullopt;
}

void bind(RankLoad& load, const TensorSource& source, const ModelSpec& whole) {
  std::vector<std::string> surplus;
  load.bindings = bind_weights(source, whole, load.model.weights, surplus);
  if (load.shards != nullptr && whole.tied_output) untie(load);
  for (const WeightBinding& binding : load.bindings) {
    for (const WeightPart& part : binding.parts) {
      if (part.matrix != nullptr) load.entries[part.matrix] = binding.entry;
    }
  }
}

StoredMatrix RankLoad::stored(const WeightInfo& weight) const {
  StoredMatrix matrix = stored_matrix(*entries.at(&matrix_of(model.weights, weight)));
  const bool has_row_scales = matrix.groups && matrix.groups->group == matrix.in_dim;
  matrix.out_dim = weight.shape[0];  // of a part or a slice, or stored the other way round
  matrix.in_dim = weight.shape[1];
  if (has_row_scales) matrix.groups->group = matrix.in_dim;
  matrix.use = weight.is_table ? MatrixUse::Table : MatrixUse::Matmul;
  return matrix;
}

int64_t card_weight_bytes(const TensorSource& source, const ModelSpec& whole, const Shards& shards,
                          int rank) {
  RankLoad load;
  load.shards = &shards;
  load.rank = rank;
  bind(load, source, whole);
  int64_t n_bytes = 0;
  for_each_weight(shards.spec(rank), [&](const WeightInfo& weight) {
    n_bytes =
        checked_add(n_bytes, weight.is_matrix() ? cuda_packed_bytes(load.stored(weight)).sum()
                                                : bytes_of(DType::F16, weight.shape.n_elements()));
  });
  return n_bytes;
}

void cut_for_ranks(OpenedModel& opened, int n_ranks) {
  if (n_ranks == 1) return;
  RankLoad load;
  bind(load, *opened.source, opened.model.spec);
  opened.shards = std::make_shared<const Shards>(
      opened.model.spec, n_ranks, [&](const WeightInfo& weight) -> int64_t {
        const TensorEntry& entry = *load.entries.at(&matrix_of(load.model.weights, weight));
        if (!entry.quant) return info(entry.dtype).block_elements;
        if (entry.quant->group != weight.shape[1]) return entry.quant->group;
        return entry.dtype == DType::U4 ? 2 : 1;  // two codes in a byte
      });
}

}  // namespace minfer
