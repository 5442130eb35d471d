#include <algorithm>

#include "kernels/base/math.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/hgemm_launch.h"

namespace minfer::cuda {
namespace {

constexpr GemmPlan kAppendPlan{.tile = GemmTile::k128x256, .is_paired = true};
// Bytes that rope_append reads and writes per clock: 3.3 TB/s at 1.5 GHz, measured on an H200.
constexpr double kAppendBytesPerClock = 2200;

}  // namespace

bool gemm_can_append(const GemmArgs& gemm, const KvLayer& cache, Tensor cos_sin) {
  return gemm.dtype == DType::F16 && !gemm.out_is_f32 && cache.dtype == DType::F16 &&
         cache.head_dim == kFusedHeadDim && cos_sin && cos_sin.shape[1] == kFusedHeadDim / 2 &&
         whole_16_bytes(cos_sin.data, kFusedHeadDim / 2 * int64_t{sizeof(float2)}) &&
         whole_16_bytes(gemm.part[0].out, bytes_of(DType::F16, gemm.part[0].n)) &&
         hgemm_takes(gemm) && gemm_card().clusters_at_once(kAppendPlan.blocks_of_cluster()) > 0;
}

bool gemm_appends(Tensor x, std::span<const GemmPart, 3> qkv, const KvLayer& cache, int64_t pos,
                  Tensor cos_sin) {
  const GemmArgs args = check_gemm(x, qkv, Epilogue::Store);
  if (args.m == 0 || pos % kBoxRows != 0 || !gemm_can_append(args, cache, cos_sin)) return false;
  const GemmCard& card = gemm_card();
  double saved = 0;
  for (const GemmPart& part : qkv) saved += 4.0 * double(x.shape[0] * part.w.shape[0]);
  const double apart = plan_clocks(args, card, plan_gemm(args, card)).value();
  return plan_clocks(args, card, kAppendPlan).value() <= apart + saved / kAppendBytesPerClock;
}

void gemm_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                 std::span<const GemmPart, 3> qkv, Tensor cos_sin) {
  const int64_t pos = place.pos;
  GemmArgs args = check_gemm(x, qkv, Epilogue::Store);
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
  if (args.m == 0) return;
  args.angles = static_cast<const float2*>(cos_sin.data) + pos * (kFusedHeadDim / 2);
  const Tensor to[] = {cache.keys, cache.values};
  for (int i = 0; i < 2; ++i) {
    GemmArgs::Part& part = args.part[1 + i];
    part.out = to[i].data;
    part.pages = place.pages;
    part.pos = narrow<int>(pos);
    part.n_pages = narrow<int>(cache.n_pages);
  }
  hgemm_as(stream, args, kAppendPlan);
}

}  // namespace minfer::cuda
