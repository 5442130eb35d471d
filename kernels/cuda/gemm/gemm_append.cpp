#include <algorithm>

#include "kernels/base/math.h"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {

// Fewer rows leave tiles of 128 x 256 fewer than the card has blocks, or hardly more.
constexpr int64_t kFewestToAppend = 1024;

bool gemm_appends(Tensor x, const KvLayer& cache, Tensor cos_sin) {
  GemmArgs args;
  args.x = x.data;
  args.k = narrow<int>(x.shape[1]);
  return x.dtype == DType::F16 && x.shape[0] >= kFewestToAppend && cache.dtype == DType::F16 &&
         cache.head_dim == kFusedHeadDim && cos_sin && cos_sin.shape[1] == kFusedHeadDim / 2 &&
         reinterpret_cast<uintptr_t>(cos_sin.data) % 16 == 0 && hgemm_takes(args);
}

void gemm_append(cudaStream_t stream, KvLayer& cache, Tensor x, std::span<const GemmPart, 3> qkv,
                 Tensor cos_sin, int64_t pos) {
  const int64_t n_tokens = x.shape[0], n_kv = cache.n_kv_heads * kFusedHeadDim;
  const int64_t n_q = qkv[0].w.shape[0];
  MINFER_CHECK(gemm_appends(x, cache, cos_sin) && n_q % kFusedHeadDim == 0 &&
                   qkv[1].w.shape[0] == n_kv && qkv[2].w.shape[0] == n_kv,
               "gemm_append: x ", x.dtype, " ", x.shape, ", wq ", qkv[0].w.shape, ", wk ",
               qkv[1].w.shape, ", wv ", qkv[2].w.shape, " to a cache of ", cache.n_kv_heads,
               " heads of ", cache.head_dim);
  MINFER_CHECK(cos_sin.dtype == DType::F32 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   pos >= 0 && pos + n_tokens <= std::min(cos_sin.shape[0], cache.capacity),
               "gemm_append: positions ", pos, " to ", pos + n_tokens, " by a table ",
               cos_sin.shape, ", a cache of ", cache.capacity);
  GemmArgs args = check_gemm(x, qkv, Epilogue::Store);
  args.angles = static_cast<const float2*>(cos_sin.data) + pos * (kFusedHeadDim / 2);
  args.part[0].row_stride = n_q;
  args.part[0].head_stride = kFusedHeadDim;
  const Tensor to[] = {cache.keys, cache.values};
  for (int i = 0; i < 2; ++i) {
    GemmArgs::Part& part = args.part[1 + i];
    part.out = static_cast<uint16_t*>(to[i].data) + pos * kFusedHeadDim;
    part.row_stride = kFusedHeadDim;
    part.head_stride = cache.capacity * kFusedHeadDim;
  }
  hgemm_as(stream, args, {.tile = GemmTile::k128x256, .is_paired = true});
}

}  // namespace minfer::cuda
