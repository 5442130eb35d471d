#pragma once

#include "kernels/cuda/gemv/choose.cuh"
#include "kernels/cuda/gemv/epilogue.cuh"
#include "kernels/cuda/gemv/fetch.cuh"
#include "kernels/cuda/gemv/finish.cuh"
#include "kernels/cuda/gemv/fragments.cuh"
#include "kernels/cuda/gemv/input.cuh"
#include "kernels/cuda/quant/code_four.cuh"

namespace minfer::cuda {

// total += a chunk times the staged input. `of_lane` points to the lane's first word of the chunk
// in its slot, x into the staged row of the lane's token, at the chunk's first column plus the
// lane's offset of 8 t elements.
template <typename T, GemvWeights kWeights, int kScales, GemvScales kKind>
__device__ inline void multiply_step(float (&total)[2][4], const uint8_t* of_lane, const T* x,
                                     const ChunkScales<kWeights, kScales, kKind>& scales,
                                     const CodesOf<T, kWeights, kKind>& codes,
                                     const TableBytes& table) {
  const auto words = [&](int piece) {
    return *reinterpret_cast<const uint4*>(of_lane + piece * kPieceBytes);
  };
  const auto activations = [&](int tile, int half) {
    return *reinterpret_cast<const uint4*>(x + tile * kTileColumns + half * 32);
  };
  if constexpr (kWeights == GemvWeights::Float) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 a = words(j), b = words(2 + j), v = activations(0, j);
      ptx::mma_m16n8k16<T>(total[0], a.x, b.x, a.y, b.y, v.x, v.y);
      ptx::mma_m16n8k16<T>(total[1], a.z, b.z, a.w, b.w, v.z, v.w);
    }
  } else {
    constexpr int kBits = bits_of(form_of(kWeights)), kHighBits = high_bits_of(kWeights);
    constexpr bool kHasTable = kWeights == GemvWeights::Table;
    using Own = CodesOf<T, kWeights, kKind>;
    constexpr int kUpper = kWeights == GemvWeights::U4 ? int(Own::kHighFactor / Own::kFactor) : 1;
    [[maybe_unused]] const uint8_t* const upper_bits = scales.upper_bits();
    constexpr int kTiles = kBits == 8 ? 2 : 4;
    constexpr bool kStartsWithZero = subtracts<T>(kWeights, kKind) || has_mins(kKind);
    // Starts sum at minus the zero code times the sum of the activations at `column`, or at 0 if no
    // zero code has to be subtracted.
    const auto begin = [&](float(&sum)[4], int column) {
      const float2 s = kStartsWithZero ? float2{} : scales.sums_at(column);
      sum[0] = s.x;
      sum[1] = s.y;
      sum[2] = s.x * kUpper;
      sum[3] = s.y * kUpper;
    };
    // With row scales, each 128 columns have their own sum, so that this start stays small beside
    // it.
    constexpr bool kOwnSum = kScales != 0 || !kStartsWithZero;
    float sum[4] = {};
    // Products are summed without their factors, which are those of the whole chunk.
    constexpr bool kProducts = are_products(kKind);
    float of_chunk[4] = {}, of_mins[4] = {};
    float(&scaled)[4] = kProducts ? of_chunk : total[0];
    float(&scaled_mins)[4] = kProducts ? of_mins : total[0];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (kScales == 0 && kOwnSum && tile % 2 == 0) begin(sum, tile * kTileColumns);
      const HighWords<kHighBits> high(upper_bits + tile * high_tile_bytes(kHighBits),
                                      int(threadIdx.x) % 32);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 w = words(kBits == 8 ? 2 * tile + j : tile * kBits / 4);
        const uint4 v = activations(tile, j);
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // instruction 2 j + i of the tile
          float(&to)[4] = kOwnSum ? sum : total[i];
          const uint32_t b0 = i == 0 ? v.x : v.z, b1 = i == 0 ? v.y : v.w;
          const int column = tile * kTileColumns + j * 32 + i * 16;
          if (kScales == 4 || (kScales == 2 && i == 0) || (kScales == 1 && i + j == 0)) {
            begin(sum, column);
          }
          if constexpr (kBits == 2) {
            const uint32_t pair = tile % 2 == 0 ? (j == 0 ? w.x : w.y) : (j == 0 ? w.z : w.w);
            const auto wide = wide_codes<2, kHighBits>(pair >> (4 * i), high.of(2 * j + i));
            multiply_wide<T>(to, wide, b0, b1, codes);
          } else if constexpr (kBits == 4) {
            const uint32_t word = word_of_u4(w, 2 * j + i);
            if constexpr (kHasTable) {
              const uint2 bytes = look_up(table, word);
              multiply_bytes<T>(to, bytes.x, bytes.y, b0, b1, codes);
            } else if constexpr (kHighBits != 0) {
              const auto wide = wide_codes<4, kHighBits>(word, high.of(2 * j + i));
              multiply_wide<T>(to, wide, b0, b1, codes);
            } else {
              multiply_nibbles<T>(to, word, b0, b1, codes);
            }
          } else {
            multiply_bytes<T>(to, i == 0 ? w.x : w.z, i == 0 ? w.y : w.w, b0, b1, codes);
          }
          if (kScales == 4 || (kScales == 2 && i == 1) || (kScales == 1 && j + i == 2)) {
            scales.template add<kUpper>(scaled, scaled_mins, sum, column);
          }
        }
      }
      if (kScales == 0 && kOwnSum && tile % 2 == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[0][i] += sum[i];
      }
    }
    if constexpr (kProducts) scales.apply_factors(total[0], of_chunk, of_mins);
  }
}

// Waits until at most n of the thread's groups of copies are under way, n <= kMost: first for
// kMost, then for one less, until it is n, which takes one jump.
template <int kMost>
__device__ inline void wait_for_copies(int n) {
  ptx::copy_async_wait<kMost>();
  if constexpr (kMost > 0) {
    if (n < kMost) wait_for_copies<kMost - 1>(n);
  }
}

// The rows of x of the block; with experts, those of its row of the step.
template <GemvUse kUse>
__device__ inline const void* row_of_x(const GemvParams& p) {
  if constexpr (!is_of_experts(kUse)) return p.x;
  const int64_t row = p.experts.by_blocks_of_row.quotient(int(blockIdx.x));
  const int element_bytes = kUse == GemvUse::GateUp ? 4 : 2;
  return static_cast<const uint8_t*>(p.x) +
         row * input_of<kUse>(p).n_tokens * p.in_dim * element_bytes;
}
// Its rows of out, with experts.
template <typename T, GemvUse kUse>
__device__ inline void* out_row(const GemvParams& p) {
  constexpr bool kPairs = kUse == GemvUse::GateUp;
  const int64_t row = p.experts.by_blocks_of_row.quotient(int(blockIdx.x));
  const int64_t n = int64_t{kPairs ? p.experts.n_active : 1} * p.parts[0].out_dim;
  return static_cast<uint8_t*>(p.parts[0].out) + row * n * (kPairs ? sizeof(T) : sizeof(float));
}

// Puts the chosen experts of the block's row into shared memory. One warp calls it; a barrier must
// follow.
template <GemvUse kUse>
__device__ inline void find_experts(GemvExpert* experts, const GemvParams& p) {
  const GemvExperts& e = p.experts;
  const int64_t row = e.by_blocks_of_row.quotient(int(blockIdx.x));
  const Choice choice = choose_experts(e.logits + row * e.router.n_experts, e.router);
  const int lane = int(threadIdx.x) % 32;
  if (lane >= e.n_active) return;
  GemvExpert& to = experts[lane];
  to.places[0] = e.places[0][choice.expert];
  if (kUse == GemvUse::GateUp) to.places[1] = e.places[1][choice.expert];
  to.weight = choice.weight;
}

// out = epilogue(norm(x) wᵀ + bias) of 1 to 3 matrices w of one format; Epilogue in launchers.h
//
//   x, out    [n_tokens, in_dim] and [n_tokens, out_dim], row-major; at most 8 tokens
//   weights   floats row-major, or packed codes: packed_layout.h
//   launch    at most one block of 16 warps per SM. It takes every gridDim.x-th tile of 16 rows;
//             its warps take equal runs of the chunks of all its tiles (GemvRun). Each lane
//             copies the words that it will multiply itself into the ring of its warp, which is
//             filled before the predecessor has ended (PDL), or in part (early_stages). With 1 or 2
//             tokens, a block of the next kernel usually fits on the SM beside this one, with more
//             only some (Sharing in gemv.cu)
//   requires  in_dim % 8 == 0, and what GemvUse says of kUse
//   maths     multiplications are exact; sums are f32, in an order that depends only on the shapes
//             and the number of SMs: each warp sums along its chunks, scaled group by group, then
//             the sums of the warps are added; one rounding at the store. Where the zero code is
//             not subtracted from each code (subtracts()), Σ code x and -zero Σ x are added in f32,
//             so that an error is relative to Σ (code + zero) |x| there. The normed row is rounded
//             to T; with several rows of an RMSNorm, x times the norm's weights is, unless a value
//             of any of the rows overflows, and the norm's scale is applied to the sums
//   moves     the weights with scales and mins, read once
//
// With experts (GemvExperts), blocks_of_row blocks work on each row of x, of which there may be any
// number; the weights are those of the experts that the row's logits choose. GateUp multiplies gate
// and up of all of them with the norm of the row: the predecessor is the router, or follows it, so
// that none of their copies begins before it has ended; a warp chooses while the others stage the
// row. Down has a row of x for each expert, as so many tokens, of which each tile uses its
// expert's, and sums the results over the experts. It follows GateUp, which lets it begin when the
// router has ended: so it chooses for itself, and copies its weights meanwhile.
template <typename T, GemvWeights kWeights, int kScales, GemvScales kKind, GemvUse kUse>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_kernel(const __grid_constant__ GemvParams p) {
  uint8_t* const shared = ptx::dynamic_shared();
  constexpr bool kPacked = kWeights != GemvWeights::Float;
  constexpr int kChunkColumns =
      !kPacked ? kTileColumns : chunk_columns_of(bits_of(form_of(kWeights)));
  using Scales = ChunkScales<kWeights, kScales, kKind>;
  using Own = CodesOf<T, kWeights, kKind>;
  constexpr float kLower = kPacked ? 1 / Own::kFactor : 1;
  constexpr float kUpper = kWeights == GemvWeights::U4 ? 1 / Own::kHighFactor : kLower;

  constexpr bool kExperts = is_of_experts(kUse), kGateUp = kUse == GemvUse::GateUp;
  const GemvInput input = input_of<kUse>(p);
  const GemvShared layout = gemv_shared(p, input);
  T* const staged = reinterpret_cast<T*>(shared + layout.input);
  float* const sums = reinterpret_cast<float*>(shared + layout.sums);
  StagedNorms& norms = *reinterpret_cast<StagedNorms*>(shared + layout.norms);
  float* const partials = reinterpret_cast<float*>(shared + layout.partials);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  GemvExpert* const experts = reinterpret_cast<GemvExpert*>(shared + layout.experts);
  constexpr bool kNeedsSums = needs_sums<T>(kWeights, kKind);
  constexpr int kSumShift = kNeedsSums ? Scales::kSumShift : 0;
  bool has_sums = false;
  const GemvRun<kPacked> run(p, warp, gemv_block<kExperts>(p));
  int left = run.n_steps();  // steps that are not yet being copied
  stage_norm_weights<T, kPacked>(staged, input, p);
  if constexpr (kExperts) {
    if constexpr (kGateUp) {
      if (threadIdx.x < 2) {  // the tables are constant, but last read by the token before
        const int n_bytes = p.experts.router.n_experts * int(sizeof(ExpertPlace));
        ptx::prefetch_l2(p.experts.places[threadIdx.x], n_bytes);
      }
      ptx::wait_for_predecessor();
      ptx::let_successor_begin();
      if (warp == kGemvWarps - 1) find_experts<kUse>(experts, p);
      const void* const x = row_of_x<kUse>(p);
      const RowBegin begin(x, input, p);
      ptx::copy_async_wait<0>();
      stage_normed<T, kPacked>(staged, partials, begin.columns, x, input, p);
    } else {
      ptx::let_successor_begin();
      if (warp == 0) find_experts<kUse>(experts, p);
    }
    __syncthreads();
  } else {
    ptx::let_successor_begin();
  }
  uint8_t* const ring = shared + warp * p.ring_bytes;
  GemvFetch<T, kWeights, kScales, kKind, kUse> ahead(p, run, experts);
  const auto fetch = [&](uint8_t* to) {  // the lane's first word of a slot
    if (left > 0) {
      ahead.begin(ptx::shared_address(to), p);
      --left;
    }
    ptx::copy_async_commit();  // after the last step, an empty group
  };
  const auto fill = [&](int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) fetch(ring + i * p.slot_bytes + lane * 16);
  };
  fill(0, p.early_stages);  // with experts, all of them
  if constexpr (!kGateUp) {
    ptx::wait_for_predecessor();
    // The input is asked for in front of the rest of the ring.
    const bool has_norm = input.norm != InputNorm::None;
    RowBegin begin;
    if (has_norm) {
      begin = RowBegin(p.x, input, p);
    } else {
      stage_copied<T, kPacked>(staged, row_of_x<kUse>(p), input, p);
    }
    fill(p.early_stages, p.n_stages);
    wait_for_copies<kMostStages>(has_norm ? p.n_stages : p.n_stages - p.early_stages);
    const bool is_unscaled = input.scale_follows && stage_unscaled<T, kPacked, kSumShift>(
                                                        staged, sums, norms, begin, p.x, input, p);
    has_sums = is_unscaled && input.makes_sums();
    if (!is_unscaled) {
      if (has_norm) stage_normed<T, kPacked>(staged, partials, begin.columns, p.x, input, p);
      __syncthreads();
    }
  }
  if constexpr (kNeedsSums) {
    if (!has_sums) {
      sum_units<T, Scales::kSumShift>(sums, staged, input, p);
      __syncthreads();
    }
  }

  const T* const x = staged + min(g, input.n_tokens - 1) * p.x_stride + t * 8;
  const Own codes(has_mins(kKind) || !kPacked ? 0 : zero_code_of(form_of(kWeights)));
  Scales scales{};
  scales.unit_shift = p.unit_shift;
  scales.sum_stride = p.sum_stride;
  const float* const lane_sums = sums + min(2 * t, p.sum_stride - 2);
  const int chunk_sum_stride = (kChunkColumns >> scales.kSumShift) * p.sum_stride;

  // What moves on with each step is kept: the compiler has no registers for what it would be
  // computed from, and read that again in each step.
  uint8_t* of_lane = ring + lane * 16;
  const uint8_t* scales_of_lane = ring + chunk_bytes_of(kWeights) + g * Scales::kRowBytes;
  int stages_left = p.n_stages;
  int tile = run.tile, chunk = run.chunk;
  const T* x_of_step = x + chunk * kChunkColumns;
  const float* sums_of_step = lane_sums + chunk * chunk_sum_stride;
  for (int rest = run.rest;; rest -= p.n_chunks, ++tile, chunk -= p.n_chunks,
           x_of_step -= p.x_columns, sums_of_step -= p.n_chunks * chunk_sum_stride) {
    float total[2][4] = {};
    const int n_steps = (min(rest, p.n_chunks) - chunk + run.kStride - 1) >> run.kTeamShift;
    chunk += max(n_steps, 0) * run.kStride;
    for (int n = n_steps; n > 0; --n) {
      // n_stages - 1 groups began behind that of this step, unless it came with the input.
      wait_for_copies<kMostStages - 1>(p.n_stages - 1);
      __syncwarp();  // scales are copied by other lanes
      if (kPacked) {
        scales.set_slot(scales_of_lane, g, p);
        scales.sums = sums_of_step;
      }
      multiply_step<T, kWeights, kScales, kKind>(total, of_lane, x_of_step, scales, codes, p.table);
      __syncwarp();  // all lanes have read the slot
      fetch(of_lane);
      x_of_step += run.kStride * kChunkColumns;
      sums_of_step += run.kStride * chunk_sum_stride;
      --stages_left;
      const int step = stages_left > 0 ? p.slot_bytes : p.slot_bytes - p.ring_bytes;
      if (stages_left == 0) stages_left = p.n_stages;
      of_lane += step;
      scales_of_lane += step;
    }
    float* const sent = partials + run.partial(tile) * 16 * input.n_tokens;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * t + i;
      if (token < input.n_tokens) {
        sent[token * 16 + g] = (total[0][i] + total[1][i]) * kLower;
        sent[token * 16 + g + 8] = (total[0][2 + i] + total[1][2 + i]) * kUpper;
      }
    }
    if (rest <= p.n_chunks) break;
  }
  if constexpr (kExperts) {
    finish_experts<T, kPacked, kScales == 0, kUse>(
        reinterpret_cast<float*>(shared + layout.results), partials, sums, out_row<T, kUse>(p),
        experts, p);
  } else {
    norms.finish(input, p);
    finish_tiles<T, kPacked, kScales == 0, kUse>(partials, sums, norms, p);
  }
}

// Picks the kernel of a format; see the declarations in params.h.
template <typename T, GemvUse kUse>
struct GemvKernels {
  using Kernel = void (*)(GemvParams);

  template <int kScales, GemvScales kKind>
  static Kernel of(GemvWeights weights) {
    return weights == GemvWeights::U4 ? gemv_kernel<T, GemvWeights::U4, kScales, kKind, kUse>
                                      : gemv_kernel<T, GemvWeights::U8, kScales, kKind, kUse>;
  }

  template <GemvScales kKind>
  static Kernel of(GemvWeights weights, int scales_in_tile) {
    switch (scales_in_tile) {
      case 0:
        return of < 0, has_mins(kKind) ? GemvScales::F16Mins : GemvScales::F16 > (weights);
      case 1:
        return of<1, kKind>(weights);
      case 2:
        return of<2, kKind>(weights);
      default:
        return of<4, kKind>(weights);
    }
  }

  static Kernel of_products(GemvWeights weights) {
    using enum GemvScales;
    switch (weights) {
      case GemvWeights::U2:
        return gemv_kernel<T, GemvWeights::U2, 4, ProductsMins, kUse>;
      case GemvWeights::U3:
        return gemv_kernel<T, GemvWeights::U3, 4, Products, kUse>;
      case GemvWeights::U4:
        return gemv_kernel<T, GemvWeights::U4, 2, ProductsMins, kUse>;
      case GemvWeights::U5:
        return gemv_kernel<T, GemvWeights::U5, 2, ProductsMins, kUse>;
      case GemvWeights::U6:
        return gemv_kernel<T, GemvWeights::U6, 4, Products, kUse>;
      default:
        return gemv_kernel<T, GemvWeights::Table, 2, Products, kUse>;
    }
  }

  static Kernel of(GemvWeights weights, int scales_in_tile, GemvScales scales) {
    using enum GemvScales;
    if (weights == GemvWeights::Float) {
      return gemv_kernel<T, GemvWeights::Float, 0, F16, kUse>;
    }
    if (are_products(scales)) return of_products(weights);
    if (weights == GemvWeights::Table) {
      return scales == F32 ? gemv_kernel<T, GemvWeights::Table, 2, F32, kUse>
                           : gemv_kernel<T, GemvWeights::Table, 2, F16, kUse>;
    }
    switch (scales) {
      case F16:
        return of<F16>(weights, scales_in_tile);
      case F16Mins:
        return of<F16Mins>(weights, scales_in_tile);
      case F32:
        return of<F32>(weights, scales_in_tile);
      default:
        return of<F32Mins>(weights, scales_in_tile);
    }
  }
};

template <typename T>
auto gemv_kernel_of(GemvWeights weights, int scales_in_tile, GemvScales scales, GemvUse use)
    -> void (*)(GemvParams) {
  using enum GemvUse;
  switch (use) {
    case Copied:
      return GemvKernels<T, Copied>::of(weights, scales_in_tile, scales);
    case RmsRow:
      return GemvKernels<T, RmsRow>::of(weights, scales_in_tile, scales);
    case RmsRows:
      return GemvKernels<T, RmsRows>::of(weights, scales_in_tile, scales);
    default:
      return GemvKernels<T, Any>::of(weights, scales_in_tile, scales);
  }
}
template <typename T>
auto expert_gemv_kernel_of(GemvWeights weights, int scales_in_tile, GemvScales scales, GemvUse use)
    -> void (*)(GemvParams) {
  return use == GemvUse::GateUp
             ? GemvKernels<T, GemvUse::GateUp>::of(weights, scales_in_tile, scales)
             : GemvKernels<T, GemvUse::Down>::of(weights, scales_in_tile, scales);
}

}  // namespace minfer::cuda
