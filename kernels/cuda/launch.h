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

}  // namespace minfer::cuda
