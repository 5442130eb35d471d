#pragma once

#include <type_traits>

#include "kernels/cuda/decode/persistent/step_attention.cuh"
#include "kernels/cuda/decode/persistent/step_clocks.cuh"
#include "kernels/cuda/decode/persistent/step_experts.cuh"
#include "kernels/cuda/decode/persistent/step_gemv.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_peers.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/decode/persistent/step_split_k.cuh"
#include "kernels/cuda/decode/persistent/step_two_tokens.cuh"

namespace minfer::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// One round of a linear phase: the tiles from `tile` on whose sums a block adds together; at -1,
// the block's K split of a pair.
struct StepRound {
  int phase, tile;
  int buffer;  // of two: a warp that is done with a round may be a barrier ahead of warps that
               // still read its sums
};
// The block's shared memory without the ring. `scales` holds the scales of a round's rows,
// `residual` the row of the residual stream that a thread adds to. The scratch of a second token
// lies kScratchFloats behind that of the first.
template <typename I>
struct StepMemory {
  uint8_t* input;
  float* first_scratch;
  __half (*scales)[kStepMaxRows];
  float* residual;
  __device__ float* scratch(int buffer) const {
    return first_scratch + buffer * I::kTokens * kScratchFloats;
  }
};
__device__ inline int phase_of(const StepParams& p, int step) {
  return step == 4 * p.n_layers ? int(kHead) : step % 4;
}

// The first row of scratch for the sums of the block's K split: behind those of whole pairs.
__device__ inline int k_split_row(const StepGemv& gemv) {
  return min(gemv.count, gemv.round_tiles) << (gemv.rows_log + 1);
}

// Int4 has scales of rows in the output matrix alone, and products have none.
template <typename I>
__device__ inline bool has_row_scales(const StepGemv& gemv, int phase) {
  return !I::kIsProducts && (!I::kIsInt4 || phase == kHead) && gemv.has_row_scales();
}

// Leaves the warp's sums of a round in scratch. `unit`: their factor, from stage_input. With two
// tokens it sets it, and stages their input `source`, in the first round of a phase or, in parts,
// in its only one; when that is there, more copies are allowed. Inlined always: lanes would leave
// the loops of a function one by one (docs/decode.md).
template <typename I, typename Clock>
__device__ __forceinline__ void multiply_round(
    const StepParams& p, const StepGemv& gemv, const StepLayer& layer, const StepRound& at,
    const StepSource& source, float (*squares)[kStepWarps], const StepMemory<I>& memory,
    const StepRing& ring, StepCursor<Clock>& cursor, float (&unit)[I::kTokens]) {
  const int halves_log = at.phase == kGateUp ? 1 : 0;
  const bool is_k_split = at.tile < 0;
  float* const scratch = memory.scratch(at.buffer) + (is_k_split ? k_split_row(gemv) : 0);
  const int n_tiles = is_k_split ? 1 : min(gemv.round_tiles, gemv.count - at.tile);
  if (has_row_scales<I>(gemv, at.phase) && !is_k_split) {
    fetch_row_scales(gemv, layer, at.phase, at.tile, n_tiles, memory.scales[at.buffer]);
    ptx::copy_async_commit();
  }
  const bool in_parts = is_in_parts(I::kTokens, at.phase) && n_tiles != 0;
  StepStages stages = is_k_split ? gemv.k_split.stages : StepStages{0, gemv.n_stages};
  for (;;) {
    if constexpr (I::kTokens > 1) {
      if (in_parts) stages.end = min(stages.begin + part_stages(gemv.format), gemv.n_stages);
      const bool is_first = at.tile == (gemv.k_split.exists() ? -1 : 0);
      if (in_parts || (is_first && n_tiles != 0)) {
        stage_tokens<I>(p, gemv, source, stages.begin, in_parts, memory.input, squares, unit);
      }
      if (thread_index() == 0) allow_copies(ring.most_copies, p.copies_near);
    }
    multiply<I>(gemv, ring, memory.input, I::kTokens == 1 ? 0 : p.token_stride, scratch, cursor,
                n_tiles << halves_log, unit, stages, at.phase == kHead, in_parts);
    if (!in_parts || stages.end == gemv.n_stages) break;
    stages.begin = stages.end;
  }
}

// The biases of the row that a thread has in a round, or of its row of gate and of up.
struct StepBias {
  float of_row, of_up;
};
template <typename I>
__device__ inline StepBias load_bias(const StepParams& p, const StepGemv& gemv,
                                     const StepLayer& layer, const StepRound& at) {
  if (I::kIsPlain || !p.block.has_biases || at.phase == kHead || at.tile < 0) return {};
  const int in_round = thread_index() >> gemv.rows_log, tile = at.tile + in_round;
  if (in_round >= gemv.round_tiles || tile >= gemv.count) return {};
  const int row = thread_index() & (gemv.tile_rows() - 1);
  const auto bias = [&](int half) {
    return bias_of(p, gemv, layer, at.phase, gemv.begin + tile, half, row);
  };
  return {bias(0), at.phase == kGateUp ? bias(1) : 0.0f};
}

__device__ inline float logit_of(const StepBlock& block, float sum) {
  const float logit = sum * block.logit_scale, cap = block.logit_softcap;
  return cap == 0 ? logit : cap * tanhf(logit / cap);
}

// Adds the sums of all warps of a round for the thread's token, and publishes the rows or stores
// them as logits. `squares`: of that token.
template <typename I>
__device__ inline void finish_round(const StepParams& p, const StepGemv& gemv, const StepRound& at,
                                    const StepMemory<I>& memory, const StepExperts<I>& experts,
                                    const float* squares, const StepBias& bias, uint32_t epoch) {
  const int thread = thread_of_token<I>(), token = token_of_thread<I>(), phase = at.phase;
  const int halves_log = phase == kGateUp ? 1 : 0, rows_log = gemv.rows_log;
  const int n_rows = min(gemv.round_tiles, gemv.count - at.tile) << rows_log;
  const bool has_row = thread < n_rows;
  const int first_row = (gemv.begin + at.tile) << rows_log;
  float value = 0;
  if (has_row) {
    const bool has_norm =
        I::kIsPlain ? phase != kWo && phase != kDown : p.block.has_norm_before(phase);
    const float factor = has_norm ? norm_factor(squares, gemv, p.eps) : 1.0f;
    const float* const scratch = memory.scratch(at.buffer) + token * kScratchFloats;
    const __half* const scales = memory.scales[at.buffer];
    const auto scaled_sum = [&](int row) {
      const float sum = sum_of_row<I>(gemv, scratch, row) * factor;
      return has_row_scales<I>(gemv, phase) ? sum * __half2float(scales[scale_place(row)]) : sum;
    };
    const int in_tile = thread & (gemv.tile_rows() - 1);
    const int row = (thread >> rows_log << (halves_log + rows_log)) + in_tile;
    value = scaled_sum(row);
    const bool is_sum_of_ranks = phase == kWo || phase == kDown;  // which then gets the bias
    if (!I::kIsPlain && !is_sum_of_ranks) value += bias.of_row;
    if (phase == kGateUp) {
      const float up = scaled_sum(row + gemv.tile_rows());
      value = activated<I>(p, value) * (I::kIsPlain ? up : up + bias.of_up);
      if constexpr (I::kHasExperts) {
        value *= expert_weight(p, gemv, experts, gemv.begin + at.tile + (thread >> rows_log));
      }
    }
  }
  if (phase == kHead) {
    if (!has_row || first_row + thread >= gemv.out_dim) return;
    if (!I::kIsPlain) value = logit_of(p.block, value);
    if constexpr (I::kTokens == 1) {
      for (int rank = 0; rank < p.peers.n_ranks; ++rank) {
        p.peers.logits[rank][p.peers.logits_begin + first_row + thread] = value;
      }
    } else {  // one rank
      p.peers.logits[0][int64_t{token} * gemv.out_dim + first_row + thread] = value;
    }
    return;
  }
  uint4* words = p.words.qkv;
  if (phase == kGateUp) {
    words = p.words.hidden;
  } else if (phase != kQkv) {
    if (I::kTokens == 1 && p.peers.n_ranks > 1) {
      value = sum_over_ranks(p.peers, phase == kWo ? 0 : 1, first_row, n_rows, value, epoch);
    }
    if (!I::kIsPlain) value += bias.of_row;
    if (I::kIsPlain || !p.block.has_post_norms()) {
      if (!I::kIsPlain) value *= p.block.residual_scale;
      float& residual = memory.residual[thread_index()];
      value += residual;
      residual = value;
    }
    words = phase == kWo ? p.words.after_attention : p.words.after_ffn;
  }
  publish(words + token * p.words.of_token + first_row / 4, -token * I::kThreadsOfToken, n_rows,
          value, epoch);
}

// The static shared memory of a block.
template <typename I>
struct StepStatic {
  uint64_t full[kStepMaxSlots], empty[kStepMaxSlots];
  alignas(16) float squares[2][I::kTokens][kStepWarps];
  alignas(16) float post_squares[kStepWarps];
  uint32_t first_epoch;
  int most_copies;
  int k_splits_came;
  float residual[kStepConsumers];  // a row for each thread
  alignas(16) __half scales[2][kStepMaxRows];
  alignas(16) StepAttentionShared<I> attention;
  StepGemv gemvs[I::kMixes][kStepPhases];
  alignas(16) StepLayer layers[2];  // this layer and the next
  alignas(16) StepExperts<I> experts;
};
#endif

// One token, or two of one sequence at consecutive positions, through all layers and the output
// matrix: RMSNorm, q k v, RoPE, KV append, attention, wo, RMSNorm, SwiGLU, down; logits [n_tokens,
// vocab_size] F32. With several ranks each has a slice of the
// weights and runs this kernel at the same time; every rank gets all logits. Instances that are not
// plain compute what StepBlock says, and those with mixes what GGUF's mixes of K-quants need.
//
//   x, cache   as in DecodeModel; x [n_tokens, dim] F32 the embeddings
//   launch     cooperative, one block on each SM; 8 consumer warps multiply, 4 producer warps fill
//              the ring. A block owns rows of every matrix and of the residual stream, and K splits
//              of left-over gate/up tile pairs: step_split_k.cuh
//   exchange   six vectors a layer, the logits of a router and the sums of K splits:
//              step_exchange.cuh; the sums of wo and down over the ranks: step_peers.cuh
//   maths      activations are f32. Float weights are multiplied in f32. Codes are multiplied by x
//              in 23-bit fixed point: the sums of a group are exact integers (multiply_codes), to
//              which scales are applied in f32; whole numbers of scales that are products as
//              integers (multiply_products). q . k of an int8 cache is computed alike if
//              head_dim is a multiple of 64 (step_codes.cuh), else in f32; weights . v of one
//              such query of at most 128 elements on F16 tensor cores, a weight being two halves
//              (step_values.cuh), else in f32.
//              Everything is summed in one order: same input, same bits
//   moves      every weight and the cache once from memory; the exchanged vectors once for each
//              block (132 on an H200) from L2
//   source     the one-kernel decoders calm (Kuznetsov 2023) and Megakernels (HazyResearch 2025)
template <typename I>
__global__ void __launch_bounds__(kStepThreads, 1)
    decode_step_kernel(const __grid_constant__ StepParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint8_t* const shared = ptx::dynamic_shared<128>();
  auto& [s_full, s_empty, s_squares, s_post_squares, s_first_epoch, s_most_copies, s_k_splits_came,
         s_residual, s_scales, s_attention, s_gemvs, s_layers, s_experts] =
      ptx::static_shared<StepStatic<I>>();

  // The choice of the next token, which waits for all of this kernel, is launched while its last
  // blocks end. The kernel itself is not launched by PDL (docs/lab/decode-2026-11.md), or it would
  // have to wait for its predecessor.
  ptx::let_successor_begin();
  const int thread = int(threadIdx.x), block = int(blockIdx.x);
  const int warp = ptx::warp_index();
  const std::conditional_t<I::kCounts, StepClock, NoClock> clock(p);
  const auto fetch_layer = [&](int layer) {
    static_assert(sizeof(StepLayer) % 16 == 0);
    if (thread < int(sizeof(StepLayer) / 16)) {
      ptx::copy_async_16(ptx::shared_address(s_layers + layer % 2) + 16 * thread,
                         reinterpret_cast<const uint4*>(p.layers + layer) + thread);
    }
    ptx::copy_async_commit();
  };
  // The start asks at once for all that it needs no other answer for.
  fetch_layer(0);
  const int pos = p.input->pos;
  const StepMatrix pointers = warp >= kStepWarps ? pointers_of_lane(p, 0) : StepMatrix{};
  const int n_gemvs = (I::kHasMixes ? p.n_mixes : 1) * kStepPhases;
  static_assert(sizeof(StepGemv) % 4 == 0 && std::is_trivially_copyable_v<StepGemv>);
  for (int i = thread; i < n_gemvs * int(sizeof(StepGemv) / 4); i += kStepThreads) {
    reinterpret_cast<uint32_t*>(s_gemvs)[i] = reinterpret_cast<const uint32_t*>(p.gemvs)[i];
  }
  if (thread < p.n_slots) {
    ptx::mbarrier_init(s_full + thread, 1);
    ptx::mbarrier_init(s_empty + thread, kArrivalsOfEmpty);
  }
  if (thread == 0) {
    if (I::kHasExperts && p.router.exists()) {
      ptx::mbarrier_init(&s_experts.arrivals, p.router.choice.n_active);
    }
    s_most_copies = p.copies_near;
    s_k_splits_came = 0;
  }
  if (thread < kStepMaxSlots) ptx::mbarrier_init_fence();
  __syncthreads();
  if (thread < n_gemvs) {
    const int mix = thread / kStepPhases, phase = thread % kStepPhases;
    StepGemv& gemv = s_gemvs[mix][phase];
    if (I::kHasMixes && phase == kQkv && p.qkv_rest[mix].slice.shares(block))
      gemv = p.qkv_rest[mix];
    gemv.begin = gemv.slice.begin(block);
    gemv.count = gemv.slice.count(block);
    gemv.k_split = gemv.k_split_of(block);
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  const StepRing ring{shared,
                      ptx::shared_address(s_full),
                      ptx::shared_address(s_empty),
                      p.n_slots,
                      p.slot_bytes,
                      &s_most_copies,
                      p.copies_near};
  if (warp >= kStepWarps) {
    fill_ring<I>(p, s_gemvs, s_experts, ring, pos, pointers, warp - kStepWarps);
    return;
  }

  {
    const StepGemv& wo = s_gemvs[0][kWo];  // its slice is that of all mixes
    const int row = (wo.begin << wo.rows_log) + thread_of_token<I>();
    float x = row < p.dim ? __ldcg(p.x + token_of_thread<I>() * p.dim + row) : 0.0f;
    if (!I::kIsPlain) x *= p.block.embedding_scale;
    if (thread == 0) s_first_epoch = p.input->epoch;
    prepare_attention<I>(p, s_attention, pos);
    s_residual[thread] = x;
  }

  consumers_sync();
  const StepMemory<I> memory{shared + step_shared(p).input,
                             reinterpret_cast<float*>(shared + step_shared(p).scratch), s_scales,
                             s_residual};
  float* const own_residual =  // with norms behind
      p.residual_bytes != 0 ? reinterpret_cast<float*>(shared + step_shared(p).residual) : nullptr;
  StepCursor cursor(clock, ring, I::kKeepsConstants);
  const auto [first_router_row, n_router_rows] = p.router.rows_of(block, p.n_blocks());
  [[maybe_unused]] const auto router_rows = [&, first = first_router_row](const StepLayer& layer) {
    return static_cast<const uint8_t*>(layer.router) + int64_t{2} * p.dim * first;
  };
  const int copies_of_exchange = kept_if(I::kKeepsConstants, p.copies_of_exchange);
  const int copies_near = kept_if(I::kKeepsConstants, p.copies_near);
  const auto allow = [&](int copies) {
    if (thread_index() == 0) allow_copies(&s_most_copies, copies);
  };
  int buffer = 0;
  cursor.clock.end(kStartRow, kInput);
  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer_index = step / 4, phase = phase_of(p, step);
    const StepLayer& layer = s_layers[layer_index % 2];
    const StepGemv* const phases = s_gemvs[I::kHasMixes ? p.mix_of_layer[layer_index] : 0];
    const uint32_t epoch = s_first_epoch + uint32_t(layer_index);

    float(*const squares)[kStepWarps] = s_squares[step % 2];
    float unit[I::kTokens] = {};
    allow(phase == kWo ? copies_near : copies_of_exchange);
    if (phase == kWo) {
      // The block waits next, so that this costs no time. All warps have passed a barrier of q, k
      // and v, so that none reads the layer before this one any more.
      fetch_layer(layer_index + 1);
      const int kind = I::kIsPlain ? 0 : p.attention.kind(layer_index);
      attend<I>(p, layer, kind, s_attention, reinterpret_cast<float*>(memory.input),
                memory.scratch(0), ring, cursor, epoch);
      allow(copies_of_exchange);
    }
    // A copy in registers where there is room for it: read before the block waits for its input,
    // and not behind that. With two tokens there is none behind the multiplication.
    using OwnGemv = std::conditional_t<I::kHasOwnGemv, const StepGemv, const StepGemv&>;
    OwnGemv own = phases[phase];
    const StepGemv& gemv = I::kTokens == 1 ? own : phases[phase];
    // A block without rows in this phase does not wait for its input (step_exchange.cuh), unless it
    // keeps its own residual stream, or has rows of the router. A block with rows of gate and up or
    // of down waits for all logits, so that whoever reads them contributes to what follows.
    const bool keeps_residual = !I::kIsPlain && own_residual != nullptr && phase == kQkv;
    const bool routes = I::kHasExperts && phase == kGateUp && n_router_rows != 0;
    StepSource source{.norm_is_bf16 = p.vectors_are_bf16};
    if (own.count != 0 || own.k_split.exists() || keeps_residual || routes) {
      source.epoch = phase == kQkv || phase == kHead ? epoch - 1 : epoch;  // of the layer before
      if (phase == kWo || phase == kDown) {
        source.words = phase == kWo ? p.words.attended : p.words.hidden;
        if constexpr (I::kTokens == 1) {
          unit[0] = stage_input<I, false>(own, source, memory.input, squares[0]);
        }
      } else {
        source.words = phase == kGateUp ? p.words.after_attention : p.words.after_ffn;
        source.norm_weight = phase == kGateUp ? layer.ffn_norm : layer.attn_norm;
        source.plain = layer_index == 0 && phase == kQkv ? p.x : nullptr;
        // With two tokens multiply_round stages it.
        if constexpr (I::kIsPlain && I::kTokens == 1) {
          unit[0] = stage_input<I, true>(own, source, memory.input, squares[0]);
        } else if constexpr (!I::kIsPlain) {
          const ResidualSource of_residual{source,
                                           layer.post_norms[phase == kGateUp ? 1 : 0],
                                           own_residual,
                                           s_post_squares,
                                           p.block.embedding_scale,
                                           p.block.residual_scale,
                                           p.eps};
          if constexpr (I::kHasExperts) {
            const RouterSource of_router{of_residual,
                                         routes ? router_rows(layer) : nullptr,
                                         routes ? n_router_rows : 0,
                                         p.router.is_bf16,
                                         p.words.router_logits + first_router_row,
                                         s_experts.logit_sums,
                                         squares[0]};
            unit[0] = stage_input<I, true>(gemv, of_router, memory.input, squares[0]);
          } else {
            unit[0] = stage_input<I, true>(gemv, of_residual, memory.input, squares[0]);
          }
        }
      }
    }
    if constexpr (I::kHasExperts) {
      const bool chooses = phase == kGateUp && p.router.exists() && reads_experts(phases);
      if (chooses) choose_in_block(p, layer, s_experts, epoch);
    }

    if constexpr (I::kAsksAhead) {
      const int n_stages = n_stages_of(own, own.count << (phase == kGateUp ? 1 : 0));
      cursor.n_far = thread_index() == 0 ? n_stages - p.near_stages : 0;
      allow(cursor.n_far > 0 ? p.copies_far : copies_near);
    } else if (I::kTokens == 1) {  // with two multiply_round does it
      allow(copies_near);
    }
    cursor.clock.end(phase, kInput);
    for (int tile = own.k_split.exists() ? -1 : 0;;) {
      const StepRound round{phase, tile, buffer};
      const StepBias bias = load_bias<I>(p, gemv, layer, round);
      multiply_round<I>(p, own, layer, round, source, squares, memory, ring, cursor, unit);
      float* const k_split_scratch = memory.scratch(round.buffer) + k_split_row(gemv);
      if (tile < 0) {
        if (gemv.k_split.index != 0) {
          send_k_split<I>(p, gemv, k_split_scratch, &s_k_splits_came, epoch);
        }
        tile = 0;
        // Always true. Without a vote the compiler takes the lanes for divergent from here on.
        if (__any_sync(~0u, true)) continue;
      }
      cursor.clock.end_multiply(phase);
      StepWord k_split_words{};
      const int token = token_of_thread<I>();
      const bool adds = tile == 0 && adds_k_splits<I>(gemv, warp_index());
      if (adds) k_split_words = load_k_splits(p, gemv, token);
      ptx::copy_async_wait<0>();
      consumers_sync();
      if (adds) {
        const bool has_norm = I::kIsPlain || p.block.has_norm_before(phase);
        const int row = k_split_row(gemv) + thread_index() % 32;
        const float row_scale = has_row_scales<I>(gemv, phase)
                                    ? __half2float(s_scales[round.buffer][scale_place(row)])
                                    : 1.0f;
        float its_bias = 0;
        if (!I::kIsPlain && p.block.has_biases) {
          const int lane = thread_index() % 32;
          its_bias =
              bias_of(p, gemv, layer, phase, gemv.k_split.tile, lane / kTileRows, lane % kTileRows);
        }
        float factor = 1;  // of act(gate) * up
        if constexpr (I::kHasExperts) {
          factor = expert_weight(p, gemv, s_experts, gemv.k_split.tile);
        }
        const float norm = has_norm ? norm_factor(squares[token], gemv, p.eps) : 1.0f;
        add_k_splits<I>(p, gemv, token, k_split_scratch + token * kScratchFloats, k_split_words,
                        norm * row_scale, its_bias, factor, epoch);
      }
      finish_round<I>(p, gemv, round, memory, s_experts, squares[token], bias, epoch);
      cursor.clock.end(phase, kPublish);
      buffer ^= 1;
      tile += gemv.round_tiles;
      if (tile >= gemv.count) break;
    }
  }
  cursor.clock.end_step();
  end_with_peers(p.peers, (s_first_epoch - 1) / uint32_t(p.n_layers) + 1);
#endif
}

template <StepWeights kWeights>
StepKernel step_kernel_of(int heads_per_block, int head_dim, bool is_plain) {
  const auto kernel = [&]<int kHeads, int kHeadDim, bool kIsPlain>() {
    return StepKernel{decode_step_kernel<StepInstance<kHeads, kHeadDim, kIsPlain, kWeights, false>>,
                      decode_step_kernel<StepInstance<kHeads, kHeadDim, kIsPlain, kWeights, true>>,
                      kHeads, kIsPlain};
  };
  constexpr int kLarge = kStepMostHeadDim, kMost = step_most_heads(128);
  if (head_dim > 128) {
    return kernel.template operator()<step_most_heads(kLarge), kLarge, false>();
  }
  if (heads_per_block == 1) {
    return is_plain ? kernel.template operator()<1, 128, true>()
                    : kernel.template operator()<1, 128, false>();
  }
  return is_plain ? kernel.template operator()<kMost, 128, true>()
                  : kernel.template operator()<kMost, 128, false>();
}

}  // namespace minfer::cuda
