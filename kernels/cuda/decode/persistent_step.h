#pragma once

#include <memory>

#include "kernels/cuda/decode/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one kernel that stays on the card for all layers: step_kernel.cu. For models of
// Llama's kind whose shapes and formats fit it; DecodeGraph takes the others.
class PersistentStep final : public DecodePlan {
 public:
  // Null where the model or the card is not of that kind.
  static std::unique_ptr<DecodePlan> make(cudaStream_t stream, DType compute_type,
                                          const DecodeModel& model);

  std::span<const float> step(TokenId token, int64_t pos) override;

 private:
  PersistentStep(cudaStream_t stream, const DecodeModel& model, StepParams params);
  void allocate_words(StepParams& params);
  void make_layers(StepParams& params);

  cudaStream_t stream_;
  DecodeModel model_;
  PinnedArray<StepInput> input_{1};
  PinnedArray<float> host_logits_;
  DeviceTensor device_input_;    // a StepInput
  DeviceTensor x_, logits_;      // [1, dim], [1, vocab_size] F32
  DeviceTensor words_, layers_;  // those of StepParams
  uint32_t epoch_ = 0;           // of the next step; 0: the words are not cleared yet
  GraphExec graph_;
};

}  // namespace minfer::cuda
