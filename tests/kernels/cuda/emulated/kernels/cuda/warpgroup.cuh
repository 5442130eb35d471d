#pragma once

#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda::ptx {

inline int warpgroup_index() { return emulated::thread_index() / 128; }
inline void wgmma_fence() {}
inline void wgmma_commit() { emulated::wgmma_commit(); }
template <int kPending>
void wgmma_wait() {
  emulated::wgmma_wait(kPending);
}
template <int kCount>
void shrink_registers() {
  emulated::set_registers(kCount, /*grows=*/false);
}
template <int kCount>
void grow_registers() {
  emulated::set_registers(kCount, /*grows=*/true);
}

}  // namespace minfer::cuda::ptx
