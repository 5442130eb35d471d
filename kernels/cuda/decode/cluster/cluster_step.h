#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/cluster/cluster_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launchers.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode step of a small model as one kernel of one cluster, which runs all layers
// (cluster_kernel.cuh), and one of all SMs for the output norm and matrix, which begins meanwhile.
// It takes Llama's block with weights of U4 in scales of groups, up to four query heads for a
// key/value head, and an F16 cache, where the blocks of a cluster have room for a layer.
//
// For few positions a block attends with one query head, if there are blocks for all. For many, at
// least three blocks share the positions of all query heads of a key/value head.
class ClusterStep final : public CapturedStep {
 public:
  // Positions below this are few. Measured with SmolLM2-135M on an H200: one head in a block is 4 %
  // faster at 350 positions, 4 % slower at 400, where its third round of rows begins.
  static constexpr int64_t kFewPositions = 384;

  // A step on the current card. Null if the kernel does not support the model or the card.
  static std::unique_ptr<ClusterStep> make(cudaStream_t stream, DType compute_type,
                                           const DecodeModel& model,
                                           int64_t few_positions = kFewPositions);

 private:
  struct Variant {
    ClusterParams params;
    ClusterKernel kernel;
  };

  ClusterStep(cudaStream_t stream, const DecodeModel& model, std::vector<Variant> variants,
              int64_t few_positions);
  // Of `n_queries` query heads in a block. None if the kernel does not support the model or the
  // card.
  static std::optional<Variant> variant_of(DType compute_type, const DecodeModel& model,
                                           int64_t n_queries);
  void make_layers();
  int n_variants() const override { return int(variants_.size()); }
  int variant_at(int64_t pos) const override {
    return n_variants() == 1 || pos < few_positions_ ? 0 : 1;
  }
  void launch_layers(int variant) override;

  std::vector<Variant> variants_;  // of two, the first is for few positions
  int64_t few_positions_;
  DeviceTensor layers_;  // the memory of ClusterParams::layers
};

}  // namespace minfer::cuda
