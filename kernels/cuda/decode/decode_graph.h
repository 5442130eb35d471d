#pragma once

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one captured graph of fused kernels: five a layer, each of which begins to read
// its weights before the one in front of it has ended. docs/decode.md has the plan.
class DecodeGraph final : public CapturedStep {
 public:
  // Whether a graph computes all that the model's specs say.
  static bool can_compute(const DecodeModel& model);

  DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model);

 private:
  void launch_layers() override;
  void launch_layer(const DecodeLayer& layer);
  void norm_heads(const DeviceTensor& row, const LayerSpec& spec, const Norm& norm);
  void append_and_attend(const DecodeLayer& layer);

  DeviceTensor position_;  // [1, dim] F32
  DeviceTensor q_, k_, v_, attended_,
      hidden_;  // [1, q_dim], [1, kv_dim] twice, [1, q_dim], [1, ffn_dim]
  DeviceTensor workspace_;
};

}  // namespace minfer::cuda
