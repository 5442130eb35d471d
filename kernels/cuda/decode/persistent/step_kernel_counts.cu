#include "kernels/cuda/decode/persistent/step_kernel.cuh"

// The instances with clocks, in a file of their own, which compiles beside the others.
namespace minfer::cuda {

StepFunction counting_step_function(const StepChoice& choice) {
  return step_function<true>(choice);
}

}  // namespace minfer::cuda
