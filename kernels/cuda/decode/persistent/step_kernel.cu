#include "kernels/cuda/decode/persistent/step_kernel.cuh"

namespace minfer::cuda {

StepKernel step_kernel_of(int heads_per_block, int head_dim, bool is_plain) {
  const bool is_large = head_dim > 128;
  StepKernel kernel{};
  kernel.heads = is_large               ? step_most_heads(head_dim)
                 : heads_per_block == 1 ? 1
                                        : step_most_heads(128);
  kernel.is_plain = is_plain && !is_large;
  kernel.run = step_function<false>(kernel.heads, head_dim, kernel.is_plain);
  kernel.run_and_count = counting_step_function(kernel.heads, head_dim, kernel.is_plain);
  return kernel;
}

}  // namespace minfer::cuda
