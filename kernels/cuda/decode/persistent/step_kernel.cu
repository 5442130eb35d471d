#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

StepKernel step_kernel_of(int heads_per_block, int head_dim, bool is_plain, bool is_mixed) {
  StepChoice choice{.is_large = head_dim > 128, .is_mixed = is_mixed};
  choice.heads = choice.is_large || heads_per_block > 1 ? step_most_heads(head_dim) : 1;
  choice.is_plain = is_plain && !choice.is_large;
  return {step_function<false>(choice), counting_step_function(choice), choice.heads,
          choice.is_plain};
}

}  // namespace minfer::cuda
