#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/gemv/experts.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/quant/packed_layout.h"

// The parameters that gemv.cu passes to its kernel.
namespace minfer::cuda {

constexpr int kGemvWarpsLog = 4, kGemvWarps = 1 << kGemvWarpsLog;
constexpr int kGemvThreads = 32 * kGemvWarps;
// The most stages of the ring of a warp.
constexpr int kMostStages = 4;
// log2 of the warps of a team (GemvRun): two for floats, one for codes.
__host__ __device__ constexpr int team_shift(bool is_packed) { return is_packed ? 0 : 1; }
constexpr int kMaxGemvParts = 3;
constexpr int kNormFloats = kGemvWarps + int(kMaxGemvTokens);  // of StagedNorms

// Float, or the form of packed codes.
enum class GemvWeights { Float, U2, U3, U4, U5, U6, U8, Table };
GemvWeights weights_of(const Matrix& w);
constexpr GemvWeights weights_of(CodeForm form) { return GemvWeights(int(form) + 1); }
// Not of Float.
__host__ __device__ constexpr CodeForm form_of(GemvWeights weights) {
  return CodeForm(int(weights) - 1);
}
static_assert(form_of(GemvWeights::U2) == CodeForm::U2 &&
              form_of(GemvWeights::Table) == CodeForm::Table);
__host__ __device__ constexpr int high_bits_of(GemvWeights weights) {
  return weights == GemvWeights::Float ? 0 : high_bits_of(form_of(weights));
}
// What a warp multiplies in one step: of floats 16 rows of 64 columns.
__host__ __device__ constexpr int chunk_bytes_of(GemvWeights weights) {
  return weights == GemvWeights::Float ? 2048 : chunk_bytes_of(bits_of(form_of(weights)));
}
// Products: records of a chunk (quant/packed_layout.h).
enum class GemvScales { F16, F16Mins, F32, F32Mins, Products, ProductsMins };
__host__ __device__ constexpr bool has_mins(GemvScales kind) {
  return kind == GemvScales::F16Mins || kind == GemvScales::F32Mins ||
         kind == GemvScales::ProductsMins;
}
enum class InputNorm { None, Rms, Layer };
// What a kernel is compiled for. Code costs time even where it does not run, so LayerNorm and rare
// epilogues are in one kernel, Any; Copied, RmsRow and RmsRows take Epilogue::Store, Accumulate and
// SwiGlu. Those of experts come last.
enum class GemvUse {
  Copied,   // no norm: x is staged as it is
  RmsRow,   // one row behind an RMSNorm
  RmsRows,  // several rows behind an RMSNorm
  Any,      // any norm, any epilogue
  GateUp,   // of the chosen experts: one row behind an RMSNorm
  Down,     // of the chosen experts: no norm
};
__host__ __device__ constexpr bool is_of_experts(GemvUse use) { return use >= GemvUse::GateUp; }
// Whether the kernel subtracts the zero code from each code; else it adds its product with sums of
// the input, which is faster for F16 unless codes are bytes: a pass of four rows of U4 would take a
// tenth longer.
template <typename T>
__host__ __device__ constexpr bool subtracts(GemvWeights weights, GemvScales scales) {
  return !std::is_same_v<T, __half> || (weights == GemvWeights::U8 && !has_mins(scales));
}
// Whether it needs sums of the input, for minimums or for that product.
template <typename T>
__host__ __device__ constexpr bool needs_sums(GemvWeights weights, GemvScales scales) {
  return weights != GemvWeights::Float && (has_mins(scales) || !subtracts<T>(weights, scales));
}

struct GemvPartParams {
  const void* weights;
  const void* scales;
  const float* mins;
  void* out;
  const void* bias;
  int out_dim;
};

// The chosen experts of rows of x. Blocks blocks_of_row * i and following work on row i, for which
// everything else in GemvParams is as if it were alone.
struct GemvExperts {
  int n_active;                  // 0: the GEMV has no experts
  const ExpertPlace* places[2];  // [n_experts] of each matrix of a pair, or of the only one
  const float* logits;           // [n_rows, n_experts], of the router
  Router router;
  SwiGluClamp clamp;             // of GateUp
  int blocks_of_row, row_tiles;  // row_tiles: of one matrix
  Divisor by_blocks_of_row, by_row_tiles, by_tiles_of_round;
};

// What a block holds of them in shared memory, for each of the n_active.
struct GemvExpert {
  ExpertPlace places[2];
  float weight;
};

struct GemvParams {
  GemvPartParams parts[kMaxGemvParts];  // all of one format
  const void* x;                        // [n_tokens, in_dim] T, or F32 before a norm
  const void* norm_weight;
  const void* norm_bias;
  float eps;
  InputNorm norm;
  Epilogue epilogue;
  bool out_is_f32, scales_are_f32;
  int n_tokens, in_dim;
  // A block takes every gridDim.x-th of n_tiles tiles of 16 rows. With `pairs` (gates), its even
  // tiles are of gate and its odd tiles of up. Otherwise, row tile r of the launch is in part
  // (r >= ends[0]) + (r >= ends[1]), whose first row tile is begins[part].
  bool pairs;
  int ends[kMaxGemvParts - 1], begins[kMaxGemvParts];
  int n_tiles;           // tiles of all parts; with `pairs`, of the first part
  int rounds, n_longer;  // n_tiles / number of blocks: quotient and remainder
  int tiles_of_round;    // 2 with `pairs`, n_active for Down, else 1
  int n_chunks;          // per row tile
  // By n_chunks; by the steps of a block with `rounds`, and with one more; by n_tokens (not with
  // experts).
  Divisor by_chunks, by_steps[2], by_tokens;
  int row_tile_bytes;  // codes; 0 for float weights
  int scale_bytes;     // per chunk; of products, of a record, with its mins
  int min_bytes;       // per chunk, if they do not lie with the scales
  int unit_shift;      // log2 of the columns that a scale covers
  // Sums of activations: log2 of the columns of a sum, number of sums, floats from sum to sum.
  int sum_shift, n_sums, sum_stride;
  float sum_factor;         // by which the sums are multiplied
  int x_columns, x_stride;  // staged input: columns with padding, elements from row to row
  int n_stages, slot_bytes, ring_bytes;  // of the ring of each warp
  int early_stages;                      // of them, copied in front of the input
  int shared_bytes;                      // per block: at least gemv_shared()
  int tokens_shift;                      // log2 of the most tokens of a launch, rounded up
  int n_partials;                        // partial sums, of 16 rows and all tokens each
  TableBytes table;                      // of GemvWeights::Table
  GemvExperts experts;
};

// The norm and the rows of x of a launch: fields of GemvParams, or what follows from kUse.
struct GemvInput {
  InputNorm norm;
  int n_tokens, tokens_shift;  // as in GemvParams
  // Whether the scale of an RMSNorm is applied to the sums (stage_unscaled()). A single row is read
  // twice instead: with its scale in the sums, a token of gpt-oss took 4 % longer.
  bool scale_follows;

  // Whether stage_unscaled() makes the sums of activations, too, rather than sum_units(): a pass of
  // four rows of INT4 takes 1 % less time by it, one of eight 1 % more.
  __host__ __device__ bool makes_sums() const { return n_tokens <= 4; }
  // Warps that stage the input of a token.
  __host__ __device__ int warps_per_token() const { return kGemvWarps >> tokens_shift; }
};
template <GemvUse kUse = GemvUse::Any>
__host__ __device__ inline GemvInput input_of(const GemvParams& p) {
  using enum GemvUse;
  const GemvInput read{p.norm, p.n_tokens, p.tokens_shift,
                       p.norm == InputNorm::Rms && p.n_tokens > 1};
  if (kUse == Copied || kUse == Down) {
    return {InputNorm::None, read.n_tokens, read.tokens_shift, false};
  }
  if (kUse == RmsRow || kUse == GateUp) return {InputNorm::Rms, 1, 0, false};
  if (kUse == RmsRows) return {InputNorm::Rms, read.n_tokens, read.tokens_shift, true};
  return read;
}
// The use that a launch is of.
inline GemvUse use_of(const GemvParams& p) {
  if (p.experts.n_active > 0) return p.pairs ? GemvUse::GateUp : GemvUse::Down;
  const bool is_usual = p.epilogue == Epilogue::Store || p.epilogue == Epilogue::Accumulate ||
                        p.epilogue == Epilogue::SwiGlu;
  if (!is_usual || p.norm == InputNorm::Layer) return GemvUse::Any;
  if (p.norm == InputNorm::None) return GemvUse::Copied;
  return p.n_tokens == 1 ? GemvUse::RmsRow : GemvUse::RmsRows;
}

// Bytes of shared memory, in this order: ring, staged input, sums of activations, what a norm
// leaves (StagedNorms), partial sums, with experts the chosen ones and the results of each tile.
struct GemvShared {
  int ring, input, sums, norms, partials, experts, results, total;
};
// The most tiles that a block takes.
__host__ __device__ inline int most_tiles(const GemvParams& p) {
  return (p.rounds + (p.n_longer > 0 ? 1 : 0)) * p.tiles_of_round;
}
__host__ __device__ inline GemvShared gemv_shared(const GemvParams& p, const GemvInput& input) {
  GemvShared at{};
  at.ring = 0;
  at.input = kGemvWarps * p.ring_bytes;
  at.sums = at.input + input.n_tokens * p.x_stride * 2;
  at.norms = at.sums + p.n_sums * p.sum_stride * 4;
  at.partials = at.norms + (input.scale_follows ? kNormFloats * 4 : 0);
  at.experts = at.partials + p.n_partials * 16 * input.n_tokens * 4;
  at.results = at.experts + p.experts.n_active * int(sizeof(GemvExpert));
  at.total = at.results + (p.experts.n_active > 0 ? most_tiles(p) * 16 * 4 : 0);
  return at;
}

// scales_in_tile: the number of scales that a row has in 64 columns: 0 (one scale for the whole
// row, or float weights; the row scales may be F32 even for GemvScales::F16), 1 (also if a scale
// covers more columns), 2 or 4; Table: 2 alone, without minimums. Of products there is what GGUF's
// formats need (group_format()).
template <typename T>
auto gemv_kernel_of(GemvWeights weights, int scales_in_tile, GemvScales scales, GemvUse use)
    -> void (*)(GemvParams);

// The same for the chosen experts.
template <typename T>
auto expert_gemv_kernel_of(GemvWeights weights, int scales_in_tile, GemvScales scales, GemvUse use)
    -> void (*)(GemvParams);

// Computes any shape and any format, slowly (gemv_plain.cu).
void gemv_plain(cudaStream_t stream, Tensor x, const GemvNorm* norm,
                std::span<const GemvPart> parts, Epilogue epilogue);

}  // namespace minfer::cuda
