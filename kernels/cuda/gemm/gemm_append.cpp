#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/base/math.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/hgemm_launch.h"

namespace minfer::cuda {
namespace {

// The cuts in tiles of whole heads.
struct HeadsPlan {
  GemmPlan plan;
  int rows, columns;  // of a cluster's tiles
};
constexpr HeadsPlan kHeadsPlans[] = {{{.tile = GemmTile::k128x256, .is_paired = true}, 256, 256},
                                     {{.tile = GemmTile::k128x128}, 128, 128}};
// Clocks that the epilogue takes for an accumulator of a block, which no products of another tile
// hide: by the time of Qwen3-30B-A3B's q, k and v on an H100, twice this with norms.
constexpr double kHeadsClocks = 1.0 / 8;
// Bytes that rope_append reads and writes per clock: 3.3 TB/s at 1.5 GHz, measured on an H200.
constexpr double kAppendBytesPerClock = 2200;

// gemm_append of a GEMM that check_gemm gave for x and qkv.
void append(cudaStream_t stream, GemmArgs args, KvLayer& cache, const CachePlace& place, Tensor x,
            std::span<const GemmPart, 3> qkv, Tensor cos_sin, const QkNormArgs& norm,
            const GemmPlan& plan) {
  const int64_t pos = place.pos;
  const int64_t n_kv = cache.n_kv_heads * kFusedHeadDim;
  MINFER_CHECK(gemm_can_append(args, cache, cos_sin) && args.part[0].n % kFusedHeadDim == 0 &&
                   args.part[1].n == n_kv && args.part[2].n == n_kv,
               "gemm_append: x ", x.dtype, " ", x.shape, ", wq ", qkv[0].w.shape, ", wk ",
               qkv[1].w.shape, ", wv ", qkv[2].w.shape, " to a cache of ", cache.dtype, ", ",
               cache.n_kv_heads, " heads of ", cache.head_dim);
  MINFER_CHECK(cos_sin.dtype == DType::F32 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   place.pages != nullptr && pos >= 0 && pos % kBoxRows == 0 &&
                   pos + args.m <= std::min(cos_sin.shape[0], place.max_positions()),
               "gemm_append: positions ", pos, " to ", pos + args.m, " by a table ", cos_sin.shape,
               ", ", place.n_pages, " pages");
  const bool has_norm = norm.kind != QkNorm::None;
  const auto is_of_head = [&](const Tensor& weight) {
    return has_norm ? weight.dtype == DType::F16 && weight.shape == Shape{kFusedHeadDim} : !weight;
  };
  MINFER_CHECK((!has_norm || norm.kind == QkNorm::PerHead) && is_of_head(norm.q_weight) &&
                   is_of_head(norm.k_weight),
               "gemm_append: a norm of kind ", int(norm.kind), " by weights ", norm.q_weight.shape,
               " and ", norm.k_weight.shape);
  if (args.m == 0) return;
  args.part[0].norm_weight = norm.q_weight.data;
  args.part[1].norm_weight = norm.k_weight.data;
  args.norm_eps = norm.eps;
  args.angles = static_cast<const float2*>(cos_sin.data) + pos * (kFusedHeadDim / 2);
  const Tensor to[] = {cache.keys, cache.values};
  for (int i = 0; i < 2; ++i) {
    GemmArgs::Part& part = args.part[1 + i];
    part.out = to[i].data;
    part.pages = place.pages;
    part.pos = narrow<int>(pos);
    part.n_pages = narrow<int>(cache.n_pages);
  }
  hgemm_as(stream, args, plan);
}

}  // namespace

bool gemm_can_append(const GemmArgs& gemm, const KvLayer& cache, Tensor cos_sin) {
  return gemm.dtype == DType::F16 && !gemm.out_is_f32 && cache.dtype == DType::F16 &&
         cache.head_dim == kFusedHeadDim && cos_sin && cos_sin.shape[1] == kFusedHeadDim / 2 &&
         whole_16_bytes(cos_sin.data, kFusedHeadDim / 2 * int64_t{sizeof(float2)}) &&
         whole_16_bytes(gemm.part[0].out, bytes_of(DType::F16, gemm.part[0].n)) &&
         hgemm_takes(gemm);
}

AppendPlan append_plan(const GemmArgs& args, const GemmCard& card, bool has_norm) {
  AppendPlan best{.plan = {}, .clocks = std::numeric_limits<double>::infinity()};
  for (const HeadsPlan& heads : kHeadsPlans) {
    const std::optional<double> clocks = plan_clocks(args, card, heads.plan);
    if (!clocks) continue;
    int64_t tiles = 0;
    for (const GemmArgs::Part& part : args.part) tiles += ceil_div(part.n, heads.columns);
    tiles *= ceil_div(args.m, heads.rows);
    const int64_t waves = ceil_div(tiles, card.clusters_at_once(heads.plan.blocks_of_cluster()));
    const double of_tile = kHeadsClocks * (has_norm ? 2 : 1) * 128 * heads.columns;
    const double all = *clocks + double(waves) * of_tile;
    if (all < best.clocks) best = {heads.plan, all};
  }
  return best;
}

bool gemm_appends(Tensor x, std::span<const GemmPart, 3> qkv, const KvLayer& cache, int64_t pos,
                  Tensor cos_sin, QkNorm norm) {
  const GemmArgs args = check_gemm(x, qkv, Epilogue::Store);
  const bool has_norm = norm != QkNorm::None;
  if (args.m == 0 || pos % kBoxRows != 0 || !gemm_can_append(args, cache, cos_sin) ||
      (has_norm && norm != QkNorm::PerHead)) {
    return false;
  }
  const GemmCard& card = gemm_card();
  double saved = 0;  // bytes that no launch reads and writes again
  for (const GemmPart& part : qkv) {
    const bool is_normed = has_norm && &part != &qkv.back();
    saved += (is_normed ? 8.0 : 4.0) * double(x.shape[0] * part.w.shape[0]);
  }
  const double apart = plan_clocks(args, card, plan_gemm(args, card)).value();
  return append_plan(args, card, has_norm).clocks <= apart + saved / kAppendBytesPerClock;
}

void gemm_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                 std::span<const GemmPart, 3> qkv, Tensor cos_sin, const QkNormArgs& norm) {
  const GemmArgs args = check_gemm(x, qkv, Epilogue::Store);
  const AppendPlan best = append_plan(args, gemm_card(), norm.kind != QkNorm::None);
  append(stream, args, cache, place, x, qkv, cos_sin, norm, best.plan);
}

void gemm_append_as(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                    std::span<const GemmPart, 3> qkv, Tensor cos_sin, const QkNormArgs& norm,
                    const GemmPlan& plan) {
  append(stream, check_gemm(x, qkv, Epilogue::Store), cache, place, x, qkv, cos_sin, norm, plan);
}

}  // namespace minfer::cuda
