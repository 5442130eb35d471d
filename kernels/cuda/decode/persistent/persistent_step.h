#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/persistent/step_gemvs.h"
#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step as one persistent kernel that runs all layers: step_kernel.cuh. It takes models
// whose blocks, shapes and formats fit it; DecodeGraph takes some of the others.
//
// Where several query heads of at most 128 elements share a head of keys and values, there are two
// variants. For few positions a block attends with one query head: more blocks share the work, and
// each gathers less of q. For many it attends with several, so that fewer blocks read the same keys
// and values.
class PersistentStep final : public CapturedStep {
 public:
  // Whether the kernel computes every field that the specs of the model set: Llama's blocks with
  // what StepBlock and StepAttention add, alike but for windows and RoPE tables. make() also checks
  // shapes and formats.
  static bool can_compute(const DecodeModel& model);

  // What tests set, to have both sides of it in small models; and of how many tokens a step is.
  struct Tuning {
    // Positions below this are few. Measured with Llama-3-8B's and Qwen3-8B's shape, INT4 on an
    // H100: one head in a block is 4 and 8 % faster at 128 positions, 3 % slower and 1 % faster at
    // 2000, 7 and 5 % slower at 4000.
    int64_t few_positions = 1536;
    // One block attends alone, and merges nothing, up to elements_alone / head_dim positions, at
    // most 256. Measured on an H100 from 128 to 256 positions with an F16 cache: with all in
    // one block a model with heads of 64 elements was 6 % faster, of 128 the same, of 256 11 %
    // slower.
    int64_t elements_alone = 16384;
    // Whether stages of a model of floats have several rows, where these are short.
    bool has_several_rows = true;
    // Tokens of a step: rows of one sequence at consecutive positions. Two only for plain blocks
    // of codes, and not for a run of steps.
    int n_tokens = 1;
  };

  // A step on the current card. Null if the kernel does not support the model or the card.
  static std::unique_ptr<PersistentStep> make(cudaStream_t stream, DType compute_type,
                                              const DecodeModel& model, const Tuning& tuning);
  static std::unique_ptr<PersistentStep> make(cudaStream_t stream, DType compute_type,
                                              const DecodeModel& model) {
    return make(stream, compute_type, model, Tuning{});
  }
  // Makes the steps of all ranks that share a model, by rank, sum and gather over each other. At
  // most kStepMostRanks.
  static void connect(std::span<const std::unique_ptr<PersistentStep>> ranks);

 private:
  struct Variant {
    StepParams params;
    StepKernel kernel;
  };

  PersistentStep(cudaStream_t stream, const DecodeModel& model, std::vector<Variant> variants,
                 const Tuning& tuning);
  // None if the kernel does not support the model or the card.
  static std::vector<Variant> variants_of(DType compute_type, const DecodeModel& model,
                                          const Tuning& tuning, StageLength stages);
  const StepParams& params() const { return variants_.front().params; }  // what both have
  void allocate_words();
  void allocate_mailboxes(int n_ranks);
  void make_layers();
  int n_variants() const override { return int(variants_.size()); }
  int variant_at(int64_t pos) const override {
    return n_variants() == 1 || pos < few_positions_ ? 0 : 1;
  }
  void launch_layers(int variant) override;
  bool choice_uses_pdl() const override { return true; }
  void clear_epochs() override;
  bool start_profile() override;  // step_profile.cpp
  StepProfile end_profile() override;
  void set_clocks(StepClocks* clocks);

  std::vector<Variant> variants_;  // of two, the first is for few positions
  int64_t few_positions_;
  DeviceTensor words_, layers_;        // the memory of StepParams::words and StepParams::layers
  DeviceTensor mailboxes_, arrivals_;  // of several ranks: StepPeers
  DeviceTensor clocks_;                // of a profile: StepParams::clocks
};

}  // namespace minfer::cuda
