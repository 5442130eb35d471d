#include <algorithm>

#include "kernels/cuda/attention/quantize_row.cuh"
#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

namespace minfer::cuda {
namespace {

constexpr int kWarps = 8;

template <typename T, int kN>
struct alignas(sizeof(T) * kN) Some {
  T at[kN];
};

// out[t, h] = x[t, h] with pairs (i, i + n_pairs) turned by the angle of position pos + t; elements
// past 2 n_pairs as they are
//
//   x, out   [n_rows / n_heads, n_heads, head_dim] In and Out; out may be x where the types agree
//   cos_sin  [.., n_pairs] cosine and sine, f32; not read where n_pairs is 0
//   launch   one warp a row, kN elements a lane and access
//   maths    f32 (rotate.cuh), one rounding
template <typename Out, typename In, int kN>
__global__ void __launch_bounds__(32 * kWarps)
    rope_kernel(Out* out, const In* x, const float2* cos_sin, int64_t n_rows, int n_heads,
                int head_dim, int n_pairs, int64_t pos) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= n_rows) return;
  const float2* const angles = cos_sin + (pos + row / n_heads) * n_pairs;
  using From = Some<In, kN>;
  using To = Some<Out, kN>;
  const auto* from = x + row * head_dim;
  auto* to = out + row * head_dim;
  for (int i = int(threadIdx.x) % 32 * kN; i < n_pairs; i += 32 * kN) {
    const From a = *reinterpret_cast<const From*>(from + i);
    const From b = *reinterpret_cast<const From*>(from + i + n_pairs);
    To low, high;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const float2 r = attention::rotated(to_float(a.at[e]), to_float(b.at[e]), angles[i + e]);
      low.at[e] = from_float<Out>(r.x);
      high.at[e] = from_float<Out>(r.y);
    }
    *reinterpret_cast<To*>(to + i) = low;
    *reinterpret_cast<To*>(to + i + n_pairs) = high;
  }
  for (int i = 2 * n_pairs + int(threadIdx.x) % 32 * kN; i < head_dim; i += 32 * kN) {
    const From a = *reinterpret_cast<const From*>(from + i);
    To same;
#pragma unroll
    for (int e = 0; e < kN; ++e) same.at[e] = from_float<Out>(to_float(a.at[e]));
    *reinterpret_cast<To*>(to + i) = same;
  }
}

struct AppendArgs {
  const void *k, *v;  // [n_tokens, n_heads, head_dim] T
  void *keys, *values;
  float *key_scales, *value_scales;  // of U8
  int64_t n_rows, capacity, pos;     // n_rows: n_tokens * n_heads
  int n_heads, head_dim;
};

// cache[h, pos + t] = k[t, h], and the same for v
//
//   cache    [n_heads, capacity, head_dim] F16, or U8 with a scale [n_heads, capacity] for each row
//   launch   one warp a row of k (blockIdx.y 0) or v (1), kN elements a lane and access
//   maths    U8: quantize_row.cuh
template <typename T, bool kU8, int kN>
__global__ void __launch_bounds__(32 * kWarps) kv_append_kernel(const AppendArgs a) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.n_rows) return;
  const bool is_k = blockIdx.y == 0;
  const T* const from = static_cast<const T*>(is_k ? a.k : a.v) + row * a.head_dim;
  const int64_t to_row = row % a.n_heads * a.capacity + a.pos + row / a.n_heads;
  const int begin = int(threadIdx.x) % 32 * kN;
  using From = Some<T, kN>;
  if constexpr (kU8) {
    float largest = 0;
    for (int i = begin; i < a.head_dim; i += 32 * kN) {
      const From x = *reinterpret_cast<const From*>(from + i);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        largest = attention::larger_magnitude(largest, to_float(x.at[e]));
      }
    }
    const attention::RowScale scale = attention::row_scale(largest);
    if (threadIdx.x % 32 == 0) (is_k ? a.key_scales : a.value_scales)[to_row] = scale.step;
    uint8_t* const to = static_cast<uint8_t*>(is_k ? a.keys : a.values) + to_row * a.head_dim;
    for (int i = begin; i < a.head_dim; i += 32 * kN) {
      const From x = *reinterpret_cast<const From*>(from + i);
      Some<uint8_t, kN> levels;
#pragma unroll
      for (int e = 0; e < kN; ++e) levels.at[e] = attention::level_of(to_float(x.at[e]), scale);
      *reinterpret_cast<Some<uint8_t, kN>*>(to + i) = levels;
    }
  } else {
    __half* const to = static_cast<__half*>(is_k ? a.keys : a.values) + to_row * a.head_dim;
    for (int i = begin; i < a.head_dim; i += 32 * kN) {
      const From x = *reinterpret_cast<const From*>(from + i);
      Some<__half, kN> halves;
#pragma unroll
      for (int e = 0; e < kN; ++e) halves.at[e] = from_float<__half>(to_float(x.at[e]));
      *reinterpret_cast<Some<__half, kN>*>(to + i) = halves;
    }
  }
}

struct RopeAppendArgs {
  void* q;            // [n_tokens, n_heads, head_dim] T
  const void *k, *v;  // [n_tokens, n_kv_heads, head_dim] T
  __half *keys, *values;
  const float2* cos_sin;
  int64_t capacity, pos;
  int n_heads, n_kv_heads, head_dim, n_pairs;
};

// q[t, h] turned as rope_kernel does; cache[h, pos + t] = k[t, h], turned, and v[t, h]
//
//   cache    [n_kv_heads, capacity, head_dim] F16
//   launch   a block a token of q (blockIdx.y 0), k (1) or v (2); a thread 2 x 16 bytes of a head
//            at a time: of both halves of 8 pairs, or of what is not turned
//   maths    rope_kernel's to T, then rounded to F16: the bits of rope and append one after the
//            other
//   moves    q, k and v once in each direction
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) rope_append_kernel(const RopeAppendArgs a) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  using From = Some<T, 8>;
  using To = Some<__half, 8>;
  using Two = Some<float2, 2>;
  const int64_t token = blockIdx.x;
  const bool is_q = blockIdx.y == 0, is_v = blockIdx.y == 2;
  const int n_heads = is_q ? a.n_heads : a.n_kv_heads;
  const int n_chunks = a.head_dim / 16, n_turned = is_v ? 0 : a.n_pairs / 8;
  const float2* const angles = a.cos_sin + (a.pos + token) * a.n_pairs;
  for (int i = static_cast<int>(threadIdx.x); i < n_heads * n_chunks; i += 32 * kWarps) {
    const int head = i / n_chunks, chunk = i % n_chunks;
    const bool turns = chunk < n_turned;
    if (is_q && !turns) continue;
    const int first = turns ? chunk * 8 : chunk * 16;
    const int second = first + (turns ? a.n_pairs : 8);
    const int64_t row = (token * n_heads + head) * a.head_dim;
    const T* const from = static_cast<const T*>(is_q ? a.q : is_v ? a.v : a.k) + row;
    From low = *reinterpret_cast<const From*>(from + first);
    From high = *reinterpret_cast<const From*>(from + second);
    if (turns) {
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const Two two = *reinterpret_cast<const Two*>(angles + chunk * 8 + e);
#pragma unroll
        for (int j = e; j < e + 2; ++j) {
          const float2 r =
              attention::rotated(to_float(low.at[j]), to_float(high.at[j]), two.at[j - e]);
          low.at[j] = from_float<T>(r.x);
          high.at[j] = from_float<T>(r.y);
        }
      }
    }
    if (is_q) {
      T* const to = static_cast<T*>(a.q) + row;
      *reinterpret_cast<From*>(to + first) = low;
      *reinterpret_cast<From*>(to + second) = high;
      continue;
    }
    To low_half, high_half;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      low_half.at[e] = from_float<__half>(to_float(low.at[e]));
      high_half.at[e] = from_float<__half>(to_float(high.at[e]));
    }
    __half* const to =
        (is_v ? a.values : a.keys) + (head * a.capacity + a.pos + token) * a.head_dim;
    *reinterpret_cast<To*>(to + first) = low_half;
    *reinterpret_cast<To*>(to + second) = high_half;
  }
}

bool aligned16(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data) % 16 == 0; }
bool aligned8(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data) % 8 == 0; }

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
  const int64_t n_rows = n_tokens * n_heads;
  const auto run = [&]<typename Out, typename In, int kN>() {
    launch(rope_kernel<Out, In, kN>, narrow<unsigned>(ceil_div(n_rows, kWarps)), 32 * kWarps, 0,
           stream, data_of<Out>(out), data_of<const In>(x), data_of<const float2>(cos_sin), n_rows,
           narrow<int>(n_heads), narrow<int>(head_dim), narrow<int>(n_pairs), pos);
  };
  const bool by_4 = head_dim % 4 == 0 && n_pairs % 4 == 0 && aligned8(x) && aligned8(out);
  visit_half(x.dtype, [&]<typename In>() {
    if (out.dtype == x.dtype) {
      if (by_4) return run.template operator()<In, In, 4>();
      return run.template operator()<In, In, 1>();
    }
    if (by_4) return run.template operator()<__half, In, 4>();
    run.template operator()<__half, In, 1>();
  });
}

void kv_append(cudaStream_t stream, KvLayer& cache, Tensor k, Tensor v, int64_t pos) {
  MINFER_CHECK(k.shape.rank == 3 && v.shape == k.shape && v.dtype == k.dtype &&
                   k.shape[1] == cache.n_kv_heads && k.shape[2] == cache.head_dim,
               "kv_append: k ", k.shape, ", v ", v.shape, " to a cache of ", cache.n_kv_heads,
               " heads of ", cache.head_dim);
  const int64_t n_tokens = k.shape[0];
  MINFER_CHECK(pos >= 0 && pos + n_tokens <= cache.capacity, "kv_append: positions ", pos, " to ",
               pos + n_tokens, " of a cache of ", cache.capacity);
  MINFER_CHECK(cache.dtype == DType::F16 || cache.dtype == DType::U8, "kv_append: a cache of ",
               cache.dtype);
  if (k.n_elements() == 0) return;
  const AppendArgs args{
      .k = k.data,
      .v = v.data,
      .keys = cache.keys.view().data,
      .values = cache.values.view().data,
      .key_scales = data_of<float>(cache.key_scales),
      .value_scales = data_of<float>(cache.value_scales),
      .n_rows = n_tokens * cache.n_kv_heads,
      .capacity = cache.capacity,
      .pos = pos,
      .n_heads = narrow<int>(cache.n_kv_heads),
      .head_dim = narrow<int>(cache.head_dim),
  };
  const auto run = [&]<typename T, bool kU8, int kN>() {
    launch(kv_append_kernel<T, kU8, kN>, dim3(narrow<unsigned>(ceil_div(args.n_rows, kWarps)), 2),
           32 * kWarps, 0, stream, args);
  };
  const bool by_4 = cache.head_dim % 4 == 0 && aligned8(k) && aligned8(v) && aligned8(cache.keys) &&
                    aligned8(cache.values);
  visit_half(k.dtype, [&]<typename T>() {
    if (cache.dtype == DType::U8) {
      if (by_4) return run.template operator()<T, true, 4>();
      return run.template operator()<T, true, 1>();
    }
    if (by_4) return run.template operator()<T, false, 4>();
    run.template operator()<T, false, 1>();
  });
}

void rope_append(cudaStream_t stream, KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                 int64_t pos) {
  const bool in_chunks = cache.dtype == DType::F16 && cache.head_dim % 16 == 0 && cos_sin &&
                         cos_sin.shape[1] % 8 == 0 && aligned16(cos_sin) && aligned16(q) &&
                         aligned16(k) && aligned16(v) && aligned16(cache.keys) &&
                         aligned16(cache.values);
  if (!in_chunks) {
    rope(stream, q, q, cos_sin, pos);
    rope(stream, k, k, cos_sin, pos);
    return kv_append(stream, cache, k, v, pos);
  }
  const int64_t n_tokens = q.shape[0], n_pairs = cos_sin.shape[1];
  const Shape of_kv{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(q.shape == (Shape{n_tokens, q.shape[1], cache.head_dim}) && k.shape == of_kv &&
                   v.shape == of_kv && k.dtype == q.dtype && v.dtype == q.dtype,
               "rope_append: q ", q.dtype, " ", q.shape, ", k ", k.dtype, " ", k.shape, ", v ",
               v.dtype, " ", v.shape, " to a cache of ", cache.n_kv_heads, " heads of ",
               cache.head_dim);
  MINFER_CHECK(cos_sin.dtype == DType::F32 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   2 * n_pairs <= cache.head_dim && pos >= 0 &&
                   pos + n_tokens <= std::min(cos_sin.shape[0], cache.capacity),
               "rope_append: positions ", pos, " to ", pos + n_tokens, " by a table ",
               cos_sin.shape, ", a cache of ", cache.capacity);
  if (n_tokens == 0) return;
  const RopeAppendArgs args{
      .q = q.data,
      .k = k.data,
      .v = v.data,
      .keys = data_of<__half>(cache.keys),
      .values = data_of<__half>(cache.values),
      .cos_sin = data_of<const float2>(cos_sin),
      .capacity = cache.capacity,
      .pos = pos,
      .n_heads = narrow<int>(q.shape[1]),
      .n_kv_heads = narrow<int>(cache.n_kv_heads),
      .head_dim = narrow<int>(cache.head_dim),
      .n_pairs = narrow<int>(n_pairs),
  };
  visit_half(q.dtype, [&]<typename T>() {
    launch(rope_append_kernel<T>, dim3(narrow<unsigned>(n_tokens), 3), 32 * kWarps, 0, stream,
           args);
  });
}

}  // namespace minfer::cuda
