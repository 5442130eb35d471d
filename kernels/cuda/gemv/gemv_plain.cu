#include "kernels/cuda/gemv/epilogue.cuh"
#include "kernels/cuda/gemv/params.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"
#include "kernels/cuda/reduce.cuh"

namespace minfer::cuda {
namespace {

constexpr int kPlainThreads = 256, kPlainRows = kPlainThreads / 32;  // per block

struct PlainParams {
  MatrixView w, up;  // up is set only for gates
  void* out;
  const void *bias, *up_bias;
  const void* x;
  const void* norm_weight;
  const void* norm_bias;
  float eps;
  InputNorm norm;
  Epilogue epilogue;
  bool out_is_f32;
  int64_t out_dim, in_dim;
  unsigned blocks_of_token;
};

// out[token, row] = epilogue(norm(x) wᵀ + bias): the same as gemv_kernel, for any in_dim and any
// element type, not tuned for speed
//
//   launch    blocks_of_token blocks per token; each of a block's 8 warps computes one row. Shared
//             memory for 32 floats
//   maths     as gemv_kernel of one row: the normed input is rounded to T, sums in f32
template <typename T>
__global__ void __launch_bounds__(kPlainThreads)
    gemv_plain_kernel(const __grid_constant__ PlainParams p) {
  float* const scratch = reinterpret_cast<float*>(ptx::dynamic_shared());
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t token = blockIdx.x / p.blocks_of_token;
  const int64_t n = p.in_dim, begin = token * n;
  const bool has_norm = p.norm != InputNorm::None;
  const auto x_at = [&](int64_t k) {
    return has_norm ? static_cast<const float*>(p.x)[begin + k]
                    : to_float(static_cast<const T*>(p.x)[begin + k]);
  };
  float mean = 0, scale = 1;
  if (p.norm == InputNorm::Layer) {
    float sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += kPlainThreads) sum += x_at(k);
    mean = block_reduce(sum, Sum{}, 0, scratch) / float(n);
  }
  if (has_norm) {
    float sum_sq = 0;
    for (int64_t k = threadIdx.x; k < n; k += kPlainThreads) {
      sum_sq += (x_at(k) - mean) * (x_at(k) - mean);
    }
    scale = rsqrtf(block_reduce(sum_sq, Sum{}, 0, scratch) / float(n) + p.eps);
  }
  const auto input = [&](int64_t k) {
    if (!has_norm) return x_at(k);
    const float y = (x_at(k) - mean) * scale * to_float(static_cast<const T*>(p.norm_weight)[k]);
    const float b = p.norm_bias == nullptr ? 0.0f : to_float(static_cast<const T*>(p.norm_bias)[k]);
    return to_float(from_float<T>(y + b));
  };

  const int64_t row = int64_t{blockIdx.x % p.blocks_of_token} * kPlainRows + threadIdx.x / 32;
  if (row >= p.out_dim) return;
  const bool pairs = is_gated(p.epilogue);
  float sum = 0, up = 0;
  for (int64_t k = threadIdx.x % 32; k < n; k += 32) {
    sum += input(k) * p.w.at(row, k);
    if (pairs) up += input(k) * p.up.at(row, k);
  }
  sum = warp_reduce(sum, Sum{});
  up = warp_reduce(up, Sum{});
  if (threadIdx.x % 32 != 0) return;
  if (p.bias != nullptr) sum += to_float(static_cast<const T*>(p.bias)[row]);
  if (p.up_bias != nullptr) up += to_float(static_cast<const T*>(p.up_bias)[row]);
  const int64_t at = token * p.out_dim + row;
  const float residual =
      p.epilogue == Epilogue::Accumulate ? static_cast<const float*>(p.out)[at] : 0.0f;
  store_result<T, true>(p.out, at, p.out_is_f32, p.epilogue, sum, up, residual);
}

}  // namespace

void gemv_plain(cudaStream_t stream, Tensor x, const GemvNorm* norm,
                std::span<const GemvPart> parts, Epilogue epilogue) {
  PlainParams p{};
  p.x = x.data;
  p.norm = norm == nullptr ? InputNorm::None : norm->is_rms ? InputNorm::Rms : InputNorm::Layer;
  if (norm != nullptr) {
    p.norm_weight = norm->weight.data;
    p.norm_bias = norm->bias.data;
    p.eps = norm->eps;
  }
  p.epilogue = epilogue;
  p.in_dim = x.shape[1];
  const bool pairs = is_gated(epilogue);
  for (size_t i = 0; i < (pairs ? 1 : parts.size()); ++i) {
    const GemvPart& part = parts[i];
    p.w = view_of(*part.w);
    p.bias = part.bias.data;
    if (pairs) {
      p.up = view_of(*parts[1].w);
      p.up_bias = parts[1].bias.data;
    }
    p.out = part.out.data;
    p.out_is_f32 = part.out.dtype == DType::F32;
    p.out_dim = part.w->out_dim;
    p.blocks_of_token = narrow<unsigned>(ceil_div(p.out_dim, kPlainRows));
    visit_half(norm == nullptr ? x.dtype : norm->weight.dtype, [&]<typename T>() {
      launch(gemv_plain_kernel<T>, dim3(p.blocks_of_token * narrow<unsigned>(x.shape[0])),
             dim3(kPlainThreads), 32 * sizeof(float), stream, p);
    });
  }
}

}  // namespace minfer::cuda
