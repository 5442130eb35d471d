#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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
// Shared memory begins as NaN. At times a thread, a warp or a block does not run for many rounds,
// so that the others come far ahead of it. Clusters run one after the other. The blocks of a
// cooperative launch all run at the same time: the flagged words that they exchange become visible
// late and in any order, and a loop that waits lets other threads run between two tries.
//
// The emulator does not detect: missing fences; a missing barrier between stores to shared memory
// and the wgmma instructions of other warps that read them; a thread's own cp.async copies that
// arrive before it waits for them; code that needs more registers than it is given; bank conflicts;
// and it measures no time.
namespace minfer::emulated {

// ---- the runtime ------------------------------------------------------------------------------

// The number of SMs of the card: few, so that small GEMMs take several rounds.
constexpr int kBlocksAtOnce = 6;
// The static shared memory of a block, and what of it a kernel is said to use. That is so large
// that a ring in the dynamic shared memory has few slots, unless a test sets less.
constexpr int kStaticSharedBytes = 120 << 10;
inline int g_static_shared_bytes = kStaticSharedBytes;

// A launch: blocks of n_threads threads, in clusters of `cluster` blocks; all of them are one if it
// is cooperative.
struct Grid {
  dim3 blocks;
  int n_threads, shared_bytes, cluster;
  bool is_cooperative;
  std::function<void()> kernel;

  int n_blocks() const { return static_cast<int>(blocks.x * blocks.y * blocks.z); }
};
void run(const Grid& grid);
// Runs cooperative launches of as many threads and bytes at the same time, as several cards do.
void run_together(const std::vector<Grid>& grids);
// Does the work of a stream at once, or, while a graph is captured, whenever that graph is
// launched.
void submit(std::function<void()> work);
void submit(Grid grid);
// From here on graphs are launched in sets of n_cards, whose work is done together.
void set_cards(int n_cards);

template <typename... Params, typename... Args>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  int cluster = 1;
  bool is_cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      cluster = static_cast<int>(attribute.val.clusterDim.x);
    } else if (attribute.id == cudaLaunchAttributeCooperative) {
      cluster = static_cast<int>(config->gridDim.x);
      is_cooperative = true;
    }
  }
  const std::tuple<std::decay_t<Params>...> values(args...);
  submit(Grid{config->gridDim, static_cast<int>(config->blockDim.x),
              static_cast<int>(config->dynamicSmemBytes), cluster, is_cooperative,
              [=] { std::apply([&](const auto&... value) { kernel(value...); }, values); }});
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
dim3 block_index();
dim3 n_blocks();
int n_threads();
int cluster_rank();

uint8_t* dynamic_shared();
uint8_t* static_shared(int n_bytes);
uint32_t shared_address(const void* p);
// The cluster-wide address of the same place in block `rank`.
uint32_t shared_address_in(const void* p, int rank);
float load_cluster(uint32_t address);
// Lands later, and in any order, at a cluster-wide address; the mbarrier in the same block, at
// another one, counts its bytes.
void store_to_block(uint32_t to, const float (&x)[4], uint32_t barrier);

void block_barrier();
bool block_barrier_or(bool condition);  // whether it holds for any thread of the block
void named_barrier(int id, int n_threads);
void named_barrier_arrive(int id, int n_threads);  // arrives without waiting
void cluster_barrier();
void warp_barrier();

void mbarrier_init(uint64_t* barrier, int arrivals);
void mbarrier_expect(uint64_t* barrier, int bytes);
void mbarrier_arrive(uint64_t* barrier);
void mbarrier_arrive_in(uint64_t* barrier, int rank);
void mbarrier_wait(uint64_t* barrier, int parity);
bool mbarrier_is_complete(uint32_t barrier, int parity);

void before_next_try();  // lets other threads run
// How often a clock has been read, this time included: what it shows.
inline uint64_t count_readings() {
  static uint64_t n = 0;
  return ++n;
}
// The store becomes visible later, also to the thread itself; see ptx::store_word.
void store_word(uint4* to, const uint4& word);

void tensor_load(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int x, int y, int z,
                 bool to_both);
enum class Write { Store, Add };
void tensor_store(const CUtensorMap* map, const void* shared, int x, int y, int z, Write how);
void bulk_copy(void* to_shared, const void* from, int n_bytes, uint64_t* barrier);
void prefetch(const void* from, int n_bytes);  // changes nothing, but must be possible
void bulk_commit();
void bulk_wait(int pending);

void copy_async(void* to_shared, const void* from, int n_bytes, int n_zeros);
void copy_async_commit();
void copy_async_wait(int pending);
void copy_async_arrive(uint64_t* barrier);  // after the copies that are not committed

// Stores or loads n matrices of 8 x 8 halves; see ptx::store_matrix_x4, ptx::load_matrices.
void store_matrices(void* row, const uint32_t* values, int n, bool transposed);
void load_matrices(const void* row, uint32_t* values, int n, bool transposed = false);

// Sets the registers of this thread from here on; waits until the block has them free. At launch,
// the threads of a block have as many each as fit.
void set_registers(int n, bool grows);

enum class Half { F16, Bf16, TwoCodes };  // TwoCodes only for wgmma
// d += a bT, 16 x 8 x 16; see ptx::multiply_16x8x16
void multiply_16x8x16(float* d, const uint32_t* a, const uint32_t* b, Half type);
// d = a bT + c, 16 x 8 x 32, of numbers of 8 bits; see ptx::mma_m16n8k32
void multiply_16x8x32(int* d, const uint32_t* a, const uint32_t* b, const int* c,
                      bool a_is_unsigned);
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

// Exchanges among the lanes of a warp, which all call: the value of from_lane; the lanes for which
// the condition holds, as bits.
uint32_t exchange(uint32_t value, int from_lane);
void require_whole_warp(unsigned lanes);
unsigned ballot(bool condition);

template <int (*kValue)()>
struct Index {
  struct {
    operator unsigned() const { return static_cast<unsigned>(kValue()); }
  } x;
};
template <dim3 (*kValue)()>
struct Indices {
  template <unsigned dim3::*kDim>
  struct Of {
    operator unsigned() const { return kValue().*kDim; }
  };
  Of<&dim3::x> x;
  Of<&dim3::y> y;
  Of<&dim3::z> z;
};

}  // namespace minfer::emulated

// ---- what CUDA C++ has and C++ has not, for every file of kernels ------------------------------

inline constexpr minfer::emulated::Index<minfer::emulated::thread_index> threadIdx;
inline constexpr minfer::emulated::Indices<minfer::emulated::block_index> blockIdx;
inline constexpr minfer::emulated::Index<minfer::emulated::n_threads> blockDim;
inline constexpr minfer::emulated::Indices<minfer::emulated::n_blocks> gridDim;

inline void __syncthreads() { minfer::emulated::block_barrier(); }
inline bool __syncthreads_or(bool condition) {
  return minfer::emulated::block_barrier_or(condition);
}
inline void __syncwarp() { minfer::emulated::warp_barrier(); }
inline void __threadfence_block() {}
inline void __trap() { std::abort(); }
inline void __nanosleep(unsigned) { minfer::emulated::before_next_try(); }
template <typename T>
T atomicAdd(T* to, T more) {
  return std::exchange(*to, *to + more);
}
int atomicAdd_block(int*, int);  // declared for code that only checkable builds run
int atomicExch_block(int*, int);
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;  // prevents an fma
  return product;
}
template <typename T>
T __shfl_sync(unsigned lanes, T value, int from_lane) {
  minfer::emulated::require_whole_warp(lanes);
  if constexpr (sizeof(T) == 8) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const uint64_t high = minfer::emulated::exchange(uint32_t(bits >> 32), from_lane);
    return std::bit_cast<T>(high << 32 | minfer::emulated::exchange(uint32_t(bits), from_lane));
  } else {
    return std::bit_cast<T>(minfer::emulated::exchange(std::bit_cast<uint32_t>(value), from_lane));
  }
}
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, int distance) {
  const int lane = minfer::emulated::thread_index() % 32;
  return __shfl_sync(lanes, value, lane + distance < 32 ? lane + distance : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return __shfl_sync(lanes, value, minfer::emulated::thread_index() % 32 ^ mask);
}
inline unsigned __ballot_sync(unsigned lanes, bool condition) {
  minfer::emulated::require_whole_warp(lanes);
  return minfer::emulated::ballot(condition);
}
inline bool __any_sync(unsigned lanes, bool condition) {
  return __ballot_sync(lanes, condition) != 0;
}
inline bool __all_sync(unsigned lanes, bool condition) { return !__any_sync(lanes, !condition); }
inline uint32_t __reduce_max_sync(unsigned lanes, uint32_t value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    value = std::max(value, __shfl_xor_sync(lanes, value, mask));
  }
  return value;
}
inline uint32_t __reduce_min_sync(unsigned lanes, uint32_t value) {
  return ~__reduce_max_sync(lanes, ~value);
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(unsigned(bits)) + 1; }
inline void* __cvta_shared_to_generic(size_t address) {
  return minfer::emulated::dynamic_shared() + address;
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
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
using std::max;
using std::min;

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*)(Params...), cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Params...)) {
  attributes->sharedSizeBytes = size_t(minfer::emulated::g_static_shared_bytes);
  return cudaSuccess;
}
template <typename... Params>
cudaError_t cudaOccupancyMaxActiveClusters(int* n, void (*)(Params...),
                                           const cudaLaunchConfig_t* config) {
  const unsigned cluster = config->attrs[0].val.clusterDim.x;
  *n = std::max(minfer::emulated::kBlocksAtOnce / static_cast<int>(cluster), 1);
  return cudaSuccess;
}

#undef __launch_bounds__
#define __launch_bounds__(...)
#define cudaLaunchKernelEx ::minfer::emulated::launch
