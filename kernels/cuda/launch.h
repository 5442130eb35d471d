#pragma once

#include <cstdint>

#include "kernels/base/tensor.h"
#include "kernels/cuda/check.h"

namespace minfer::cuda {

// Of the current card.
inline int card_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Whether it begins where words of 16 bytes do.
inline bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
inline bool aligned16(const Tensor& tensor) { return aligned16(tensor.data); }

// Whether the kernels of this build, as this card runs them, are of sm_90 and so contain
// wait_for_predecessor(). A Hopper card runs PTX of older ones too, without it.
bool kernels_are_of_sm90();

// Launches `kernel` so that it may begin while the one before it in the stream still runs
// (programmatic dependent launch). The kernel MUST execute ptx::wait_for_predecessor() in every
// block before it reads what earlier kernels wrote, or writes anything at all in global memory;
// what comes before that may read weights only. ptx::let_successor_begin() allows the same to the
// next one. Kernels for cards below sm_90 have neither, and begin one after the other.
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
