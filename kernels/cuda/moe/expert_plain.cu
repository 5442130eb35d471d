#include "kernels/cuda/elementwise/activations.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"
#include "kernels/cuda/reduce.cuh"

namespace minfer::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;  // of a weight, per block

struct PlainParams {
  MatrixView w, up;  // of the first expert
  const ExpertPlace *places, *up_places;
  const void* x;
  void* out;
  const int32_t *chosen, *pairs;
  int n_active;
  bool x_by_place, has_up;
  SwiGluClamp clamp;
  int64_t out_dim, in_dim;
  unsigned blocks_of_place;
};

__device__ inline MatrixView at_place(MatrixView view, const ExpertPlace& place) {
  view.data = place.weights;
  view.scales.data = place.scales;
  view.mins.data = place.mins;
  return view;
}

template <typename T>
__device__ inline float bias_of(const ExpertPlace& place, int64_t row) {
  return place.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(place.bias)[row]);
}

// out[place] = x wᵀ + bias, or swiglu(x gateᵀ + bias, x upᵀ + bias): ExpertCall, for any in_dim
// and any element type, not tuned for speed
//
//   launch    blocks_of_place blocks per place; each of a block's 8 warps computes one row
//   maths     f32 sums, one rounding at the store
template <typename T>
__global__ void __launch_bounds__(kThreads)
    expert_plain_kernel(const __grid_constant__ PlainParams p) {
  ptx::let_successor_begin();
  ptx::wait_for_predecessor();
  const int64_t place = blockIdx.x / p.blocks_of_place, pair = p.pairs[place];
  const int64_t row = int64_t{blockIdx.x % p.blocks_of_place} * kRows + threadIdx.x / 32;
  if (row >= p.out_dim) return;
  const int expert = p.chosen[pair];
  const T* const x =
      static_cast<const T*>(p.x) + (p.x_by_place ? place : pair / p.n_active) * p.in_dim;
  const ExpertPlace& at = p.places[expert];
  const MatrixView w = at_place(p.w, at);
  float sum = 0, up = 0;
  for (int64_t k = threadIdx.x % 32; k < p.in_dim; k += 32) sum += to_float(x[k]) * w.at(row, k);
  sum = warp_reduce(sum, Sum{}) + bias_of<T>(at, row);
  if (p.has_up) {
    const ExpertPlace& of_up = p.up_places[expert];
    const MatrixView u = at_place(p.up, of_up);
    for (int64_t k = threadIdx.x % 32; k < p.in_dim; k += 32) up += to_float(x[k]) * u.at(row, k);
    up = warp_reduce(up, Sum{}) + bias_of<T>(of_up, row);
    sum = precise::swiglu(sum, up, p.clamp);
  }
  if (threadIdx.x % 32 != 0) return;
  static_cast<T*>(p.out)[place * p.out_dim + row] = from_float<T>(sum);
}

}  // namespace

void expert_plain(cudaStream_t stream, const ExpertCall& call) {
  const Routing& r = call.routing;
  PlainParams p{};
  p.w = view_of(*call.w.first);
  p.places = call.w.places;
  p.has_up = call.up != nullptr;
  if (p.has_up) {
    p.up = view_of(*call.up->first);
    p.up_places = call.up->places;
  }
  p.x = call.x.data;
  p.out = call.out.data;
  p.chosen = r.chosen;
  p.pairs = r.pairs;
  p.n_active = narrow<int>(r.n_active);
  p.x_by_place = call.x_by_place;
  p.clamp = call.clamp;
  p.out_dim = call.w.first->out_dim;
  p.in_dim = call.w.first->in_dim;
  p.blocks_of_place = narrow<unsigned>(ceil_div(p.out_dim, kRows));
  const dim3 grid(narrow<unsigned>(p.blocks_of_place * r.n_pairs()));
  visit_half(call.x.dtype, [&]<typename T>() {
    launch(expert_plain_kernel<T>, grid, dim3(kThreads), 0, stream, p);
  });
}

}  // namespace minfer::cuda
