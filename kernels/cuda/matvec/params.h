#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launchers.h"

// What matvec.cu passes to its kernel.
namespace minfer::cuda {

constexpr int kMatvecWarpsLog = 4, kMatvecWarps = 1 << kMatvecWarpsLog;
constexpr int kMatvecThreads = 32 * kMatvecWarps;
constexpr int kMaxMatvecParts = 3;

enum class MatvecWeights { Float, U4, U8 };
enum class MatvecScales { F16, F16Mins, F32, F32Mins };
enum class InputNorm { None, Rms, Layer };

struct MatvecPartParams {
  const void* weights;
  const void* scales;
  const float* mins;
  void* out;
  const void* bias;
  int out_dim;
};

struct MatvecParams {
  MatvecPartParams parts[kMaxMatvecParts];  // of one format
  const void* x;                            // [n_tokens, in_dim] T, or F32 before a norm
  const void* norm_weight;
  const void* norm_bias;
  float eps;
  InputNorm norm;
  Epilogue epilogue;
  bool out_is_f32, scales_are_f32;
  int n_tokens, in_dim;
  // A block has every gridDim.x-th of n_tiles tiles of 16 rows; where gate and up go in pairs, its
  // tiles are even ones of gate and odd ones of up. Row tile r of the launch is in part
  // (r >= ends[0]) + (r >= ends[1]), whose first one is begins[part].
  bool pairs;
  int ends[kMaxMatvecParts - 1], begins[kMaxMatvecParts];
  int n_tiles;           // 16 rows each, of all parts; of the first where parts go in pairs
  int rounds, n_longer;  // n_tiles over the blocks: quotient, and remainder
  int n_chunks;          // of a row tile
  int row_tile_bytes;    // of codes
  int scale_bytes;       // of a chunk; mins: min_bytes
  int min_bytes;
  int unit_shift;                     // log2 of the columns of a scale
  int sum_shift, n_sums, sum_stride;  // sums of activations: columns, how many, tokens
  float sum_factor;                   // by which they are multiplied
  int x_columns, x_stride;            // staged: columns with padding, elements from row to row
  int n_stages, slot_bytes;           // of the ring of each warp
  int shared_bytes;                   // of a block: at least matvec_shared()
  int warps_per_token;                // when the input is staged
  int team_shift;                     // log2 of the warps that take turns along the columns
  int n_partials;                     // of 16 rows and all tokens
  int trigger_left;  // copies that a warp has yet to begin when it lets the successor begin
};

// Bytes of shared memory, in this order: ring, staged input, sums of activations, partial sums.
struct MatvecShared {
  int ring, input, sums, partials, total;
};
__host__ __device__ inline MatvecShared matvec_shared(const MatvecParams& p) {
  MatvecShared at{};
  at.ring = 0;
  at.input = kMatvecWarps * p.n_stages * p.slot_bytes;
  at.sums = at.input + p.n_tokens * p.x_stride * 2;
  at.partials = at.sums + p.n_sums * p.sum_stride * 4;
  at.total = at.partials + p.n_partials * 16 * p.n_tokens * 4;
  return at;
}

// What the benchmark compares.
struct MatvecTuning {
  int trigger_left = -1;     // as in MatvecParams; -1: at the kernel's begin, the fastest measured
  int team_shift_float = 1;  // team_shift of floats
  int team_shift_packed = 0;
};
// matvec() with choices other than its own.
void matvec_as(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
               std::span<const MatvecPart> parts, Epilogue epilogue, const MatvecTuning& tuning);

// scales_in_tile: of each row, in 64 columns: 0 (the row has one, or weights are floats; the scales
// may be F32 even for MatvecScales::F16), 1 (also where it reaches further), 2 or 4.
template <typename T>
auto matvec_kernel_of(MatvecWeights weights, int scales_in_tile, MatvecScales scales)
    -> void (*)(MatvecParams);

// Any shape and any format, slowly: matvec_plain.cu.
void matvec_plain(cudaStream_t stream, Tensor x, const MatvecNorm* norm,
                  std::span<const MatvecPart> parts, Epilogue epilogue);

}  // namespace minfer::cuda
