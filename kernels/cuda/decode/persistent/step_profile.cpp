#include <vector>

#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "kernels/cuda/decode/persistent/step_gemvs.h"

namespace minfer::cuda {
namespace {

PhaseClocks clocks_of(const unsigned long long (&parts)[kStepParts]) {
  return {.input = double(parts[kInput]),
          .multiply = double(parts[kMultiply]),
          .ring = double(parts[kRing]),
          .publish = double(parts[kPublish])};
}

// A phase with its row of StepClocks::parts, and the bytes that it reads in a layer, on average: of
// experts those of the chosen ones, and of their router.
PhaseProfile phase_of(const DecodeModel& model, int row) {
  const int64_t n_layers = std::ssize(model.layers);
  const auto phase = [&](const char* name, size_t first, size_t n_matrices) {
    int64_t n_bytes = 0;
    for (const DecodeLayer& layer : model.layers) {
      const bool is_of_experts = layer.spec.has_experts() && first >= size_t(first_matrix(kGateUp));
      for (size_t i = first; i < first + n_matrices; ++i) {
        n_bytes += linears_of(*layer.weights)[i]->weight.n_bytes *
                   (is_of_experts ? layer.spec.n_active_experts : 1);
      }
      if (is_of_experts && row == kGateUp) n_bytes += layer.weights->moe.router.n_bytes;
    }
    return PhaseProfile{name, n_layers, n_bytes / n_layers, {}};
  };
  switch (row) {
    case kQkv:
      return phase("q k v", 0, 3);
    case kAttentionRow:
      return phase("attention", 0, 0);
    case kWo:
      return phase("wo", 3, 1);
    case kGateUp:
      return phase("gate up", 4, 2);
    case kDown:
      return phase("down", 6, 1);
    case kHead:
      return {"head", 1, model.output->n_bytes, {}};
    default:
      return {"start", 1, 0, {}};
  }
}
constexpr int kRowsInOrder[] = {kStartRow, kQkv, kAttentionRow, kWo, kGateUp, kDown, kHead};
static_assert(std::size(kRowsInOrder) == kClockRows);

}  // namespace

bool PersistentStep::start_profile() {
  if (variants_.front().kernel.run_and_count == nullptr) return false;
  const int64_t n_blocks = params().n_blocks();
  clocks_ = allocate_device(DType::U8, {n_blocks * int64_t{sizeof(StepClocks)}});
  MINFER_CUDA_CHECK(cudaMemsetAsync(clocks_.view().data, 0,
                                    static_cast<size_t>(clocks_.view().n_bytes()), stream()));
  set_clocks(static_cast<StepClocks*>(clocks_.view().data));
  return true;
}

StepProfile PersistentStep::end_profile() {
  MINFER_CHECK(clocks_, "the end of a profile that has not begun");
  std::vector<StepClocks> blocks(size_t(params().n_blocks()));
  MINFER_CUDA_CHECK(cudaMemcpyAsync(blocks.data(), clocks_.view().data,
                                    blocks.size() * sizeof(StepClocks), cudaMemcpyDeviceToHost,
                                    stream()));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream()));
  set_clocks(nullptr);
  clocks_ = {};
  StepProfile profile{.n_steps = int64_t(blocks.front().n_steps), .phases = {}, .seconds = {}};
  for (const int row : kRowsInOrder) {
    PhaseProfile phase = phase_of(model(), row);
    for (const StepClocks& block : blocks) phase.blocks.push_back(clocks_of(block.parts[row]));
    profile.phases.push_back(std::move(phase));
  }
  for (const StepClocks& block : blocks) profile.seconds.push_back(double(block.nanoseconds) / 1e9);
  return profile;
}

}  // namespace minfer::cuda
