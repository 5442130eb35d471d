#pragma once

#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda::ptx {

inline void prefetch_tensor_map(const CUtensorMap*) {}
inline void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y) {
  emulated::tensor_load(to_shared, map, barrier, x, y, 0, /*to_both=*/false);
}
inline uint64_t l2_policy(bool) { return 0; }
inline void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y,
                        uint64_t /*policy*/) {
  tensor_load(to_shared, map, barrier, x, y);
}
inline void tensor_load_to_both(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x,
                                int y) {
  emulated::tensor_load(to_shared, map, barrier, x, y, 0, /*to_both=*/true);
}
inline void tensor_store(const CUtensorMap* map, const void* shared, int x, int y, int z = 0) {
  emulated::tensor_store(map, shared, x, y, z, emulated::Write::Store);
}
inline void tensor_add(const CUtensorMap* map, const void* shared, int x, int y) {
  emulated::tensor_store(map, shared, x, y, 0, emulated::Write::Add);
}
inline void bulk_commit() { emulated::bulk_commit(); }
template <int kPending>
void bulk_wait_read() {
  emulated::bulk_wait(kPending);
}
template <int kPending>
void bulk_wait() {
  emulated::bulk_wait(kPending);
}
inline void fence_for_copy_engine() {}

inline void named_barrier(int id, int n_threads) { emulated::named_barrier(id, n_threads); }

inline void store_matrix_x4(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t values[] = {a, b, c, d};
  emulated::store_matrices(row, values, 4, /*transposed=*/false);
}
inline void store_matrix_x2_transposed(void* row, uint32_t a, uint32_t b) {
  const uint32_t values[] = {a, b};
  emulated::store_matrices(row, values, 2, /*transposed=*/true);
}

inline int cluster_rank() { return emulated::cluster_rank(); }
inline void mbarrier_arrive_in(uint64_t* barrier, int rank) {
  emulated::mbarrier_arrive_in(barrier, rank);
}
inline float load_cluster(uint32_t address) { return emulated::load_cluster(address); }

}  // namespace minfer::cuda::ptx
