#include <vector>

#include "kernels/cuda/decode/persistent/persistent_step.h"

namespace minfer::cuda {
namespace {

PhaseClocks clocks_of(const unsigned long long (&parts)[kStepParts]) {
  return {.input = double(parts[kInput]),
          .multiply = double(parts[kMultiply]),
          .ring = double(parts[kRing]),
          .publish = double(parts[kPublish])};
}

// A phase with its row of StepClocks::parts; all layers have matrices of the same formats and
// shapes.
PhaseProfile phase_of(const DecodeModel& model, int row) {
  const LayerWeights& w = *model.layers.front().weights;
  const int64_t n_layers = std::ssize(model.layers);
  switch (row) {
    case kQkv:
      return {
          "q k v", n_layers, w.wq.weight.n_bytes + w.wk.weight.n_bytes + w.wv.weight.n_bytes, {}};
    case kAttentionRow:
      return {"attention", n_layers, 0, {}};
    case kWo:
      return {"wo", n_layers, w.wo.weight.n_bytes, {}};
    case kGateUp:
      return {"gate up", n_layers, w.w_gate.weight.n_bytes + w.w_up.weight.n_bytes, {}};
    case kDown:
      return {"down", n_layers, w.w_down.weight.n_bytes, {}};
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
  const int64_t n_blocks = params().gemvs[kHead].slice.n_blocks;
  clocks_ = allocate_device(DType::U8, {n_blocks * int64_t{sizeof(StepClocks)}});
  MINFER_CUDA_CHECK(cudaMemsetAsync(clocks_.view().data, 0,
                                    static_cast<size_t>(clocks_.view().n_bytes()), stream()));
  set_clocks(static_cast<StepClocks*>(clocks_.view().data));
  return true;
}

StepProfile PersistentStep::end_profile() {
  MINFER_CHECK(clocks_, "the end of a profile that has not begun");
  std::vector<StepClocks> blocks(size_t(params().gemvs[kHead].slice.n_blocks));
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
