#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>

// Runs kernels on the CPU, so that they are tested where there is no card. Their own source is
// compiled as C++ with the headers below kernels/, which take the place of the real headers of the
// same names and have the same functions, one for each instruction.
//
// Each thread of a cluster is a context of its own, which runs until it waits; the order of threads
// changes from round to round. What a card may do late happens as late as the program allows, so
// that a missing wait gives wrong results: wgmma instructions run when they are waited for, TMA
// stores when their shared memory is waited for, TMA loads at any time and in any order. Errors
// that can be detected at once end the process: too many arrivals at a barrier, threads that differ
// where they must not, operations that are still in flight at the end, and a wait that never ends.
// Shared memory begins as NaN. Clusters run one after the other.
//
// The emulator does not detect: missing fences; a missing barrier between stores to shared memory
// and the wgmma instructions of other warps that read them; a thread's own cp.async copies that
// arrive before it waits for them; code that needs more registers than it is given; bank conflicts;
// and it measures no time.
namespace minfer::emulated {

// ---- the runtime ------------------------------------------------------------------------------

// The number of SMs of the card: few, so that small GEMMs take several rounds.
constexpr int kBlocksAtOnce = 6;

void run(int n_blocks, int n_threads, int shared_bytes, int cluster,
         const std::function<void()>& kernel);

template <typename... Params, typename... Args>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  int cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      cluster = static_cast<int>(attribute.val.clusterDim.x);
    }
  }
  const std::tuple<std::decay_t<Params>...> values(args...);
  run(static_cast<int>(config->gridDim.x), static_cast<int>(config->blockDim.x),
      static_cast<int>(config->dynamicSmemBytes), cluster,
      [&] { std::apply([&](const auto&... value) { kernel(value...); }, values); });
  return cudaSuccess;
}

// A tensor as TMA copies boxes of it; the innermost dimension comes first.
struct TensorMap {
  uint8_t* data;
  int rank, element_bytes, swizzle_bytes;  // the swizzle is as wide as a row of a box: 64 or 128
  int64_t extents[3], strides[2];          // strides in bytes, from the second dimension on
  int box[2];
};
CUtensorMap pack(const TensorMap& map);

// ---- what a thread calls ----------------------------------------------------------------------

int thread_index();
int block_index();
int n_blocks();
int n_threads();
int cluster_rank();

uint8_t* dynamic_shared();
uint32_t shared_address(const void* p);
// The cluster-wide address of the same place in block `rank`.
uint32_t shared_address_in(const void* p, int rank);
float load_cluster(uint32_t address);

void block_barrier();
void named_barrier(int id, int n_threads);
void named_barrier_arrive(int id, int n_threads);  // arrives without waiting
void cluster_barrier();
void warp_barrier();

void mbarrier_init(uint64_t* barrier, int arrivals);
void mbarrier_expect(uint64_t* barrier, int bytes);
void mbarrier_arrive(uint64_t* barrier);
void mbarrier_arrive_in(uint64_t* barrier, int rank);
void mbarrier_wait(uint64_t* barrier, int parity);

void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z,
                 bool to_both);
enum class Write { Store, Add };
void tensor_store(const CUtensorMap* map, const void* shared, int x, int y, int z, Write how);
void bulk_commit();
void bulk_wait(int pending);

void copy_async(void* to_shared, const void* from, int n_bytes, int n_zeros);
void copy_async_commit();
void copy_async_wait(int pending);

// Stores or loads n matrices of 8 x 8 halves; see ptx::store_matrix_x4, ptx::load_matrices.
void store_matrices(void* row, const uint32_t* values, int n, bool transposed);
void load_matrices(const void* row, uint32_t* values, int n);

// Sets the registers of this thread from here on; waits until the block has them free. At launch,
// the threads of a block have as many each as fit.
void set_registers(int n, bool grows);

enum class Half { F16, Bf16, TwoCodes };  // TwoCodes only for wgmma
// d += a bT, 16 x 8 x 16; see ptx::multiply_16x8x16
void multiply_16x8x16(float* d, const uint32_t* a, const uint32_t* b, Half type);
// An operand of wgmma. In shared memory: where its tile begins, in units of 16 bytes; its rows have
// 128 bytes along k.
struct Operand {
  uint64_t tile = 0;
  const uint32_t* registers = nullptr;  // for a: this thread's registers, instead of a tile
  int lead = 0;  // for b, if not 0: rows lie along n, and each 64 columns are `lead` bytes apart

  bool operator==(const Operand&) const = default;
};
// The wgmma instruction of a warpgroup, with n_sums accumulators per thread, int32 for codes; see
// ptx::wgmma.
void wgmma(void* d, int n_sums, const Operand& a, const Operand& b, bool accumulate, Half type);
void wgmma_commit();
void wgmma_wait(int pending);

template <typename T>
constexpr Half kHalf = std::is_same_v<T, __nv_bfloat16> ? Half::Bf16
                       : std::is_same_v<T, int8_t>      ? Half::TwoCodes
                                                        : Half::F16;

// Exchanges among the lanes of a warp, which all call: the value of from_lane; whether the
// condition of any lane holds.
uint32_t exchange(uint32_t value, int from_lane);
void require_whole_warp(unsigned lanes);
bool any_of_warp(bool condition);

template <int (*kValue)()>
struct Index {
  struct {
    operator unsigned() const { return static_cast<unsigned>(kValue()); }
  } x;
};

}  // namespace minfer::emulated

// ---- what CUDA C++ has and C++ has not, for every file of kernels ------------------------------

inline constexpr minfer::emulated::Index<minfer::emulated::thread_index> threadIdx;
inline constexpr minfer::emulated::Index<minfer::emulated::block_index> blockIdx;
inline constexpr minfer::emulated::Index<minfer::emulated::n_threads> blockDim;
inline constexpr minfer::emulated::Index<minfer::emulated::n_blocks> gridDim;

inline void __syncthreads() { minfer::emulated::block_barrier(); }
inline void __syncwarp() { minfer::emulated::warp_barrier(); }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;  // prevents an fma
  return product;
}
template <typename T>
T __shfl_sync(unsigned lanes, T value, int from_lane) {
  minfer::emulated::require_whole_warp(lanes);
  return std::bit_cast<T>(minfer::emulated::exchange(std::bit_cast<uint32_t>(value), from_lane));
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return __shfl_sync(lanes, value, minfer::emulated::thread_index() % 32 ^ mask);
}
inline bool __any_sync(unsigned lanes, bool condition) {
  minfer::emulated::require_whole_warp(lanes);
  return minfer::emulated::any_of_warp(condition);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= uint32_t(bytes >> (selector >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
  }
  return result;
}
inline float __fadd_rn(float a, float b) {
  volatile float sum = a + b;
  return sum;
}
inline int __float2int_rn(float x) { return x == x ? static_cast<int>(std::nearbyint(x)) : 0; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float normcdff(float x) { return std::erfc(-x * 0.70710678f) / 2; }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
using std::max;
using std::min;

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*)(Params...), cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... Params>
cudaError_t cudaOccupancyMaxActiveClusters(int* n, void (*)(Params...),
                                           const cudaLaunchConfig_t* config) {
  const unsigned cluster = config->attrs[0].val.clusterDim.x;
  *n = minfer::emulated::kBlocksAtOnce / static_cast<int>(cluster);
  return cudaSuccess;
}

#undef __launch_bounds__
#define __launch_bounds__(...)
#define cudaLaunchKernelEx ::minfer::emulated::launch
