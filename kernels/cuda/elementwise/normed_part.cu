#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

template <typename Half>
struct NormedPart {
  float* x;
  const Half* part;
  const Half* post_weight;  // null: there is no post norm
  Half* out;                // null: there is no next norm
  const Half* next_weight;  // null: out is x, rounded
  int dim;
  float post_eps, scale, next_eps;
};

// x[t] += scale * part[t] * post_weight / sqrt(mean(part[t]^2) + post_eps), then
// out[t] = x[t] * next_weight / sqrt(mean(x[t]^2) + next_eps)
//
//   x          [n_tokens, dim] float, in place; part, out [n_tokens, dim] Half; weights [dim] Half.
//              Rows aligned to 16 bytes
//   launch     one block per row, which it keeps in registers (rows.cuh), the last row first, as
//              norm_kernel does
//   maths      f32, without rounding between the norm, the sum and the second norm; sums by thread,
//              then over lanes and warps in fixed order
//   moves      n_tokens * dim * (2 sizeof(float) + 2 sizeof(Half)) bytes
template <typename Half>
__global__ void __launch_bounds__(kMaxRowThreads) normed_part_kernel(const NormedPart<Half> a) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * a.dim;
  const auto dim = static_cast<float>(a.dim);
  RegisterRow row{.dim = a.dim};
  float sum = 0;
  row.for_each([&](float(&v)[kChunk], int at) {
    load_chunk(v, a.part + first + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += v[i] * v[i];
  });
  float scale = a.scale;
  if (a.post_weight != nullptr) {
    scale *= rsqrtf(block_reduce(sum, Sum{}, 0, scratch) / dim + a.post_eps);
  }
  sum = 0;
  row.for_each([&](float(&v)[kChunk], int at) {
    float w[kChunk], x[kChunk];
    if (a.post_weight != nullptr) load_chunk(w, a.post_weight + at);
    load_chunk(x, a.x + first + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      v[i] = fmaf(v[i] * scale, a.post_weight != nullptr ? w[i] : 1.0f, x[i]);
      sum += v[i] * v[i];
    }
    store_chunk(a.x + first + at, v);
  });
  if (a.out == nullptr) return;
  const float next_scale = a.next_weight == nullptr
                               ? 1.0f
                               : rsqrtf(block_reduce(sum, Sum{}, 0, scratch) / dim + a.next_eps);
  row.for_each([&](float(&v)[kChunk], int at) {
    float w[kChunk];
    if (a.next_weight != nullptr) load_chunk(w, a.next_weight + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      v[i] *= next_scale * (a.next_weight != nullptr ? w[i] : 1.0f);
    }
    store_chunk(a.out + first + at, v);
  });
}

// The same for any dim and alignment
//
//   launch   a block of 256 threads a row
//   maths    as there
//   moves    as there, but reads part twice, and x three times
template <typename Half>
__global__ void __launch_bounds__(256) plain_normed_part_kernel(const NormedPart<Half> a) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * a.dim;
  const auto dim = static_cast<float>(a.dim);
  float sum = 0;
  for (int i = threadIdx.x; i < a.dim; i += 256) {
    const float v = to_float(a.part[first + i]);
    sum += v * v;
  }
  float scale = a.scale;
  if (a.post_weight != nullptr) {
    scale *= rsqrtf(block_reduce(sum, Sum{}, 0, scratch) / dim + a.post_eps);
  }
  sum = 0;
  for (int i = threadIdx.x; i < a.dim; i += 256) {
    const float w = a.post_weight != nullptr ? to_float(a.post_weight[i]) : 1.0f;
    const float v = fmaf(to_float(a.part[first + i]) * scale, w, a.x[first + i]);
    sum += v * v;
    a.x[first + i] = v;
  }
  if (a.out == nullptr) return;
  const float next_scale = a.next_weight == nullptr
                               ? 1.0f
                               : rsqrtf(block_reduce(sum, Sum{}, 0, scratch) / dim + a.next_eps);
  for (int i = threadIdx.x; i < a.dim; i += 256) {  // each thread reads what it has written
    const float w = a.next_weight != nullptr ? to_float(a.next_weight[i]) : 1.0f;
    a.out[first + i] = from_float<Half>(a.x[first + i] * next_scale * w);
  }
}

}  // namespace

void add_normed_part(cudaStream_t stream, Tensor x, Tensor part, const NormWeights& post_norm,
                     float scale, const NormArgs* next) {
  const int64_t dim = x.shape.last(), n_rows = x.shape[0];
  const auto is_weight = [&](const Tensor& t, NormKind kind) {
    if (kind == NormKind::None) return !t;
    return kind == NormKind::Rms && t.dtype == part.dtype && t.shape == Shape{dim};
  };
  MINFER_CHECK(x.dtype == DType::F32 && x.shape == Shape({n_rows, dim}) && part.shape == x.shape &&
                   is_weight(post_norm.weight, post_norm.kind),
               "add_normed_part: x ", x.dtype, " ", x.shape, ", part ", part.dtype, " ", part.shape,
               ", weight ", post_norm.weight.shape);
  MINFER_CHECK(
      next == nullptr || (next->x.data == x.data && next->out.shape == x.shape &&
                          next->out.dtype == part.dtype && is_weight(next->weight, next->kind)),
      "add_normed_part: a next norm that does not suit x ", x.shape);
  if (n_rows == 0) return;
  const Tensor none, out = next == nullptr ? none : next->out;
  const Tensor next_weight = next == nullptr ? none : next->weight;
  const bool whole = fits_register_row(dim);
  visit_half(part.dtype, [&]<typename Half>() {
    const NormedPart<Half> args{.x = data_of<float>(x),
                                .part = data_of<Half>(part),
                                .post_weight = data_of<Half>(post_norm.weight),
                                .out = data_of<Half>(out),
                                .next_weight = data_of<Half>(next_weight),
                                .dim = narrow<int>(dim),
                                .post_eps = post_norm.eps,
                                .scale = scale,
                                .next_eps = next == nullptr ? 0 : next->eps};
    launch(whole ? normed_part_kernel<Half> : plain_normed_part_kernel<Half>,
           dim3(narrow<unsigned>(n_rows)), dim3(whole ? row_threads(dim) : 256), kReduceBytes,
           stream, args);
  });
}

}  // namespace minfer::cuda
