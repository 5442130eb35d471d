#include "kernels/cuda/decode/persistent/step_kernel.cuh"

// The instances with clocks, in a file of their own, which compiles beside the others.
namespace minfer::cuda {

StepFunction counting_step_function(int heads, int head_dim, bool is_plain) {
  return step_function<true>(heads, head_dim, is_plain);
}

}  // namespace minfer::cuda
