#include "models/memory_needed.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace minfer {

MemoryNeeded memory_needed(const ModelSpec& spec, const Backend& backend,
                           const SessionMemory& session,
                           const std::function<StoredMatrix(const WeightInfo&)>& stored_of) {
  MemoryNeeded needed{.weights = {}, .session = session};
  int64_t in_packing = 0, in_matmuls = 0;
  const auto add_matmul = [&](int64_t n_rows, std::span<const StoredMatrix> matrices) {
    in_matmuls = std::max(in_matmuls, backend.matmul_workspace_bytes(n_rows, matrices));
  };
  std::map<std::pair<int64_t, BlockInput>, std::vector<StoredMatrix>> of_one_input, of_an_expert;
  for_each_weight(spec, [&](const WeightInfo& weight) {
    int64_t& bytes = needed.weights.bytes;
    const int64_t n = weight.shape.n_elements();
    if (!weight.is_matrix()) {
      const DType dtype = weight.is_f32() ? DType::F32 : backend.activation_dtype();
      bytes = checked_add(bytes, bytes_of(dtype, n));
      return;
    }
    const StoredMatrix stored = stored_of(weight);
    bytes = checked_add(bytes, backend.packed_bytes(stored));
    needed.weights.bytes_as_int4 += n * 9 / 16;
    in_packing = std::max(in_packing, backend.packing_workspace_bytes(stored));
    if (weight.is_of_expert()) {  // all have one size
      if (weight.expert == 0) of_an_expert[{weight.layer, weight.input()}].push_back(stored);
    } else if (weight.is_in_block()) {
      of_one_input[{weight.layer, weight.input()}].push_back(stored);
    } else if (weight.is_of_tokens() && !weight.is_table) {
      add_matmul(session.n_logit_rows, {&stored, 1});
    }
  });
  for (const auto& [input, matrices] : of_one_input) add_matmul(session.n_rows, matrices);
  for (const auto& [input, matrices] : of_an_expert) {
    in_matmuls = std::max(in_matmuls, backend.expert_workspace_bytes(
                                          session.n_rows, spec.layer(input.first), matrices));
  }
  int64_t& activations = needed.session.activation_bytes;
  activations = checked_add(activations, checked_add(in_packing, in_matmuls));
  return needed;
}

}  // namespace minfer
