#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one persistent kernel that runs all layers: step_kernel.cu. It takes models
// whose blocks, shapes and formats fit it; DecodeGraph takes some of the others.
class PersistentStep final : public CapturedStep {
 public:
  // Whether the kernel computes every field that the specs of the model set: Llama's blocks with
  // what StepBlock and StepAttention add, alike but for windows and RoPE tables. make() also checks
  // shapes and formats.
  static bool can_compute(const DecodeModel& model);

  // A step on the current card. Null if the kernel does not support the model or the card.
  static std::unique_ptr<PersistentStep> make(cudaStream_t stream, DType compute_type,
                                              const DecodeModel& model);
  // Makes the steps of all ranks that share a model, by rank, sum and gather over each other. At
  // most kStepMostRanks.
  static void connect(std::span<const std::unique_ptr<PersistentStep>> ranks);

 private:
  PersistentStep(cudaStream_t stream, const DecodeModel& model, const StepParams& params,
                 const StepKernel& kernel);
  void allocate_words();
  void allocate_mailboxes(int n_ranks);
  void make_layers();
  void launch_layers() override;
  void clear_epochs() override;

  StepParams params_;
  StepKernel kernel_;
  DeviceTensor words_, layers_;        // the memory of StepParams::words and StepParams::layers
  DeviceTensor mailboxes_, arrivals_;  // of several ranks: StepPeers
};

}  // namespace minfer::cuda
