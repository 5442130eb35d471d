#pragma once

#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/moe/moe.h"

// What the files of the experts' GEMM have in common.
namespace minfer::cuda {

constexpr int kExpertWarps = 8, kExpertThreads = 32 * kExpertWarps;
constexpr int kExpertRows = 128;  // of x, in a tile
constexpr int kExpertStages = 3;

// What a kernel is compiled for. Plain: F16 scales and no minimums; U4 and U8: all other scales of
// groups, which ask in their loops. Powers: MXFP4's F32 scales, which are powers of two. Products:
// scales that are such (quant/packed_layout.h); they come last.
enum class ExpertFormat {
  Float,
  U4Plain,
  U8Plain,
  TablePlain,
  TablePowers,
  U4,
  U8,
  U2Products,
  U3Products,
  U4Products,
  U5Products,
  U6Products,
  TableProducts
};
ExpertFormat format_of(const Matrix& w);
__host__ __device__ constexpr bool are_products(ExpertFormat format) {
  return format >= ExpertFormat::U2Products;
}
__host__ __device__ constexpr bool has_plain_scales(ExpertFormat format) {
  return format == ExpertFormat::U4Plain || format == ExpertFormat::U8Plain ||
         format == ExpertFormat::TablePlain;
}
__host__ __device__ constexpr GemvWeights weights_of(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::Float:
      return GemvWeights::Float;
    case ExpertFormat::U2Products:
      return GemvWeights::U2;
    case ExpertFormat::U3Products:
      return GemvWeights::U3;
    case ExpertFormat::U4Plain:
    case ExpertFormat::U4:
    case ExpertFormat::U4Products:
      return GemvWeights::U4;
    case ExpertFormat::U5Products:
      return GemvWeights::U5;
    case ExpertFormat::U6Products:
      return GemvWeights::U6;
    case ExpertFormat::U8Plain:
    case ExpertFormat::U8:
      return GemvWeights::U8;
    case ExpertFormat::TablePlain:
    case ExpertFormat::TablePowers:
    case ExpertFormat::TableProducts:
      return GemvWeights::Table;
  }
  return GemvWeights::Float;
}

struct ExpertGemmParams {
  const void* x;
  void* out;                              // [n_pairs, out_dim]
  const ExpertPlace *places, *up_places;  // [n_experts]; up_places: with SwiGlu
  SwiGluClamp clamp;
  const int32_t *begins, *pairs;
  int n_experts, n_active;
  bool x_by_place, out_in_fragment_order;
  int in_dim, out_dim, n_steps;  // steps of 64 columns
  int column_blocks;             // of out, each of 256 rows of weights
  int n_row_tiles;
  // Packed codes: PackedLayout.
  int64_t row_tile_bytes;
  int n_units;  // of a row
  int units_of_step;
  int unit_shift;  // log2 of the columns of a unit, at most 64: those of one step
  int step_shift;  // log2 of the steps that a unit covers; for row scales, a shift to 0
  bool scales_are_f32, has_mins;
  int record_bytes, record_scale_bytes;  // of products
  TableBytes table;                      // of GemvWeights::Table
};

// The kernel and its shared memory without the counts of the experts' tiles.
struct ExpertGemmKernel {
  void (*kernel)(ExpertGemmParams);
  int shared_bytes, n_threads;
  int rows_of_tile;  // of x, at most
};
template <typename T>
ExpertGemmKernel expert_gemm_kernel_of(ExpertFormat format, bool is_swiglu);
// The same by wgmma.
template <typename T>
ExpertGemmKernel expert_wgmma_kernel_of(ExpertFormat format, bool is_swiglu);

// The shared memory of a block with the counts of the experts' tiles, and whether the card has it.
int64_t shared_bytes_of(const ExpertGemmKernel& kernel, int64_t n_experts);
bool fits_card(const ExpertGemmKernel& kernel, int64_t n_experts);
// Returns false if no kernel takes the shape or the format.
bool set_params(ExpertGemmParams& params, const ExpertCall& call);
void launch_expert_gemm(cudaStream_t stream, const ExpertGemmKernel& kernel,
                        const ExpertGemmParams& params, const Routing& routing);

// make.operator()<F>(), with F = format known at compile time.
template <typename Make>
ExpertGemmKernel with_format(ExpertFormat format, const Make& make) {
  using enum ExpertFormat;
  switch (format) {
    case Float:
      return make.template operator()<Float>();
    case U4Plain:
      return make.template operator()<U4Plain>();
    case U8Plain:
      return make.template operator()<U8Plain>();
    case TablePlain:
      return make.template operator()<TablePlain>();
    case TablePowers:
      return make.template operator()<TablePowers>();
    case U4:
      return make.template operator()<U4>();
    case U8:
      return make.template operator()<U8>();
    case U2Products:
      return make.template operator()<U2Products>();
    case U3Products:
      return make.template operator()<U3Products>();
    case U4Products:
      return make.template operator()<U4Products>();
    case U5Products:
      return make.template operator()<U5Products>();
    case U6Products:
      return make.template operator()<U6Products>();
    case TableProducts:
      return make.template operator()<TableProducts>();
  }
  throw Error(ErrorKind::Internal, "experts of an unknown format");
}

}  // namespace minfer::cuda
