#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/base/math.h"

namespace minfer::cuda {
namespace {

struct TileCost {
  GemmTile tile;
  int m, n;
  int step;  // clocks for 64 columns of k, with x and w in L2
};

// step: the slope over k of the time of whole GEMMs, measured on an H200. 64x96, 64x176, 128x96 and
// 128x224 are not measured but follow the others; 256x192 takes as long per accumulator as 128x256;
// the transposed tiles have the values that rank whole GEMMs of 16 to 4096 rows correctly. The
// tensor cores alone would take m * n / 32 clocks; tiles of 64 rows are bound by how fast an SM
// loads.
constexpr std::array<TileCost, kGemmTiles> kTiles = {{{GemmTile::k64x96, 64, 96, 335},
                                                      {GemmTile::k64x128, 64, 128, 400},
                                                      {GemmTile::k64x176, 64, 176, 500},
                                                      {GemmTile::k128x96, 128, 96, 510},
                                                      {GemmTile::k128x128, 128, 128, 610},
                                                      {GemmTile::k128x192, 128, 192, 900},
                                                      {GemmTile::k128x224, 128, 224, 1025},
                                                      {GemmTile::k128x256, 128, 256, 1150},
                                                      {GemmTile::k256x192, 256, 192, 1725},
                                                      {GemmTile::k104x256, 104, 256, 980},
                                                      {GemmTile::k136x256, 136, 256, 1210},
                                                      {GemmTile::k152x128, 152, 128, 690},
                                                      {GemmTile::k152x192, 152, 192, 1035},
                                                      {GemmTile::k200x128, 200, 128, 915}}};
constexpr double kFillClocks = 1500;   // to fill the ring of stages
constexpr double kSplitClocks = 4000;  // two cluster barriers, no overlap with a next tile
constexpr double kExchangeBytesPerClock = 32;
constexpr double kSplitMustGain = 1.1;        // with split-K, a row's bits depend on m
constexpr double kTransposedMustGain = 1.05;  // the error of this model
constexpr double kPairMustGain = 1.05;        // the two blocks wait for each other
// The most rows of a tile that is compared in pairs: if rows of w are not aligned to 128-byte
// lines, pairs of 256 x 192 take 4 % longer than pairs of 128 x 256.
constexpr int kMostRowsOfPairs = 200;
// From this many rows on, the card runs at its power limit, and time follows energy. A block of a
// pair loads only half of the weights, so pairs then win with any tile that is best alone: each
// GEMM saves 0.2 to 0.4 % of a forward pass (docs/benchmarks/cuda_prefill_ways.csv).
constexpr int kRowsAtFullPower = 1024;
// Bytes that all SMs, and that one SM, read from DRAM per clock.
constexpr double kReadBytesPerClock = 2600, kReadBytesPerClockOfSm = 28;

// Clocks per accumulator of a tile's epilogue, while the tensor cores idle. If epilogues overlap
// the K loop of the next tile, only the last tile's counts.
double epilogue_clocks(Epilogue epilogue, const TileCost& tile) {
  switch (epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      return 1.0 / 32;
    case Epilogue::SwiGlu:
      return 3.0 / 32;
    case Epilogue::GeGluErf:
    case Epilogue::GeGluTanh:
      return 11.0 / 32;
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      return (gelu_lags(tile.m, tile.n) ? 6.0 : 11.0) / 32;
  }
  return 0;
}

const TileCost& cost_of(GemmTile tile) { return kTiles[static_cast<size_t>(tile)]; }

int out_columns(const GemmArgs& args, const TileCost& tile) {
  return args.has_gate() ? tile.n / 2 : tile.n;
}

// Clocks in which an SM loads 128 bytes of a row of x or w, measured on an H200 with loads alone.
// Rows that are not aligned to 128-byte lines take longer, and those not aligned to 32-byte sectors
// longest.
double row_clocks(int64_t k) {
  switch (std::gcd(2 * k, int64_t{128})) {
    case 128:
      return 2.15;
    case 64:
      return 2.5;
    case 32:
      return 2.8;
    default:
      return 4.3;
  }
}

// Clocks for 64 columns of k in a tile that has `rows` rows of x. With half of its rows or fewer, a
// consumer warpgroup idles, unless the tile is transposed; tiles of 64 rows are bound by their
// loads. Each block of a pair requests half of the weights.
double step_clocks(const TileCost& tile, int rows, int64_t k, bool is_paired) {
  double fraction = 1;
  if (tile.m == 64) {
    fraction = double(rows + tile.n) / (64 + tile.n);
  } else if (rows * 2 <= tile.m && !is_transposed(tile.m)) {
    fraction = 0.7;
  }
  const int asked_for = rows + (is_paired ? tile.n / 2 : tile.n);
  return std::max(fraction * tile.step, row_clocks(k) * asked_for);
}

// Clocks to read the weights from DRAM for n_tiles tiles, at most `blocks` at a time.
double read_clocks(double weight_bytes, int64_t n_tiles, int blocks) {
  const auto rate = [](int64_t busy) {
    return std::min(kReadBytesPerClock, kReadBytesPerClockOfSm * double(busy));
  };
  const int64_t last = n_tiles % blocks;
  double tiles_over_rate = double(n_tiles - last) / rate(blocks);
  if (last > 0) tiles_over_rate += double(last) / rate(last);
  return weight_bytes / double(n_tiles) * tiles_over_rate;
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

bool plan_fits(const GemmArgs& args, const GemmPlan& plan) {
  const TileCost& tile = cost_of(plan.tile);
  const int columns = out_columns(args, tile);
  if (!(args.has_codes() ? has_tile_of_codes : has_tile)(tile.m, tile.n, args.epilogue)) {
    return false;
  }
  if (args.angles != nullptr && (!has_tile_of_heads(tile.m, tile.n) || plan.split > 1)) {
    return false;
  }
  if (plan.is_paired && !can_pair(tile.m, tile.n)) return false;
  if (plan.split == 1) return true;
  const bool can_split =
      is_transposed(tile.m) ? tile.n < 256 && plan.split == 2 : tile.m <= 128 && columns % 64 == 0;
  return (plan.split == 2 || plan.split == 4) && !plan.is_paired && can_split &&
         ceil_div(args.k, 64) >= plan.split;
}

std::vector<GemmPlan> fitting_plans(const GemmArgs& args) {
  std::vector<GemmPlan> plans;
  for (const TileCost& tile : kTiles) {
    for (GemmPlan plan : kCuts) {
      plan.tile = tile.tile;
      if (plan_fits(args, plan)) plans.push_back(plan);
    }
  }
  return plans;
}

// The time of a plan is the longer of two, or a little more if they are close (their 4-norm): (1)
// waves of tiles x (K steps x clocks of a step + fixed costs), and (2) reading the weights from
// DRAM, which takes longer if the last wave has few blocks to request them. Split-K pays off with
// few tiles, and costs the exchange of partial sums. Pairs pay off where loading the weights by TMA
// takes longer than the mma instructions.
std::optional<double> plan_clocks(const GemmArgs& args, const GemmCard& card,
                                  const GemmPlan& plan) {
  const TileCost& tile = cost_of(plan.tile);
  const int split = plan.split, cluster = plan.blocks_of_cluster();
  const int columns = out_columns(args, tile), at_once = card.clusters_at_once(cluster);
  if (at_once == 0 || !plan_fits(args, plan)) return std::nullopt;
  if (split > 1 && !is_transposed(tile.m) && columns / 64 % split != 0) {
    return std::nullopt;  // the ranks' epilogues would differ in size (transposed: only a little)
  }
  const int64_t k_steps = ceil_div(args.k, 64);
  double weight_bytes = 0;
  for (const GemmArgs::Part& part : args.part) weight_bytes += 2.0 * part.n * args.k;
  int64_t tiles_n = 0;
  for (int i = 0; i < args.n_tiled_parts(); ++i) tiles_n += ceil_div(args.part[i].n, columns);
  const int64_t tiles_m = ceil_div(args.m, tile.m);
  const int last_rows = args.m - narrow<int>(tiles_m - 1) * tile.m;
  const double step = step_clocks(tile, tile.m, args.k, plan.is_paired);
  const double last_step = step_clocks(tile, last_rows, args.k, plan.is_paired);
  const int64_t rows_of_tiles = plan.is_paired ? ceil_div(tiles_m, 2) : tiles_m;
  const int64_t tiles = tiles_n * rows_of_tiles;  // one for each cluster
  // One in rows_of_tiles of the tiles of a block (or pair) has the last rows of x, and takes less
  // time if they are few. In a pair, the other block then has a whole tile, or, if tiles_m is odd,
  // none.
  const bool is_whole = plan.is_paired && tiles_m % 2 == 0;
  const int64_t waves = ceil_div(tiles, at_once);
  const int64_t n_last = is_whole ? 0 : waves / rows_of_tiles;
  const bool hides_ends =  // approximately HgemmCut::holds
      split == 1 && tile.m <= 128 && !is_transposed(tile.m) &&
      (args.epilogue == Epilogue::Store || args.epilogue == Epilogue::Accumulate);
  double clocks =
      double(waves) * kFillClocks +
      double(hides_ends ? 1 : waves) * epilogue_clocks(args.epilogue, tile) * tile.m * tile.n +
      double(ceil_div(k_steps, split)) *
          (double(waves - n_last) * step + double(n_last) * last_step);
  clocks = std::pow(
      std::pow(clocks, 4) +
          std::pow(kFillClocks + read_clocks(weight_bytes, tiles * cluster, card.blocks), 4),
      0.25);
  if (split > 1) {
    clocks += (kSplitClocks + 4.0 * tile.m * tile.n / kExchangeBytesPerClock) * double(waves);
    clocks *= kSplitMustGain;
  }
  if (is_transposed(tile.m)) clocks *= kTransposedMustGain;
  if (plan.is_paired) clocks *= kPairMustGain;
  return clocks;
}

GemmPlan plan_gemm(const GemmArgs& args, const GemmCard& card) {
  GemmPlan best;
  std::optional<double> best_clocks;
  for (const TileCost& tile : kTiles) {
    for (GemmPlan plan : kCuts) {
      plan.tile = tile.tile;
      if (plan.is_paired && tile.m > kMostRowsOfPairs) continue;
      const std::optional<double> clocks = plan_clocks(args, card, plan);
      if (!clocks || (best_clocks && *clocks >= *best_clocks)) continue;
      best_clocks = clocks;
      best = plan;
    }
  }
  const TileCost& tile = cost_of(best.tile);
  best.is_paired =
      best.is_paired || (args.m >= kRowsAtFullPower && best.split == 1 && !is_transposed(tile.m) &&
                         can_pair(tile.m, tile.n) && card.clusters_at_once(2) > 0);
  return best;
}

GemmArgs check_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue) {
  MINFER_CHECK(x.shape.rank == 2 && (x.dtype == DType::F16 || x.dtype == DType::BF16),
               "gemm: x is ", x.dtype, " ", x.shape);
  MINFER_CHECK(!parts.empty() && parts.size() <= kMaxGemmParts, "gemm: ", parts.size(), " parts");
  const bool has_gate = is_gated(epilogue);
  MINFER_CHECK(!has_gate || (parts.size() == 2 && parts[0].w.shape == parts[1].w.shape),
               "gemm: gate and up of ", parts.size(), " parts, the first ", parts[0].w.shape);
  GemmArgs args;
  args.x = x.data;
  args.m = narrow<int>(x.shape[0]);
  args.k = narrow<int>(x.shape[1]);
  args.n_parts = static_cast<int>(parts.size());
  args.dtype = x.dtype;
  args.out_is_f32 = parts[0].out.dtype == DType::F32;
  args.epilogue = epilogue;
  const bool wants_f32 = epilogue == Epilogue::Accumulate;
  const bool wants_half = epilogue != Epilogue::Accumulate && epilogue != Epilogue::Store;
  MINFER_CHECK(args.out_is_f32 ? !wants_half : !wants_f32, "gemm: out is ", parts[0].out.dtype);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [w, out, bias] = parts[i];
    MINFER_CHECK(
        w.shape.rank == 2 && w.shape[0] > 0 && w.shape[1] == x.shape[1] && w.dtype == x.dtype,
        "gemm: w is ", w.dtype, " ", w.shape, ", x is ", x.dtype, " ", x.shape);
    MINFER_CHECK(!bias || (bias.dtype == x.dtype && bias.shape == Shape{w.shape[0]}),
                 "gemm: bias is ", bias.dtype, " ", bias.shape, ", w is ", w.shape);
    if (!has_gate || i == 0) {
      MINFER_CHECK(out.shape == (Shape{x.shape[0], w.shape[0]}) &&
                       out.dtype == parts[0].out.dtype &&
                       (out.dtype == DType::F32 || out.dtype == x.dtype),
                   "gemm: out is ", out.dtype, " ", out.shape, ", x ", x.shape, ", w ", w.shape);
    }
    args.part[i] = {w.data, out.data, bias.data, narrow<int>(w.shape[0]), 0};
  }
  return args;
}

GemmArgs check_codes(const CodeRows& x, std::span<const CodesPart> parts, Epilogue epilogue) {
  // The kernels see a GEMM of halves, in which each half is a pair of codes.
  const auto as_halves = [&](const CodeRows& rows, DType half) {
    MINFER_CHECK(rows.codes.dtype == DType::U8 && rows.codes.shape.rank == 2 &&
                     rows.codes.shape[1] % 16 == 0 && rows.codes.shape[1] <= kMaxCodeColumns &&
                     rows.scales.dtype == DType::F32 &&
                     rows.scales.shape == Shape{rows.codes.shape[0]},
                 "multiply_codes: ", rows.codes.dtype, " ", rows.codes.shape, ", scales ",
                 rows.scales.dtype, " ", rows.scales.shape);
    return Tensor{rows.codes.data, half, {rows.codes.shape[0], rows.codes.shape[1] / 2}};
  };
  MINFER_CHECK(!parts.empty(), "multiply_codes of nothing");
  const CodesPart& first = parts.front();
  const DType half = first.out.dtype != DType::F32 ? first.out.dtype
                     : first.bias                  ? first.bias.dtype
                                                   : DType::F16;
  std::vector<GemmPart> as_gemm;
  for (const CodesPart& part : parts) {
    as_gemm.push_back({as_halves(part.w, half), part.out, part.bias});
  }
  GemmArgs args = check_gemm(as_halves(x, half), as_gemm, epilogue);
  args.x_scales = static_cast<const float*>(x.scales.data);
  for (size_t i = 0; i < parts.size(); ++i) {
    args.part[i].w_scales = static_cast<const float*>(parts[i].w.scales.data);
  }
  MINFER_CHECK(epilogue != Epilogue::GeluErf && epilogue != Epilogue::GeluTanh,
               "multiply_codes: epilogue ", int(epilogue));
  return args;
}

bool can_multiply_codes() { return has_hgemm(); }

void multiply_codes(cudaStream_t stream, const CodeRows& x, std::span<const CodesPart> parts,
                    Epilogue epilogue) {
  const GemmArgs args = check_codes(x, parts, epilogue);
  if (args.m == 0) return;
  MINFER_CHECK(args.k > 0 && hgemm_takes(args), "multiply_codes: x ", x.codes.shape);
  hgemm_of_codes_as(stream, args, hgemm_plan(args));
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
