#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one captured graph of fused kernels: five a layer, each of which begins to read
// its weights before the one in front of it has ended. docs/decode.md has the plan.
class DecodeGraph final : public DecodePlan {
 public:
  DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model);

  std::span<const float> step(TokenId token, int64_t pos) override;

 private:
  struct StepInput {
    TokenId token;
    int32_t pos;
  };
  void launch_step();
  void launch_layer(const DecodeLayer& layer);
  void append_and_attend(const DecodeLayer& layer);

  cudaStream_t stream_;
  DecodeModel model_;
  PinnedArray<StepInput> input_{1};
  PinnedArray<float> host_logits_;
  DeviceTensor device_input_;  // a StepInput
  DeviceTensor x_, position_;  // [1, dim] F32
  DeviceTensor q_, k_, v_, attended_,
      hidden_;           // [1, q_dim], [1, kv_dim] twice, [1, q_dim], [1, ffn_dim]
  DeviceTensor logits_;  // [1, vocab_size] F32
  DeviceTensor workspace_;
  GraphExec graph_;
};

}  // namespace minfer::cuda
