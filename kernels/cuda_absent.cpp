#include "kernels/backend.h"
#include "kernels/bench.h"
#include "kernels/comm/communicator.h"

// In place of kernels/cuda in a build without it.
namespace minfer {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::Gpu, "this build has no CUDA backend; --device cpu runs here");
}

}  // namespace

int n_cuda_devices() { return 0; }

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) { refuse(); }

std::unique_ptr<RankLinks> make_card_links(std::span<Backend* const>) { refuse(); }

CudaLimits measure_cuda_limits(int) { refuse(); }

double measure_cuda_read_bandwidth(int) { refuse(); }

void time_cuda_kernels(int, const KernelChoice&) { refuse(); }

}  // namespace minfer
