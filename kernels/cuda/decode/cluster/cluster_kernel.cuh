#pragma once

#include "kernels/cuda/decode/cluster/cluster_attention.cuh"
#include "kernels/cuda/decode/cluster/cluster_exchange.cuh"
#include "kernels/cuda/decode/cluster/cluster_multiply.cuh"
#include "kernels/cuda/decode/cluster/cluster_weights.cuh"
#include "kernels/cuda/elementwise/activations.cuh"

namespace minfer::cuda {

__host__ __device__ constexpr ClusterVector input_of(int phase) {
  return phase == kClusterQkv      ? kVectorAfterFfn
         : phase == kClusterWo     ? kVectorAttnParts
         : phase == kClusterGateUp ? kVectorAfterAttention
                                   : kVectorHidden;
}
__host__ __device__ constexpr ClusterVector output_of(int phase) {
  return phase == kClusterQkv      ? kVectorQkv
         : phase == kClusterWo     ? kVectorAfterAttention
         : phase == kClusterGateUp ? kVectorHidden
                                   : kVectorAfterFfn;
}

// Stages the input of a linear phase, which has arrived, as digits. Each warp has the columns that
// it multiplies, those of pieces w and w + 12, and a lane one word of four of them; columns behind
// the last ones are zeros. Returns the unit of the warp's sums.
//   squares  of the lane's columns, before the norm's weight
template <int kPhase, int kQueries>
__device__ inline float stage_in_cluster(const ClusterParams& p, uint8_t* shared, float& squares) {
  const ClusterGemv& gemv = p.gemvs[kPhase];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int n_words = gemv.in_dim / 4;
  const int word = (lane / 16 * kClusterWarps + warp) * 16 + lane % 16;
  const bool is_there = word < n_words;
  const int from = is_there ? word : 0;
  float4 x;
  if constexpr (kPhase == kClusterWo) {
    x = ClusterAttention<kQueries>::merged(p, shared, 4 * from);
  } else {
    x = reinterpret_cast<const float4*>(shared + p.shared.vectors[input_of(kPhase)])[from];
  }
  uint32_t bits[4] = {__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                      __float_as_uint(x.w)};
#pragma unroll
  for (uint32_t& column : bits) column = is_there ? column : 0;
  if constexpr (has_norm_in_cluster(kPhase)) {
    const uint2 weight = reinterpret_cast<const uint2*>(shared + gemv.norm_at)[from];
    weigh_columns(bits, weight, p.vectors_are_bf16, squares);
  }
  LargestMagnitude top;
  top.add(bits);
  const FixedPoint fixed = top.fixed_point();
  auto* const to =
      reinterpret_cast<uint32_t*>(shared + p.shared.digits + digit_place(word, /*by_64=*/true));
  store_digits(to, kClusterDigits / 4, bits, fixed, /*by_64=*/true);
  __syncwarp();
  return fixed.unit;
}

// One token through all layers of a small model, whose layers fit into the shared memory of one
// cluster: RMSNorm, q k v, RoPE, KV append, attention, wo, RMSNorm, SwiGLU, down. The output norm
// and matrix are not its own.
//
//   x, cache   as in DecodeModel; x [dim] F32, the residual stream, in place
//   launch     one cluster of n_blocks blocks, each of which owns tiles of 16 rows of every matrix,
//              and rows of the residual stream
//   exchange   five vectors a layer, through the shared memory of the cluster:
//              cluster_exchange.cuh
//   maths      activations are f32. Codes are multiplied by x in 23-bit fixed point: the sums of a
//              scale's columns are exact integers (ClusterMultiplier), to which scales are applied
//              in f32. Keys and values are halves. Everything is summed in one order: same input,
//              same bits
//   moves      every weight once; the cache once for each group of query heads
//   why        where a layer has few bytes, a step of all SMs (step_kernel.cuh) takes its time for
//              the exchange of vectors through L2, which here stays within a cluster
template <int kScales, bool kMins, int kQueries>
__global__ void __launch_bounds__(kClusterThreads, 1)
    cluster_step_kernel(const __grid_constant__ ClusterParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint8_t* const shared = ptx::dynamic_shared<128>();
  const int thread = int(threadIdx.x), lane = thread % 32, block = int(blockIdx.x);
  const int warp = ptx::warp_index();
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + p.shared.barriers);
  auto* const layers = reinterpret_cast<ClusterLayer*>(shared + p.shared.layers);
  if (thread == 0) {
    for (int i = 0; i < kClusterBarriers; ++i) ptx::mbarrier_init(barriers + i, 1);
    ptx::mbarrier_init_fence();
  }
  for (int i = thread; i < p.n_layers * int(sizeof(ClusterLayer) / 16); i += kClusterThreads) {
    reinterpret_cast<uint4*>(layers)[i] = __ldg(reinterpret_cast<const uint4*>(p.layers) + i);
  }
  ptx::cluster_barrier();  // of all blocks, before one of them stores to another
  if (warp == kClusterWarps - 1) {
    for_each_index<kClusterPhases>(
        [&]<int kPhase>() { load_weights<kPhase>(p, layers[0], shared); });
  }
  ptx::wait_for_predecessor();
  ptx::let_successor_begin();
  const auto expect = [&](int vector) {
    ptx::mbarrier_expect(barriers + vector, p.vector_bytes[vector]);
  };
  if (thread == 0) {
    for (int vector = 0; vector < kClusterVectors; ++vector) expect(vector);
  }
  const int pos = p.input->pos;
  for (int i = thread; i < p.dim; i += kClusterThreads) {
    reinterpret_cast<float*>(shared + p.shared.vectors[kVectorAfterFfn])[i] = __ldcg(p.x + i);
  }
  if (thread < kClusterHeadDim) {  // the cosine of each element, and its sine with a sign
    constexpr int kHalf = kClusterHeadDim / 2;
    auto* const angles = reinterpret_cast<float*>(shared + p.shared.angles);
    const float2 angle = __ldg(p.rope + int64_t{pos} * kHalf + thread % kHalf);
    angles[thread] = angle.x;
    angles[kClusterHeadDim + thread] = thread < kHalf ? -angle.y : angle.y;
  }
  const ClusterVectors vectors(p, shared);
  const auto await_weights = [&](int phase, int index) {
    const uint32_t weights = ptx::shared_address(weights_barrier(p, shared, phase));
    while (!__all_sync(~0u, ptx::mbarrier_is_complete(weights, index & 1))) {
      ptx::before_next_try();
    }
  };
  if (warp == kClusterWarps - 1) await_weights(kClusterQkv, 0);
  __syncthreads();

  float* const sums = reinterpret_cast<float*>(shared + p.shared.sums);
  auto* const squares_of_warps = reinterpret_cast<float*>(shared + p.shared.squares);
  ClusterAttention<kQueries> attention(p, shared, pos);
  int begins[kClusterPhases], counts[kClusterPhases];  // tiles of the block
#pragma unroll
  for (int phase = 0; phase < kClusterPhases; ++phase) {
    begins[phase] = p.gemvs[phase].begin(block, p.n_blocks);
    counts[phase] = p.gemvs[phase].count(block, p.n_blocks);
  }
  float residual = reinterpret_cast<const float*>(
      shared +
      p.shared.vectors[kVectorAfterFfn])[min(kTileRows * begins[kClusterWo] + thread, p.dim - 1)];

  const auto run_phase = [&]<int kPhase>(int index) {
    constexpr bool kHasNorm = has_norm_in_cluster(kPhase);
    const ClusterGemv& gemv = p.gemvs[kPhase];
    if constexpr (kPhase == kClusterWo) {
      // A block without a part waits too: no block ends before all that is sent to it has arrived.
      attention.takes_part() ? attention.run(layers[index], index, vectors)
                             : vectors.await(kVectorQkv, index);
      if (thread == 0) expect(kVectorQkv);
    }
    if (kPhase != kClusterQkv || index != 0) {
      vectors.await(input_of(kPhase), kPhase == kClusterQkv ? index - 1 : index);
      if (thread == 0) expect(input_of(kPhase));  // once more
    }
    float squares = 0;
    const float unit = stage_in_cluster<kPhase, kQueries>(p, shared, squares);
    if constexpr (kHasNorm) {
      // The upper half of the warp has no columns: those of pieces 12 and more.
#pragma unroll
      for (int d = 8; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
      if (lane == 0) squares_of_warps[warp] = squares;
    }
    const ClusterMultiplier<kScales, kMins, kPhase == kClusterDown ? 2 : 1,
                            cluster_tiles_at_once(kPhase)>
        multiplier(gemv, shared + p.shared.digits);
    const int count = counts[kPhase];
    multiplier.run(shared, kPhase == kClusterGateUp ? 2 * count : count, sums, unit);
    // The last warp waits for the weights of the next phase, for all warps. They have long been
    // there, unless memory is slow.
    constexpr int kNext = (kPhase + 1) % kClusterPhases;
    const int its_layer = index + int(kNext == kClusterQkv);
    if (warp == kClusterWarps - 1 && its_layer < p.n_layers) await_weights(kNext, its_layer);
    __syncthreads();
    if (warp == kClusterWarps - 1 && index + 1 < p.n_layers) {
      load_weights<kPhase>(p, layers[index + 1], shared);
    }

    if (32 * warp >= kTileRows * count) return;
    const bool has_row = thread < kTileRows * count;
    const int row = has_row ? thread : 0, to = kTileRows * begins[kPhase] + thread;
    float value = sum_of_cluster_warps(sums, row);
    if constexpr (kHasNorm) {
      const float all_squares = sum_of_cluster_warps(squares_of_warps, 0);
      const float norm = rsqrtf(fmaf(all_squares, gemv.per_column, p.eps));
      value *= norm;
      if constexpr (kPhase == kClusterGateUp) {
        const float up = sum_of_cluster_warps(sums, kTileRows * count + row) * norm;
        value = silu(value) * up;
      }
    } else {
      value += residual;
      residual = value;
    }
    if (kPhase == kClusterDown && index == p.n_layers - 1) {
      if (has_row) p.x[to] = value;
    } else {
      vectors.send(p, output_of(kPhase), to & ~3, value, has_row);
    }
  };
#pragma unroll 1
  for (int index = 0; index < p.n_layers; ++index) {
    for_each_index<kClusterPhases>(
        [&]<int kPhase>() { run_phase.template operator()<kPhase>(index); });
  }
#endif
}

}  // namespace minfer::cuda
