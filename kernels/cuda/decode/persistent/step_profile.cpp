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

// A phase with its row of StepClocks::parts, and the bytes that it reads in a layer, on average.
PhaseProfile phase_of(const DecodeModel& model, int row) {
  const int64_t n_layers = std::ssize(model.layers);
  const auto phase = [&](const char* name, std::initializer_list<Linear LayerWeights::*> linears) {
    int64_t n_bytes = 0;
    for (const DecodeLayer& layer : model.layers) {
      for (Linear LayerWeights::*linear : linears) {
        n_bytes += (layer.weights->*linear).weight.n_bytes;
      }
    }
    return PhaseProfile{name, n_layers, n_bytes / n_layers, {}};
  };
  using W = LayerWeights;
  switch (row) {
    case kQkv:
      return phase("q k v", {&W::wq, &W::wk, &W::wv});
    case kAttentionRow:
      return phase("attention", {});
    case kWo:
      return phase("wo", {&W::wo});
    case kGateUp:
      return phase("gate up", {&W::w_gate, &W::w_up});
    case kDown:
      return phase("down", {&W::w_down});
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
