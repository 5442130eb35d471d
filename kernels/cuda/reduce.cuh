#pragma once

namespace minfer::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over the 32 lanes, all of which must call; every lane gets the same bits.
template <typename Op>
__device__ float warp_reduce(float value, Op op) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over a block of whole warps, at most 32, all threads of which must call. `scratch` is shared
// memory for 32 floats; begins and ends with a barrier, so that it may be used again at once.
template <typename Op>
__device__ float block_reduce(float value, Op op, float identity, float* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  value = warp_reduce(value, op);
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_reduce(lane < n_warps ? scratch[lane] : identity, op);
}

// a a + b b, with the same roundings wherever it is computed.
__device__ inline float sum_of_squares(float a, float b) { return fmaf(b, b, a * a); }

}  // namespace minfer::cuda
