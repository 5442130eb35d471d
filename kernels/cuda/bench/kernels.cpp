#include "kernels/cuda/bench/kernel_rig.h"

// Times the launchers of launchers.h at shapes of Llama-2-7B, except those that load a model, and
// choose_token().
namespace minfer {

void time_cuda_kernels(int device, const KernelChoice& choice) {
  cuda::use_device(device);
  cuda::KernelRig rig(choice);
  cuda::time_row_kernels(rig);
  cuda::time_matrix_kernels(rig);
  cuda::time_code_kernels(rig);
  cuda::time_attention_kernels(rig);
}

}  // namespace minfer
