#pragma once

#include <utility>

#include "kernels/cuda/check.h"

namespace minfer::cuda {

// Launches `kernel` so that it may begin while the one before it in the stream still runs
// (programmatic dependent launch). The kernel MUST execute ptx::wait_for_predecessor() in every
// block before it reads what earlier kernels wrote, or writes anything at all in global memory;
// what comes before that may read weights only. ptx::let_successor_begin() allows the same to the
// next one. Below sm_90 both do nothing.
//
// launch_clusters: blocks run in clusters of cluster.x * cluster.y * cluster.z, on sm_90; a cluster
// of one block is none, and goes to every card.
template <typename... Params, typename... Args>
void launch_clusters(void (*kernel)(Params...), dim3 grid, dim3 cluster, dim3 block,
                     size_t smem_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster.x;
  attributes[1].val.clusterDim.y = cluster.y;
  attributes[1].val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  MINFER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem_bytes,
            cudaStream_t stream, Args&&... args) {
  launch_clusters(kernel, grid, dim3(1), block, smem_bytes, stream, std::forward<Args>(args)...);
}

}  // namespace minfer::cuda
