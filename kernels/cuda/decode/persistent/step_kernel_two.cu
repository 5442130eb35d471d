#include "kernels/base/error.h"
#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

StepKernel two_token_kernel_of(StepWeights weights, int heads_per_block) {
  const auto kernel = [&]<StepWeights kWeights, int kHeads>() {
    using I = StepInstance<kHeads, 128, true, kWeights, false, 2>;
    return StepKernel{decode_step_kernel<I>, nullptr, I::kQueries, true};
  };
  const auto with_weights = [&]<StepWeights kWeights>() {
    return heads_per_block == 1 ? kernel.template operator()<kWeights, 1>()
                                : kernel.template operator()<kWeights, step_most_heads(128, 2)>();
  };
  using enum StepWeights;
  switch (weights) {
    case Int4:
      return with_weights.template operator()<Int4>();
    case ShortInt4:
      return with_weights.template operator()<ShortInt4>();
    case Int8:
      return with_weights.template operator()<Int8>();
    case Codes:
      return with_weights.template operator()<Codes>();
    default:
      throw Error(ErrorKind::Internal, "no instance for two tokens of these weights");
  }
}

}  // namespace minfer::cuda
