#pragma once

#include <memory>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one kernel that stays on the card for all layers: step_kernel.cu. For models of
// Llama's kind whose shapes and formats fit it; DecodeGraph takes the others.
class PersistentStep final : public CapturedStep {
 public:
  // Whether the kernel computes all that the model's specs say: blocks that are alike, of Llama's
  // kind and without biases. What shapes and formats it takes is another question.
  static bool can_compute(const DecodeModel& model);

  // Null where the model or the card is not of that kind.
  static std::unique_ptr<DecodePlan> make(cudaStream_t stream, DType compute_type,
                                          const DecodeModel& model);

 private:
  PersistentStep(cudaStream_t stream, const DecodeModel& model, const StepParams& params);
  void allocate_words();
  void make_layers();
  void launch_layers() override;
  void clear_epochs() override;

  StepParams params_;
  DeviceTensor words_, layers_;  // those of StepParams
};

}  // namespace minfer::cuda
