#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/expert_columns.cuh"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

// Below so many rows an expert on average, tiles of wgmma would be mostly empty.
constexpr int64_t kFewestRows = 24;
constexpr int kCopyThreads = 256;

// out = x with the columns of each row in fragment order; n: groups of 16 columns of 2 bytes.
__global__ void reorder_columns_kernel(uint4* out, const uint4* x, int64_t n) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t at = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
  if (at >= n) return;
  const uint4 low = x[2 * at], high = x[2 * at + 1];
  out[2 * at] = in_fragment_order(low, high, 0);
  out[2 * at + 1] = in_fragment_order(low, high, 1);
}

bool takes(const Matrix& w, DType half) {
  return is_packed(w) ? w.in_dim % 16 == 0 : w.dtype == half && w.in_dim % 8 == 0;
}

}  // namespace

bool experts_by_wgmma(cudaStream_t stream, const ExpertsArgs& args) {
  const Routing& r = args.routing;
  return r.n_pairs() >= kFewestRows * r.n_experts && experts_by_wgmma_always(stream, args);
}

bool experts_by_wgmma_always(cudaStream_t stream, const ExpertsArgs& args) {
  const ExpertMatrices gate = matrices_of(args.weights, ExpertPart::Gate);
  const ExpertMatrices up = matrices_of(args.weights, ExpertPart::Up);
  const ExpertMatrices down = matrices_of(args.weights, ExpertPart::Down);
  const DType half = args.x.dtype;
  if (!has_hgemm() || !takes(*gate.first, half) || !takes(*down.first, half)) return false;
  const bool reorders_x = is_packed(*gate.first), reorders_hidden = is_packed(*down.first);
  ExpertCall first{.out = args.hidden,
                   .x = args.x,
                   .routing = args.routing,
                   .w = gate,
                   .up = &up,
                   .clamp = args.spec.swiglu_clamp()};
  const ExpertCall second{
      .out = args.out, .x = args.hidden, .x_by_place = true, .routing = args.routing, .w = down};
  ExpertGemmParams of_first, of_second;
  if (!set_params(of_first, first) || !set_params(of_second, second)) return false;
  const auto kernel_of = [&](const ExpertCall& call) {
    return visit_half(half, [&]<typename T>() {
      return expert_wgmma_kernel_of<T>(format_of(*call.w.first), call.up != nullptr);
    });
  };
  const ExpertGemmKernel of_gate = kernel_of(first), of_down = kernel_of(second);
  const int64_t n_experts = args.routing.n_experts;
  if (!fits_card(of_gate, n_experts) || !fits_card(of_down, n_experts)) return false;
  if (reorders_x) {
    // The place of the results is free until the last launch, and has room for x.
    of_first.x = args.out.data;
    const int64_t n = args.x.n_bytes() / 32;
    launch(reorder_columns_kernel, dim3(narrow<unsigned>(ceil_div(n, kCopyThreads))),
           dim3(kCopyThreads), 0, stream, static_cast<uint4*>(args.out.data),
           static_cast<const uint4*>(args.x.data), n);
  }
  of_first.out_in_fragment_order = reorders_hidden;
  launch_expert_gemm(stream, of_gate, of_first, args.routing);
  launch_expert_gemm(stream, of_down, of_second, args.routing);
  return true;
}

}  // namespace minfer::cuda
