#pragma once

#include <cstdint>

#include "kernels/base/tensor.h"
#include "kernels/cuda/check.h"

namespace minfer::cuda {

// The attribute of the current card.
inline int card_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Whether the address is a multiple of 16 bytes.
inline bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
inline bool aligned16(const Tensor& tensor) { return aligned16(tensor.data); }

// Whether the kernels of this build that the current card runs are compiled for sm_90, and so
// contain wait_for_predecessor(). A Hopper card also runs PTX for older cards, which does not.
bool kernels_are_of_sm90();

// Launches `kernel` with programmatic dependent launch (PDL): it may begin while the kernel before
// it in the stream still runs. Every block of the kernel MUST execute ptx::wait_for_predecessor()
// before it reads what earlier kernels wrote, or writes anything at all in global memory. Before
// that, it may read only weights and what was written before such launches began (attention_decode
// in launchers.h); and, by loads past L1 (__ldcg), what its predecessor has waited for, if that one
// calls let_successor_begin() only after its own wait (down of experts). ptx::let_successor_begin()
// lets the next kernel begin. Kernels for cards below sm_90 have neither, and run one after the
// other.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem_bytes,
            cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = kernels_are_of_sm90() ? 1 : 0;
  MINFER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// A launch with PDL, as launch(), and with clusters of `cluster` blocks.
class ClusterLaunch {
 public:
  ClusterLaunch(int blocks, int threads, size_t smem_bytes, int cluster, cudaStream_t stream) {
    attributes_[0].id = cudaLaunchAttributeClusterDimension;
    attributes_[0].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes_[0].val.clusterDim.y = attributes_[0].val.clusterDim.z = 1;
    attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[1].val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = static_cast<unsigned>(blocks);
    config_.blockDim = static_cast<unsigned>(threads);
    config_.dynamicSmemBytes = smem_bytes;
    config_.stream = stream;
    config_.attrs = cluster > 1 ? attributes_ : attributes_ + 1;
    config_.numAttrs = cluster > 1 ? 2 : 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  cudaLaunchConfig_t* config() { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

}  // namespace minfer::cuda
