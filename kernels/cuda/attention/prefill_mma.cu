#include "kernels/cuda/attention/cache.cuh"
#include "kernels/cuda/attention/load_halves.cuh"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/launch.h"

namespace minfer::cuda::attention {
namespace {

constexpr int kQueries = 64, kThreads = 128;  // 4 warps of 16 queries

// kD: head_dim rounded up to 64, 128 or 256. Rows are 16 bytes longer than a multiple of 128, so
// that the eight rows of an ldmatrix lie in different banks.
template <int kD>
struct alignas(16) Shared {
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  __half q[kQueries][kD + 8], k[kKeys][kD + 8], v[kKeys][kD + 8];
  float k_scale[kKeys];  // 1 for an F16 cache
};

struct Args {
  const void* q;
  Cache cache;
  int n_tokens, n_heads, heads_per_kv, head_dim, pos;
  int window;  // positions that a query sees, or kNoWindow
  bool q_is_bf16, kv_is_u8, rows_aligned;
  float scale_log2;
  SoftCap cap_log2;
  const float* sinks;  // [n_heads], or null
};

// Elements d ... d + 7 of a row of q that starts at `row`, as F16; past head_dim zero.
__device__ Vec<__half> load_q(const Args& a, int64_t row, int d) {
  if (a.rows_aligned && d < a.head_dim) return load_halves(a.q, row + d, a.q_is_bf16);
  Vec<__half> x = {};
  for (int e = 0; e < 8 && d + e < a.head_dim; ++e) {
    const __half raw = static_cast<const __half*>(a.q)[row + d + e];
    x[e] =
        a.q_is_bf16 ? __float2half_rn(__uint_as_float(uint32_t{__half_as_ushort(raw)} << 16)) : raw;
  }
  return x;
}

// The same of a row of the cache; of U8, code - 128, which F16 holds exactly.
__device__ Vec<__half> load_kv(const Args& a, const void* base, int64_t row, int d) {
  Vec<__half> x = {};
  if (d >= a.head_dim) return x;
  if (a.kv_is_u8) {
    const uint8_t* const from = static_cast<const uint8_t*>(base) + row + d;
    Vec<uint8_t, 8> codes = {};
    if (a.rows_aligned) {
      *reinterpret_cast<uint2*>(&codes) = *reinterpret_cast<const uint2*>(from);
    } else {
      for (int e = 0; e < 8; ++e) codes[e] = d + e < a.head_dim ? from[e] : uint8_t{128};
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = __int2half_rn(int{codes[e]} - 128);
    return x;
  }
  const __half* const from = static_cast<const __half*>(base) + row + d;
  if (a.rows_aligned) return *reinterpret_cast<const Vec<__half>*>(from);
  for (int e = 0; e < 8 && d + e < a.head_dim; ++e) x[e] = from[e];
  return x;
}

// out[t, h] = softmax_j(scale q[t, h] . k[h / r, j]) v[h / r, j] over j <= pos + t, the
// last `window` of them, r = heads_per_kv; with a sink in the softmax, if there is one
//
//   out       [n_tokens, n_heads, head_dim] T; q the same in F16 or BF16
//   launch    one block of 4 warps for 64 queries of a head, the longest rows first; K and V pass
//             through shared memory in tiles of kKeys
//   requires  head_dim <= kD
//   maths     f16 x f16 summed in f32; softmax f32 (ex2.approx); weights are rounded to F16 where
//             they multiply V, but not in their sum; BF16 q is rounded to F16. U8: K's scale
//             multiplies the score in f32; V is dequantized to F16, which rounds it
//   moves     4 n_tokens (pos + n_tokens / 2) n_heads head_dim flops
//   source    Dao 2023, arXiv:2307.08691
template <int kD, typename T>
__global__ void __launch_bounds__(kThreads) prefill_mma_kernel(T* out, const Args a) {
  using S = Shared<kD>;
  constexpr int kKeys = S::kKeys;
  S& s = *reinterpret_cast<S*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int n_rows = (a.n_tokens + kQueries - 1) / kQueries;
  const int head = int(blockIdx.x) % a.n_heads, row = n_rows - 1 - int(blockIdx.x) / a.n_heads;
  const int first = a.pos + row * kQueries, kv_len = a.pos + a.n_tokens;
  const int n_tiles = (min(first + kQueries, kv_len) + kKeys - 1) / kKeys;
  const int kv_head = head / a.heads_per_kv;

  for (int i = threadIdx.x; i < kQueries * (kD / 8); i += kThreads) {
    const int r = i / (kD / 8), d = i % (kD / 8) * 8;
    const int64_t token = row * kQueries + r;
    Vec<__half> x = {};
    if (token < a.n_tokens) x = load_q(a, (token * a.n_heads + head) * a.head_dim, d);
    *reinterpret_cast<Vec<__half>*>(&s.q[r][d]) = x;
  }

  float o[kD / 8][4] = {};
  SoftmaxState state[2];  // of rows g and g + 8 of the warp; sums of this lane's columns
  for (int tile = max(0, first - a.window + 1) / kKeys; tile < n_tiles; ++tile) {
    __syncthreads();
    for (int i = threadIdx.x; i < kKeys * (kD / 8); i += kThreads) {
      const int j = i / (kD / 8), d = i % (kD / 8) * 8, position = tile * kKeys + j;
      Vec<__half> k = {}, v = {};  // memory past kv_len may hold anything, so it is not read
      float k_scale = 1;
      if (position < kv_len) {
        const int64_t at = a.cache.row(kv_head, position);
        k = load_kv(a, a.cache.keys, at * a.head_dim, d);
        v = load_kv(a, a.cache.values, at * a.head_dim, d);
        if (a.kv_is_u8) {
          k_scale = a.cache.key_scales[at];
          const float v_scale = a.cache.value_scales[at];
#pragma unroll
          for (int e = 0; e < 8; ++e) v[e] = __float2half_rn(__half2float(v[e]) * v_scale);
        }
      }
      *reinterpret_cast<Vec<__half>*>(&s.k[j][d]) = k;
      *reinterpret_cast<Vec<__half>*>(&s.v[j][d]) = v;
      if (d == 0) s.k_scale[j] = k_scale;
    }
    __syncthreads();

    float sc[kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t q[4];
      ptx::load_matrices(q,
                         ptx::shared_address(&s.q[warp * 16 + lane % 16][k * 16 + lane / 16 * 8]));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        const __half* const row =
            &s.k[n * 16 + lane % 8 + lane / 16 * 8][k * 16 + lane / 8 % 2 * 8];
        ptx::load_matrices(b, ptx::shared_address(row));
        mma_16x8x16(sc[2 * n], q[0], q[1], q[2], q[3], b[0], b[1]);
        mma_16x8x16(sc[2 * n + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
      }
    }
    // The last key that row g sees in this tile, and the first.
    const int last = first + warp * 16 + g - tile * kKeys, from = last - a.window + 1;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int j = n * 8 + 2 * t + (x & 1), later = (x >> 1) * 8;
        const bool is_seen = j <= last + later && j >= from + later;
        sc[n][x] = is_seen ? a.cap_log2(sc[n][x] * (s.k_scale[j] * a.scale_log2)) : -INFINITY;
      }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(sc[n][2 * r], sc[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      // A row that has seen no position yet keeps its state: -inf - -inf would be NaN.
      const bool is_unseen = fmaxf(top, state[r].max) == -INFINITY;
      factor[r] = is_unseen ? 1.0f : state[r].raise(top);
      const float shift = is_unseen ? 0.0f : state[r].max;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& w = sc[n][2 * r + x];
          w = ptx::exp2_fast(w - shift);
          sum += w;
        }
      state[r].sum += sum;
    }
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) o[n][x] *= factor[x >> 1];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const float(&low)[4] = sc[2 * k], (&high)[4] = sc[2 * k + 1];
      const uint32_t p[4] = {pack_halves(low[0], low[1]), pack_halves(low[2], low[3]),
                             pack_halves(high[0], high[1]), pack_halves(high[2], high[3])};
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t b[4];
        ptx::load_matrices_transposed(
            b, ptx::shared_address(&s.v[k * 16 + lane % 16][n * 16 + lane / 16 * 8]));
        mma_16x8x16(o[2 * n], p[0], p[1], p[2], p[3], b[0], b[1]);
        mma_16x8x16(o[2 * n + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state[r].sum += __shfl_xor_sync(~0u, state[r].sum, 1);
    state[r].sum += __shfl_xor_sync(~0u, state[r].sum, 2);
    const float factor = state[r].take_sink(sink_log2(a.sinks, head));
    const float inverse = factor / state[r].sum;
    const int64_t token = row * kQueries + warp * 16 + g + 8 * r;
    if (token >= a.n_tokens) continue;
    T* const to = out + (token * a.n_heads + head) * a.head_dim;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int d = n * 8 + 2 * t + x;
        if (d < a.head_dim) to[d] = from_float<T>(o[n][2 * r + x] * inverse);
      }
  }
}

}  // namespace

void prefill_mma(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                 const CachePlace& place, float scale, int64_t window, float softcap,
                 Tensor sinks) {
  const auto aligned = [](const Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  };
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1];
  const Args args{
      .q = q.data,
      .cache = cache_of(cache, place.pages),
      .n_tokens = narrow<int>(n_tokens),
      .n_heads = narrow<int>(n_heads),
      .heads_per_kv = narrow<int>(n_heads / cache.n_kv_heads),
      .head_dim = narrow<int>(cache.head_dim),
      .pos = narrow<int>(place.pos),
      .window = window > 0 ? narrow<int>(window) : kNoWindow,
      .q_is_bf16 = q.dtype == DType::BF16,
      .kv_is_u8 = cache.dtype == DType::U8,
      .rows_aligned =
          cache.head_dim % 8 == 0 && aligned(q) && aligned(cache.keys) && aligned(cache.values),
      .scale_log2 = scale * kLog2E,
      .cap_log2 = SoftCap::of(softcap, kLog2E),
      .sinks = data_of<const float>(sinks),
  };
  const auto run = [&]<int kD, typename T>() {
    const auto kernel = prefill_mma_kernel<kD, T>;
    constexpr int kBytes = sizeof(Shared<kD>);
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    launch(kernel, narrow<unsigned>(ceil_div(n_tokens, kQueries) * n_heads), kThreads, kBytes,
           stream, data_of<T>(out), args);
  };
  visit_half(out.dtype, [&]<typename T>() {
    if (cache.head_dim <= 64) return run.template operator()<64, T>();
    if (cache.head_dim <= 128) return run.template operator()<128, T>();
    run.template operator()<256, T>();
  });
}

}  // namespace minfer::cuda::attention
