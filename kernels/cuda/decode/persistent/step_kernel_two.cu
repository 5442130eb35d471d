#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

StepFunction two_token_kernel_of(StepWeights weights, int heads_per_block) {
  const auto kernel = [&]<StepWeights kWeights>() -> StepFunction {
    constexpr int kMost = step_most_heads(128);
    if (heads_per_block == 1) {
      return decode_step_kernel<StepInstance<1, 128, true, kWeights, false, 2>>;
    }
    return decode_step_kernel<StepInstance<kMost, 128, true, kWeights, false, 2>>;
  };
  return weights == StepWeights::Int4 ? kernel.template operator()<StepWeights::Int4>()
                                      : kernel.template operator()<StepWeights::Codes>();
}

}  // namespace minfer::cuda
