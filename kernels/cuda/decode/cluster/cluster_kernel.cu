#include "kernels/cuda/decode/cluster/cluster_kernel.cuh"

namespace minfer::cuda {
namespace {

template <int kScales, bool kMins>
ClusterKernel kernel_for(int n_queries) {
  constexpr ClusterKernel kKernels[kMostClusterQueries] = {
      cluster_step_kernel<kScales, kMins, 1>, cluster_step_kernel<kScales, kMins, 2>,
      cluster_step_kernel<kScales, kMins, 3>, cluster_step_kernel<kScales, kMins, 4>};
  return kKernels[n_queries - 1];
}

}  // namespace

ClusterKernel cluster_kernel_of(const ClusterInstance& instance) {
  const int n = instance.n_queries;
  if (instance.has_half_pieces) {
    return instance.has_mins ? kernel_for<2, true>(n) : kernel_for<2, false>(n);
  }
  return instance.has_mins ? kernel_for<1, true>(n) : kernel_for<1, false>(n);
}

}  // namespace minfer::cuda
