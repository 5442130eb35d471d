#pragma once

#include <memory>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one persistent kernel that runs all layers: step_kernel.cu. It takes Llama-like
// models whose shapes and formats fit it; DecodeGraph takes the others.
class PersistentStep final : public CapturedStep {
 public:
  // Whether the kernel computes every field that the specs of the model set: Llama blocks without
  // biases, all alike. make() also checks shapes and formats.
  static bool can_compute(const DecodeModel& model);

  // Null if the kernel does not support the model or the card.
  static std::unique_ptr<DecodePlan> make(cudaStream_t stream, DType compute_type,
                                          const DecodeModel& model);

 private:
  PersistentStep(cudaStream_t stream, const DecodeModel& model, const StepParams& params);
  void allocate_words();
  void make_layers();
  void launch_layers() override;
  void clear_epochs() override;

  StepParams params_;
  DeviceTensor words_, layers_;  // the memory of StepParams::words and StepParams::layers
};

}  // namespace minfer::cuda
