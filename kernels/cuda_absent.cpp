#include "kernels/backend.h"

// In place of kernels/cuda in a build without it.
namespace minfer {

int n_cuda_devices() { return 0; }

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw Error(ErrorKind::Gpu, "this build has no CUDA backend; --device cpu runs here");
}

}  // namespace minfer
