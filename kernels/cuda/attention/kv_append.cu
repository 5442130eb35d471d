#include <algorithm>
#include <bit>

#include "kernels/cuda/attention/cache.cuh"
#include "kernels/cuda/attention/quantize_row.cuh"
#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <int kN, typename T>
__device__ Vec<T, kN> load(const T* from) {
  return *reinterpret_cast<const Vec<T, kN>*>(from);
}
template <typename T, typename From, int kN>
__device__ void store(T* to, const Vec<From, kN>& from) {
  Vec<T, kN> some;
#pragma unroll
  for (int e = 0; e < kN; ++e) some[e] = from_float<T>(to_float(from[e]));
  *reinterpret_cast<Vec<T, kN>*>(to) = some;
}

template <int kN>
__device__ void load_angles(float2 (&to)[kN], const float2* from) {
  constexpr int kAtOnce = kN > 1 ? 2 : 1;
#pragma unroll
  for (int e = 0; e < kN; e += kAtOnce) {
    const auto some = load<kAtOnce>(from + e);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) to[e + j] = some[j];
  }
}

// The pairs (low[e], high[e]), rotated by angles[e] and rounded to Out.
template <typename Out, typename In, int kN>
struct Turned {
  Vec<Out, kN> low, high;

  __device__ Turned(const Vec<In, kN>& a, const Vec<In, kN>& b, const float2 (&angles)[kN]) {
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const float2 r = attention::rotated(to_float(a[e]), to_float(b[e]), angles[e]);
      low[e] = from_float<Out>(r.x);
      high[e] = from_float<Out>(r.y);
    }
  }
};

// Heads that a thread loads at once, and rotates by angles that it read once.
constexpr int kHeadsAtOnce = 4;

// Block dimensions: a thread for each chunk of a head, as far as a block has threads, and of every
// kHeadsAtOnce-th head.
dim3 threads_of_token(int64_t n_heads, int64_t n_chunks) {
  const auto of_head = narrow<unsigned>(std::min<int64_t>(n_chunks, kThreads));
  const auto heads = narrow<unsigned>(ceil_div(n_heads, kHeadsAtOnce));
  return {of_head, std::clamp(heads, 1u, kThreads / of_head)};
}

// out[t, h] = x[t, h] with pairs (i, i + n_pairs) rotated by the angle of position pos + t;
// elements past 2 n_pairs stay as they are
//
//   x, out   [n_tokens, n_heads, head_dim] In and Out; out may be x if the types agree
//   cos_sin  [.., n_pairs] cosine and sine, f32; not read if n_pairs is 0
//   launch   a block for each token; a thread has kN pairs, or kN elements that are not rotated, of
//            some heads
//   maths    f32 (rotate.cuh), one rounding
//   moves    x and out once; the angles of a token are read by all its heads
template <typename Out, typename In, int kN>
__global__ void __maxnreg__(80) rope_kernel(Out* out, const In* x, const float2* cos_sin,
                                            int n_heads, int head_dim, int n_pairs, int64_t pos) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t token = blockIdx.x;
  const int n_turned = n_pairs / kN, n_chunks = (head_dim - n_pairs) / kN;  // of a head
  const int heads_at_once = static_cast<int>(blockDim.y);
  for (int chunk = threadIdx.x; chunk < n_chunks; chunk += static_cast<int>(blockDim.x)) {
    const bool turns = chunk < n_turned;
    const int64_t column = chunk * kN + (turns ? 0 : n_pairs);
    float2 angles[kN];
    if (turns) load_angles(angles, cos_sin + (pos + token) * n_pairs + chunk * kN);
    for (int head = threadIdx.y; head < n_heads; head += kHeadsAtOnce * heads_at_once) {
      const auto at = [&](int u) {
        return (token * n_heads + head + u * heads_at_once) * head_dim + column;
      };
      Vec<In, kN> low[kHeadsAtOnce], high[kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        if (head + u * heads_at_once >= n_heads) break;
        low[u] = load<kN>(x + at(u));
        if (turns) high[u] = load<kN>(x + at(u) + n_pairs);
      }
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        if (head + u * heads_at_once >= n_heads) break;
        keep_packed(low[u]);
        if (!turns) {
          store(out + at(u), low[u]);
          continue;
        }
        keep_packed(high[u]);
        const Turned<Out, In, kN> turned(low[u], high[u], angles);
        store(out + at(u), turned.low);
        store(out + at(u) + n_pairs, turned.high);
      }
    }
  }
}

struct AppendArgs {
  const void *k, *v;  // [n_tokens, n_heads, head_dim] T, n_heads those of the cache
  attention::Cache cache;
  int64_t n_tokens;
  int pos;
};

// cache[h, pos + t] = k[t, h], and the same for v, in all cases that the next two kernels do not
// take
//
//   launch   a warp for each row of k (blockIdx.y 0) or v (1), one element of a lane at a time
//   maths    U8: quantize_row.cuh
template <typename T, bool kU8>
__global__ void __launch_bounds__(kThreads) plain_kv_append_kernel(const AppendArgs a) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const attention::Cache& cache = a.cache;
  const int n_heads = cache.n_kv_heads, head_dim = cache.head_dim;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.n_tokens * n_heads) return;
  const bool is_k = blockIdx.y == 0;
  const T* const from = static_cast<const T*>(is_k ? a.k : a.v) + row * head_dim;
  const int64_t to_row = cache.row(int(row % n_heads), a.pos + int(row / n_heads));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kU8) {
    float largest = 0;
    for (int i = lane; i < head_dim; i += 32) {
      largest = attention::larger_magnitude(largest, to_float(from[i]));
    }
    const attention::RowScale scale = attention::row_scale(largest);
    if (lane == 0) (is_k ? cache.key_scales : cache.value_scales)[to_row] = scale.step;
    uint8_t* const to = static_cast<uint8_t*>(is_k ? cache.keys : cache.values) + to_row * head_dim;
    for (int i = lane; i < head_dim; i += 32) {
      to[i] = attention::code_of(to_float(from[i]), scale);
    }
  } else {
    __half* const to = static_cast<__half*>(is_k ? cache.keys : cache.values) + to_row * head_dim;
    for (int i = lane; i < head_dim; i += 32) to[i] = from_float<__half>(to_float(from[i]));
  }
}

constexpr int kCodeChunks = 4, kCodeTokens = 8;

// The same for U8 and rows of whole 16-byte words, up to 1024 elements, which are read once
//
//   launch   2^lanes_shift lanes for each row of k (blockIdx.y 0) or v (1); a lane keeps up to
//            4 x 8 elements, in words adjacent to those of its neighbours. A block has 8 tokens,
//            whose rows and scales are adjacent in the cache, of some heads
//   moves    k and v are read once; a byte for each element and the scales are written
template <typename T>
__global__ void __launch_bounds__(kThreads, 5)
    append_codes_kernel(const AppendArgs a, int lanes_shift, unsigned n_head_blocks) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const attention::Cache& cache = a.cache;
  const int n_heads = cache.n_kv_heads, head_dim = cache.head_dim;
  const int n_lanes = 1 << lanes_shift, heads_of_block = kThreads / kCodeTokens >> lanes_shift;
  const int lane = static_cast<int>(threadIdx.x) & (n_lanes - 1);
  const int row_of_block = static_cast<int>(threadIdx.x) >> lanes_shift;
  const int64_t token =
      int64_t{blockIdx.x / n_head_blocks} * kCodeTokens + row_of_block % kCodeTokens;
  const int head =
      static_cast<int>(blockIdx.x % n_head_blocks) * heads_of_block + row_of_block / kCodeTokens;
  const bool is_k = blockIdx.y == 0, is_row = token < a.n_tokens && head < n_heads;
  const T* const from =
      static_cast<const T*>(is_k ? a.k : a.v) + (token * n_heads + head) * head_dim;
  const auto column_of = [&](int c) { return (lane + c * n_lanes) * 8; };
  const auto is_there = [&](int c) { return is_row && column_of(c) < head_dim; };
  Vec<T, 8> x[kCodeChunks] = {};
#pragma unroll
  for (int c = 0; c < kCodeChunks; ++c) {
    if (is_there(c)) x[c] = load<8>(from + column_of(c));
  }
  float largest = 0;
#pragma unroll
  for (int c = 0; c < kCodeChunks; ++c) {
#pragma unroll
    for (int e = 0; e < 8; ++e) largest = attention::larger_magnitude(largest, to_float(x[c][e]));
  }
  const attention::RowScale scale = attention::row_scale(largest, n_lanes);
  if (!is_row) return;
#pragma unroll
  for (int c = 0; c < kCodeChunks; ++c) keep_packed(x[c]);
  const int64_t to_row = cache.row(head, a.pos + int(token));
  if (lane == 0) (is_k ? cache.key_scales : cache.value_scales)[to_row] = scale.step;
  uint8_t* const to = static_cast<uint8_t*>(is_k ? cache.keys : cache.values) + to_row * head_dim;
#pragma unroll
  for (int c = 0; c < kCodeChunks; ++c) {
    if (!is_there(c)) continue;
    Vec<uint8_t, 8> codes;
#pragma unroll
    for (int e = 0; e < 8; ++e) codes[e] = attention::code_of(to_float(x[c][e]), scale);
    *reinterpret_cast<Vec<uint8_t, 8>*>(to + column_of(c)) = codes;
  }
}

struct RopeAppendArgs {
  void* q;            // [n_tokens, n_heads, head_dim] T, or null
  const void *k, *v;  // [n_tokens, n_kv_heads, head_dim] T
  attention::Cache cache;
  const float2* cos_sin;
  int pos, n_heads, n_pairs;
};

// Rotates q[t, h] as rope_kernel does; cache[h, pos + t] = rotated k[t, h], and v[t, h]. With no q
// and no pairs it only appends
//
//   cache    F16
//   launch   a block for each token of v (blockIdx.y 0), k (1) or q (2); a thread has 2 x 16 bytes
//            of some heads: both halves of 8 pairs, or elements that are not rotated
//   maths    as rope_kernel to T, then rounded to F16: bit-identical to rope and append one after
//            the other
//   moves    q, k and v once in each direction
template <typename T>
__global__ void __maxnreg__(80) rope_append_kernel(const RopeAppendArgs a) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t token = blockIdx.x;
  const bool is_v = blockIdx.y == 0, is_q = blockIdx.y == 2;
  const int n_heads = is_q ? a.n_heads : a.cache.n_kv_heads, head_dim = a.cache.head_dim;
  const int n_chunks = head_dim / 16, n_pairs = is_v ? 0 : a.n_pairs, n_turned = n_pairs / 8;
  const int heads_at_once = static_cast<int>(blockDim.y);
  const T* const x = static_cast<const T*>(is_q ? a.q : is_v ? a.v : a.k);
  for (int chunk = threadIdx.x; chunk < n_chunks; chunk += static_cast<int>(blockDim.x)) {
    const bool turns = chunk < n_turned;
    if (is_q && !turns) continue;
    const int first = chunk * 8 + (turns ? 0 : n_pairs);
    const int second = first + (turns ? n_pairs : head_dim / 2 - n_pairs);
    float2 angles[8];
    const int64_t row_of_head_0 = is_q ? 0 : a.cache.row(0, a.pos + int(token));
    if (turns) load_angles(angles, a.cos_sin + (a.pos + token) * a.n_pairs + chunk * 8);
    for (int h = threadIdx.y; h < n_heads; h += kHeadsAtOnce * heads_at_once) {
      Vec<T, 8> low[kHeadsAtOnce], high[kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = h + u * heads_at_once;
        if (head >= n_heads) break;
        const T* const from = x + (token * n_heads + head) * head_dim;
        low[u] = load<8>(from + first);
        high[u] = load<8>(from + second);
      }
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const int head = h + u * heads_at_once;
        if (head >= n_heads) break;
        keep_packed(low[u]);
        keep_packed(high[u]);
        if (turns) {
          const Turned<T, T, 8> turned(low[u], high[u], angles);
          low[u] = turned.low;
          high[u] = turned.high;
        }
        if (is_q) {
          T* const to = static_cast<T*>(a.q) + (token * n_heads + head) * head_dim;
          store(to + first, low[u]);
          store(to + second, high[u]);
        } else {
          __half* const to = static_cast<__half*>(is_v ? a.cache.values : a.cache.keys) +
                             (row_of_head_0 + head * attention::kPage) * head_dim;
          store(to + first, low[u]);
          store(to + second, high[u]);
        }
      }
    }
  }
}

// Whether k and v can be appended in words of 16 bytes, or of 8 for codes.
bool in_words(const KvLayer& cache, const Tensor& k, const Tensor& v) {
  return aligned16(k) && aligned16(v) && aligned16(cache.keys) && aligned16(cache.values) &&
         cache.head_dim % (cache.dtype == DType::F16 ? 16 : 8) == 0;
}

void run_rope_append(cudaStream_t stream, DType dtype, const RopeAppendArgs& args,
                     int64_t n_tokens) {
  visit_half(dtype, [&]<typename T>() {
    launch(
        rope_append_kernel<T>, dim3(narrow<unsigned>(n_tokens), args.q == nullptr ? 2 : 3),
        threads_of_token(std::max(args.n_heads, args.cache.n_kv_heads), args.cache.head_dim / 16),
        0, stream, args);
  });
}

}  // namespace

void rope(cudaStream_t stream, Tensor out, Tensor x, Tensor cos_sin, int64_t pos) {
  MINFER_CHECK(x.shape.rank == 3 && out.shape == x.shape, "rope: x ", x.shape, ", out ", out.shape);
  MINFER_CHECK(out.dtype == x.dtype || out.dtype == DType::F16, "rope: ", x.dtype, " to ",
               out.dtype);
  const int64_t n_tokens = x.shape[0], n_heads = x.shape[1], head_dim = x.shape[2];
  const int64_t n_pairs = cos_sin ? cos_sin.shape[1] : 0;
  MINFER_CHECK(!cos_sin || (cos_sin.dtype == DType::F32 && cos_sin.shape.rank == 3 &&
                            cos_sin.shape[2] == 2 && 2 * n_pairs <= head_dim && pos >= 0 &&
                            pos + n_tokens <= cos_sin.shape[0]),
               "rope: positions ", pos, " to ", pos + n_tokens, " of heads of ", head_dim,
               " by a table ", cos_sin.shape);
  if (x.n_elements() == 0) return;
  const auto run = [&]<typename Out, typename In, int kN>() {
    launch(rope_kernel<Out, In, kN>, narrow<unsigned>(n_tokens),
           threads_of_token(n_heads, (head_dim - n_pairs) / kN), 0, stream, data_of<Out>(out),
           data_of<const In>(x), data_of<const float2>(cos_sin), narrow<int>(n_heads),
           narrow<int>(head_dim), narrow<int>(n_pairs), pos);
  };
  const bool by_8 = head_dim % 8 == 0 && n_pairs % 8 == 0 && aligned16(x) && aligned16(out) &&
                    (!cos_sin || aligned16(cos_sin));
  visit_half(x.dtype, [&]<typename In>() {
    if (out.dtype == x.dtype) {
      if (by_8) return run.template operator()<In, In, 8>();
      return run.template operator()<In, In, 1>();
    }
    if (by_8) return run.template operator()<__half, In, 8>();
    run.template operator()<__half, In, 1>();
  });
}

void kv_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor k, Tensor v) {
  MINFER_CHECK(k.shape.rank == 3 && v.shape == k.shape && v.dtype == k.dtype &&
                   k.shape[1] == cache.n_kv_heads && k.shape[2] == cache.head_dim,
               "kv_append: k ", k.shape, ", v ", v.shape, " to a cache of ", cache.n_kv_heads,
               " heads of ", cache.head_dim);
  const int64_t n_tokens = k.shape[0];
  attention::check_place("kv_append", place, n_tokens);
  MINFER_CHECK(cache.dtype == DType::F16 || cache.dtype == DType::U8, "kv_append: a cache of ",
               cache.dtype);
  if (k.n_elements() == 0) return;
  if (cache.dtype == DType::F16 && in_words(cache, k, v)) {
    return run_rope_append(stream, k.dtype,
                           {.q = nullptr,
                            .k = k.data,
                            .v = v.data,
                            .cache = attention::cache_of(cache, place.pages),
                            .cos_sin = nullptr,
                            .pos = narrow<int>(place.pos),
                            .n_heads = 0,
                            .n_pairs = 0},
                           n_tokens);
  }
  const AppendArgs args{
      .k = k.data,
      .v = v.data,
      .cache = attention::cache_of(cache, place.pages),
      .n_tokens = n_tokens,
      .pos = narrow<int>(place.pos),
  };
  const dim3 grid(narrow<unsigned>(ceil_div(n_tokens * cache.n_kv_heads, kWarps)), 2);
  const auto n_lanes =
      std::bit_ceil(static_cast<unsigned>(ceil_div(cache.head_dim, 8 * kCodeChunks)));
  visit_half(k.dtype, [&]<typename T>() {
    if (cache.dtype == DType::F16) {
      launch(plain_kv_append_kernel<T, false>, grid, kThreads, 0, stream, args);
    } else if (in_words(cache, k, v) && n_lanes <= 32) {
      const int64_t n_head_blocks =
          ceil_div(cache.n_kv_heads, kThreads / kCodeTokens / int64_t{n_lanes});
      const int64_t n_blocks = ceil_div(n_tokens, kCodeTokens) * n_head_blocks;
      launch(append_codes_kernel<T>, dim3(narrow<unsigned>(n_blocks), 2), kThreads, 0, stream, args,
             std::countr_zero(n_lanes), narrow<unsigned>(n_head_blocks));
    } else {
      launch(plain_kv_append_kernel<T, true>, grid, kThreads, 0, stream, args);
    }
  });
}

void rope_append(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor q, Tensor k,
                 Tensor v, Tensor cos_sin) {
  const int64_t pos = place.pos;
  if (cache.dtype != DType::F16 || !in_words(cache, k, v) || !aligned16(q) || !cos_sin ||
      cos_sin.shape[1] % 8 != 0 || !aligned16(cos_sin)) {
    rope(stream, q, q, cos_sin, pos);
    rope(stream, k, k, cos_sin, pos);
    return kv_append(stream, cache, place, k, v);
  }
  const int64_t n_tokens = q.shape[0], n_pairs = cos_sin.shape[1];
  const Shape of_kv{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(q.shape == (Shape{n_tokens, q.shape[1], cache.head_dim}) && k.shape == of_kv &&
                   v.shape == of_kv && k.dtype == q.dtype && v.dtype == q.dtype,
               "rope_append: q ", q.dtype, " ", q.shape, ", k ", k.dtype, " ", k.shape, ", v ",
               v.dtype, " ", v.shape, " to a cache of ", cache.n_kv_heads, " heads of ",
               cache.head_dim);
  MINFER_CHECK(cos_sin.dtype == DType::F32 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   2 * n_pairs <= cache.head_dim && pos + n_tokens <= cos_sin.shape[0],
               "rope_append: positions ", pos, " to ", pos + n_tokens, " by a table ",
               cos_sin.shape);
  attention::check_place("rope_append", place, n_tokens);
  if (n_tokens == 0) return;
  const RopeAppendArgs args{
      .q = q.data,
      .k = k.data,
      .v = v.data,
      .cache = attention::cache_of(cache, place.pages),
      .cos_sin = data_of<const float2>(cos_sin),
      .pos = narrow<int>(pos),
      .n_heads = narrow<int>(q.shape[1]),
      .n_pairs = narrow<int>(n_pairs),
  };
  run_rope_append(stream, q.dtype, args, n_tokens);
}

}  // namespace minfer::cuda
