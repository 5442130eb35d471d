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
  return weights == Int4        ? with_weights.template operator()<Int4>()
         : weights == ShortInt4 ? with_weights.template operator()<ShortInt4>()
         : weights == Int8      ? with_weights.template operator()<Int8>()
                                : with_weights.template operator()<Codes>();
}

}  // namespace minfer::cuda
