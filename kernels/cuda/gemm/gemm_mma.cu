#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/gemm/mma.cuh"
#include "kernels/cuda/launch.h"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256;  // 2 x 4 warps, 64 x 32 accumulators each
constexpr int kM = 128, kN = 128;
constexpr int kStepK = 32;  // columns of k in a stage: 64 bytes per row
constexpr int kStages = 3;  // 48 KB
constexpr int kBand = 8;    // see place_of

struct Stage {
  uint4 x[kM][kStepK / 8], w[kN][kStepK / 8];
};
constexpr size_t kSmemBytes = kStages * sizeof(Stage);

// Swizzles the 16-byte chunks of a row, so that those of 8 rows in one column lie in 8 different
// groups of banks.
__device__ int swizzled(int row, int chunk) { return chunk ^ (row / 2 % 4); }

// Copies columns k ... k + 7 of a row to shared memory, with zeros past the last row and column.
template <typename T, bool kAligned>
__device__ void copy_chunk(uint4* to, const T* matrix, int row, int n_rows, int k, int n_columns) {
  if constexpr (kAligned) {
    const bool is_there = row < n_rows && k < n_columns;
    ptx::copy_async_16_or_zero(to, is_there ? matrix + int64_t{row} * n_columns + k : matrix,
                               is_there);
  } else {
    Vec<T> chunk;
#pragma unroll
    for (int i = 0; i < Vec<T>::kSize; ++i) {
      const bool is_there = row < n_rows && k + i < n_columns;
      chunk[i] = is_there ? matrix[int64_t{row} * n_columns + k + i] : from_float<T>(0);
    }
    *reinterpret_cast<Vec<T>*>(to) = chunk;
  }
}

// out_i = epilogue(x w_iT + bias_i) for the parts i; see Epilogue
//
//   x, w      [m, k], [n_i, k] T; kAligned: rows are 16-byte aligned
//   out       [m, n_i] T or F32
//   launch    a block computes one tile of kM x kN accumulators, a warp 64 x 32 of them. cp.async
//             copies stages of 32 columns of k, kStages - 1 stages ahead. With a gate, a warp's
//             columns are 16 of gate and the same 16 of up
//   maths     f32 sums over k in order, one rounding at the store
//   moves     2 (m k + n k) bytes and out; bound by its 2 m n k flops
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2)
    gemm_mma_kernel(const __grid_constant__ GemmArgs args, int tiles_m, int tiles_n) {
  auto* const stages = reinterpret_cast<Stage*>(ptx::dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp_m = thread / 32 / 4, warp_n = thread / 32 % 4;
  const bool has_gate = is_gated(args.epilogue);
  const GemmPlace place = place_of<kBand>(args, static_cast<int>(blockIdx.x),
                                          static_cast<int>(gridDim.x), tiles_m, tiles_n);
  const GemmArgs::Part& part = args.part[place.part];
  const int row = place.row_tile * kM, column = place.column_tile * (has_gate ? kN / 2 : kN);
  const auto* const x = static_cast<const T*>(args.x);
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();

  const auto load = [&](int step) {
    Stage& stage = stages[step % kStages];
    for (int i = thread; i < kM * (kStepK / 8); i += kThreads) {
      const int r = i / (kStepK / 8), chunk = i % (kStepK / 8), k = step * kStepK + chunk * 8;
      copy_chunk<T, kAligned>(&stage.x[r][swizzled(r, chunk)], x, row + r, args.m, k, args.k);
      const bool is_up = has_gate && r % 32 >= 16;
      const int weight_row = column + (has_gate ? r / 32 * 16 + r % 16 : r);
      copy_chunk<T, kAligned>(&stage.w[r][swizzled(r, chunk)],
                              static_cast<const T*>(is_up ? args.part[1].w : part.w), weight_row,
                              part.n, k, args.k);
    }
  };

  const int k_steps = (args.k + kStepK - 1) / kStepK;
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < k_steps) load(step);
    ptx::copy_async_commit();
  }
  float sums[4][4][4] = {};  // [16-row tile][8-column tile][mma accumulator]
  for (int step = 0; step < k_steps; ++step) {
    ptx::copy_async_wait<kStages - 2>();
    __syncthreads();  // this stage is copied, and all warps have read the one before it
    if (step + kStages - 1 < k_steps) load(step + kStages - 1);
    ptx::copy_async_commit();
    const Stage& stage = stages[step % kStages];
#pragma unroll
    for (int kk = 0; kk < kStepK / 16; ++kk) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = warp_m * 64 + i * 16 + lane % 16;
        ptx::load_matrices(a[i], ptx::shared_address(&stage.x[r][swizzled(r, kk * 2 + lane / 16)]));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int r = warp_n * 32 + j * 16 + lane / 16 * 8 + lane % 8;
        ptx::load_matrices(b[j],
                           ptx::shared_address(&stage.w[r][swizzled(r, kk * 2 + lane / 8 % 2)]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          ptx::multiply_16x8x16(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1],
                                T{});
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (has_gate && j >= 2) continue;
      const int first = column + warp_n * (has_gate ? 16 : 32) + j * 8 + lane % 4 * 2;
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        values[e] = sums[i][j][e] + bias_at<T>(part, first + e % 2);
        if (has_gate) {
          const float up = sums[i][(j + 2) % 4][e] + bias_at<T>(args.part[1], first + e % 2);
          visit_gate(args.epilogue,
                     [&](auto activation) { values[e] = activation(values[e]) * up; });
        }
      }
      activate(values, args.epilogue);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + warp_m * 64 + i * 16 + lane / 4 + e / 2 * 8;
        if (r < args.m && first + e % 2 < part.n) {
          put<T>(args, part.out, int64_t{r} * part.n + first + e % 2, values[e]);
        }
      }
    }
  }
}

}  // namespace

void gemm_mma(cudaStream_t stream, GemmArgs args) {
  const int tiles_m = static_cast<int>(ceil_div(args.m, kM));
  const int tiles_n = narrow<int>(set_tiles(args, args.has_gate() ? kN / 2 : kN));
  const dim3 grid(narrow<unsigned>(int64_t{tiles_m} * tiles_n));
  bool aligned = args.k % 8 == 0 && reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  for (int i = 0; i < args.n_parts; ++i) {
    aligned = aligned && reinterpret_cast<uintptr_t>(args.part[i].w) % 16 == 0;
  }
  visit_half(args.dtype, [&]<typename T>() {
    launch(aligned ? gemm_mma_kernel<T, true> : gemm_mma_kernel<T, false>, grid, kThreads,
           kSmemBytes, stream, args, tiles_m, tiles_n);
  });
}

}  // namespace minfer::cuda
