#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/math.h"

namespace minfer::cuda {
namespace {

// Fitted to measurements on an H200, where long products run at the clock that the power allows.
constexpr double kStepUs = 0.72;  // tensor cores: 64 columns of k in a tile of 128 x 256
constexpr double kTileUs = 1;     // epilogue
constexpr double kLaunchUs = 3;   // and the fill of the ring
constexpr double kSplitUs = 2;    // two barriers of a cluster, no overlap with a next tile
constexpr double kExchangeBytesPerUs = 60000;
constexpr double kLinesPerUs = 825;        // of 128 bytes, into an SM: 2 clocks each
constexpr double kReadBytesPerUs = 3.8e6;  // all SMs, from DRAM
constexpr double kSplitMustGain = 1.03;    // unsplit, a row's bits do not depend on the other rows
constexpr double kPairMustGain = 1.03;

// How much longer a sum takes in tiles of fewer columns.
double narrow_factor(int columns) { return columns < 192 ? 1.05 : columns < 256 ? 1.016 : 1; }

// What 128 bytes of a row cost: where they lie in two lines of 128 bytes, each costs as much as a
// whole one, and two rows share no line.
double lines_of_row(int64_t row_bytes) {
  if (row_bytes % 128 == 0) return 1;
  return row_bytes % 64 == 0 ? 1.8 : 2.3;
}

// Time of a plan = waves of tiles x (steps of k x time of a step + what a tile costs besides), or
// what the weights take to come from memory; a little more than the longer of the two where they
// are alike. A step takes what the tensor cores need, or
// what x and w need on their way into the SM if that is longer; a pair of tiles shares w. Splitting
// k pays where there are few tiles: it costs the exchange of partial sums.
double expected_us(const GemmArgs& args, const GemmCard& card, const GemmPlan& plan) {
  const int rows = rows_of(plan.tile), columns = columns_of(plan.tile);
  const int at_once = plan.is_paired || plan.split == 2 ? card.clusters_of_2 : card.blocks;
  if (at_once == 0) return std::numeric_limits<double>::infinity();
  int64_t tiles = 0;
  double weight_bytes = 0;
  for (int i = 0; i < args.n_parts; ++i) {
    weight_bytes += 2.0 * args.part[i].n * args.k;
    if (i < args.n_tiled_parts()) {
      tiles += ceil_div(args.part[i].n, args.is_swiglu() ? columns / 2 : columns);
    }
  }
  tiles *= ceil_div(args.m, plan.is_paired ? rows * 2 : rows);
  const double multiply_us = kStepUs * rows * columns / (128 * 256) * narrow_factor(columns);
  const double lines = std::min(rows, args.m) + (plan.is_paired ? columns / 2 : columns);
  const double step_us =
      std::max(multiply_us, lines * lines_of_row(int64_t{args.k} * 2) / kLinesPerUs);
  double tile_us = kTileUs + double(ceil_div(ceil_div(args.k, 64), plan.split)) * step_us;
  if (plan.split > 1) tile_us += kSplitUs + 4.0 * rows * columns / kExchangeBytesPerUs;
  const double tiles_us = double(ceil_div(tiles, at_once)) * tile_us;
  const double read_us = weight_bytes / kReadBytesPerUs;
  const double us = std::pow(std::pow(tiles_us, 4) + std::pow(read_us, 4), 0.25);
  return (kLaunchUs + us) * (plan.split > 1 ? kSplitMustGain : 1) *
         (plan.is_paired ? kPairMustGain : 1);
}

}  // namespace

int64_t set_tiles(GemmArgs& args, int columns) {
  int64_t total = 0;
  for (int i = 0; i < args.n_tiled_parts(); ++i) {
    args.part[i].n_tiles = static_cast<int>(ceil_div(args.part[i].n, columns));
    total += args.part[i].n_tiles;
  }
  return total;
}

std::vector<GemmPlan> all_plans(const GemmArgs& args) {
  std::vector<GemmPlan> plans;
  for (int tile = kGemmTiles; tile-- > 0;) {
    for (const GemmPlan& plan :
         {GemmPlan{GemmTile(tile), 1, false}, GemmPlan{GemmTile(tile), 1, true},
          GemmPlan{GemmTile(tile), 2, false}, GemmPlan{GemmTile(tile), 4, false}}) {
      if (hgemm_can(args, plan)) plans.push_back(plan);
    }
  }
  return plans;
}

GemmPlan plan_gemm(const GemmArgs& args, const GemmCard& card) {
  std::vector<GemmPlan> plans = all_plans(args);
  std::erase_if(plans, [](const GemmPlan& plan) { return plan.split == 4; });  // it never paid
  return *std::ranges::min_element(
      plans, {}, [&](const GemmPlan& plan) { return expected_us(args, card, plan); });
}

bool hgemm_can(const GemmArgs& args, const GemmPlan& plan) {
  const int columns = columns_of(plan.tile) / (args.is_swiglu() ? 2 : 1);
  if (plan.is_paired) return plan.split == 1 && rows_of(plan.tile) == 128;
  return plan.split == 1 || ((plan.split == 2 || plan.split == 4) && columns % 64 == 0 &&
                             ceil_div(args.k, 64) >= plan.split);
}

GemmArgs check_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue) {
  MINFER_CHECK(x.shape.rank == 2 && (x.dtype == DType::F16 || x.dtype == DType::BF16),
               "gemm: x is ", x.dtype, " ", x.shape);
  MINFER_CHECK(!parts.empty() && parts.size() <= kMaxGemmParts, "gemm: ", parts.size(), " parts");
  const bool is_swiglu = epilogue == Epilogue::SwiGlu;
  MINFER_CHECK(!is_swiglu || (parts.size() == 2 && parts[0].w.shape == parts[1].w.shape),
               "gemm: SwiGlu of ", parts.size(), " parts, the first ", parts[0].w.shape);
  GemmArgs args;
  args.x = x.data;
  args.m = narrow<int>(x.shape[0]);
  args.k = narrow<int>(x.shape[1]);
  args.n_parts = static_cast<int>(parts.size());
  args.dtype = x.dtype;
  args.out_is_f32 = parts[0].out.dtype == DType::F32;
  args.epilogue = epilogue;
  args.w_is_constant = std::ranges::all_of(parts, &GemmPart::w_is_constant);
  const bool wants_f32 = epilogue == Epilogue::Accumulate;
  const bool wants_half = epilogue != Epilogue::Accumulate && epilogue != Epilogue::Store;
  MINFER_CHECK(args.out_is_f32 ? !wants_half : !wants_f32, "gemm: out is ", parts[0].out.dtype);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [w, out, bias, w_is_constant] = parts[i];
    MINFER_CHECK(
        w.shape.rank == 2 && w.shape[0] > 0 && w.shape[1] == x.shape[1] && w.dtype == x.dtype,
        "gemm: w is ", w.dtype, " ", w.shape, ", x is ", x.dtype, " ", x.shape);
    MINFER_CHECK(!bias || (bias.dtype == x.dtype && bias.shape == Shape{w.shape[0]}),
                 "gemm: bias is ", bias.dtype, " ", bias.shape, ", w is ", w.shape);
    if (!is_swiglu || i == 0) {
      MINFER_CHECK(out.shape == (Shape{x.shape[0], w.shape[0]}) &&
                       out.dtype == parts[0].out.dtype &&
                       (out.dtype == DType::F32 || out.dtype == x.dtype),
                   "gemm: out is ", out.dtype, " ", out.shape, ", x ", x.shape, ", w ", w.shape);
    }
    args.part[i] = {w.data, out.data, bias.data, narrow<int>(w.shape[0]), 0};
  }
  return args;
}

void gemm(cudaStream_t stream, Tensor x, std::span<const GemmPart> parts, Epilogue epilogue) {
  const GemmArgs args = check_gemm(x, parts, epilogue);
  if (args.m == 0) return;
  MINFER_CHECK(args.k > 0, "gemm: x is ", x.shape);
  if (hgemm_takes(args)) {
    hgemm(stream, args);
  } else {
    gemm_mma(stream, args);
  }
}

}  // namespace minfer::cuda
