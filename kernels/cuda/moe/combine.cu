#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {
namespace {

constexpr int kCombineThreads = 128;

struct CombineParams {
  const void *outs, *shared;
  const float *weights, *gate;
  const int32_t* places;
  int n_active;
  int64_t dim;
};

// sum_j weights[row, j] outs[places[row, j]] + sigmoid(gate[row]) shared[row], of kColumns columns
// from `column` on: CombineArgs. outs T; f32, in the order of the formula.
template <typename T, int kColumns>
__device__ inline void sum_experts(float (&sums)[kColumns], const CombineParams& p, int64_t row,
                                   int64_t column) {
  const auto add = [&](float weight, const void* rows, int64_t at) {
    const auto values = *reinterpret_cast<const Vec<T, kColumns>*>(static_cast<const T*>(rows) +
                                                                   at * p.dim + column);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i] += weight * to_float(values[i]);
  };
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int j = 0; j < p.n_active; ++j) {
    const int64_t pair = row * p.n_active + j;
    add(p.weights[pair], p.outs, p.places[pair]);
  }
  if (p.shared != nullptr) {
    add(p.gate == nullptr ? 1.0f : 1.0f / (1.0f + expf(-p.gate[row])), p.shared, row);
  }
}

// out[t] (+)= sum_experts of row t
//
//   out       T, or F32 if it is added to
//   launch    blocks_of_row blocks per row, a thread for kColumns columns
//   requires  dim a multiple of kColumns, and rows aligned to as many elements
//   maths     f32; one rounding
template <typename T, typename Out, int kColumns>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(Out* out, const __grid_constant__ CombineParams p, int blocks_of_row) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t row = int(blockIdx.x) / blocks_of_row;
  const int64_t column =
      (int64_t{int(blockIdx.x) % blocks_of_row} * kCombineThreads + threadIdx.x) * kColumns;
  if (column >= p.dim) return;
  float sums[kColumns];
  sum_experts<T>(sums, p, row, column);
  auto& to = *reinterpret_cast<Vec<Out, kColumns>*>(out + row * p.dim + column);
  Vec<Out, kColumns> result;
  if constexpr (sizeof(Out) == sizeof(float)) {
    result = to;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) result[i] += sums[i];
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) result[i] = from_float<Out>(sums[i]);
  }
  to = result;
}

// x[t] += sum_experts of row t, then out[t] = x[t] weight / sqrt(mean(x[t]^2) + eps)
//
//   x         [n_rows, dim] F32, in place; out [n_rows, dim] T; weight [dim] T
//   launch    one block per row, which it keeps in registers (rows.cuh), the last row first, as
//             norm_kernel does
//   requires  rows aligned to 16 bytes
//   maths     f32, of norm_kernel: the bits are those of combine_kernel and then rms_norm
//   moves     n_rows dim ((n_active + 1) sizeof(T) + 2 sizeof(float)) bytes; two kernels would read
//             x once more
template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads)
    combine_norm_kernel(float* x, T* out, const T* weight, const __grid_constant__ CombineParams p,
                        float eps) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t t = gridDim.x - 1 - blockIdx.x, first = t * p.dim;
  RegisterRow row{.dim = static_cast<int>(p.dim)};
  float sum = 0;
  row.for_each([&](float(&v)[kChunk], int at) {
    float before[kChunk];
    load_chunk(before, x + first + at);
    sum_experts<T>(v, p, t, at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] += before[i];
    store_chunk(x + first + at, v);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += v[i] * v[i];
  });
  sum = block_reduce(sum, Sum{}, 0, scratch);
  const float scale = rsqrtf(sum / static_cast<float>(row.dim) + eps);
  row.for_each([&](float(&v)[kChunk], int at) {
    float w[kChunk];
    load_chunk(w, weight + at);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = fmaf(v[i] * scale, w[i], 0.0f);
    store_chunk(out + first + at, v);
  });
}

}  // namespace

void combine_experts(cudaStream_t stream, const CombineArgs& a) {
  const Routing& r = a.routing;
  const int64_t dim = a.out.shape[1];
  MINFER_CHECK(
      a.out.shape == Shape({r.n_rows, dim}) && a.outs.shape == Shape({r.n_pairs(), dim}) &&
          (!a.shared || (a.shared.shape == a.out.shape && a.shared.dtype == a.outs.dtype)) &&
          a.out.dtype == (a.accumulate ? DType::F32 : a.outs.dtype),
      "combine: out ", a.out.dtype, ' ', a.out.shape, ", outs ", a.outs.shape, ", shared ",
      a.shared.shape);
  const NormArgs* const next = a.next;
  MINFER_CHECK(
      next == nullptr || (a.accumulate && next->kind == NormKind::Rms && !next->activation &&
                          next->x.data == a.out.data && next->out.shape == a.out.shape &&
                          next->out.dtype == a.outs.dtype && next->weight.dtype == a.outs.dtype &&
                          next->weight.shape == Shape{dim}),
      "combine: a next norm that does not suit out ", a.out.shape);
  if (r.n_rows == 0) return;
  const CombineParams p{
      a.outs.data, a.shared.data,           r.weights, data_of<const float>(a.shared_gate),
      r.places,    narrow<int>(r.n_active), dim};
  const bool by_eight =
      dim % 8 == 0 && aligned16(a.out) && aligned16(a.outs) && (!a.shared || aligned16(a.shared));
  const auto run = [&]<typename T, typename Out, int kColumns>() {
    const int blocks_of_row = narrow<int>(ceil_div(dim, kCombineThreads * kColumns));
    launch(combine_kernel<T, Out, kColumns>, dim3(narrow<unsigned>(r.n_rows * blocks_of_row)),
           dim3(kCombineThreads), 0, stream, data_of<Out>(a.out), p, blocks_of_row);
  };
  const auto run_to = [&]<typename T, typename Out>() {
    by_eight ? run.template operator()<T, Out, 8>() : run.template operator()<T, Out, 1>();
  };
  const bool is_fused = next != nullptr && by_eight && fits_register_row(dim) &&
                        aligned16(next->out) && aligned16(next->weight);
  visit_half(a.outs.dtype, [&]<typename T>() {
    if (is_fused) {
      return launch(combine_norm_kernel<T>, dim3(narrow<unsigned>(r.n_rows)),
                    dim3(row_threads(dim)), kReduceBytes, stream, data_of<float>(a.out),
                    data_of<T>(next->out), data_of<const T>(next->weight), p, next->eps);
    }
    a.accumulate ? run_to.template operator()<T, float>() : run_to.template operator()<T, T>();
  });
  if (next != nullptr && !is_fused) rms_norm(stream, next->out, a.out, next->weight, next->eps);
}

}  // namespace minfer::cuda
