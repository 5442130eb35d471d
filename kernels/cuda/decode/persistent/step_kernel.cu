#include "kernels/cuda/decode/persistent/step_attention.cuh"
#include "kernels/cuda/decode/persistent/step_gemv.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_peers.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/decode/persistent/step_split_k.cuh"
#include "kernels/cuda/gemv/epilogue.cuh"

namespace minfer::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// One round of a linear phase: the tiles from `tile` on whose sums a block adds together; at -1,
// the block's K split of a pair.
struct StepRound {
  int phase, tile;
  int buffer;  // of two: a warp that is done with a round may be a barrier ahead of warps that
               // still read its sums
};
// The block's shared memory without the ring. `scales` holds the scales of a round's rows,
// `residual` the row of the residual stream that each thread adds to.
struct StepMemory {
  uint8_t* input;
  float* first_scratch;
  __half (*scales)[kStepMaxRows];
  float* residual;
  __device__ float* scratch(int buffer) const { return first_scratch + buffer * kScratchFloats; }
};
__device__ inline int phase_of(const StepParams& p, int step) {
  return step == 4 * p.n_layers ? int(kHead) : step % 4;
}
// log2 of the tiles, or gate/up pairs, in a round.
__device__ inline int tiles_at_once_log(const StepGemv& gemv, int phase) {
  return kStepMaxRowsLog - gemv.rows_log - (phase == kGateUp ? 1 : 0);
}
__device__ inline int tiles_at_once(const StepGemv& gemv, int phase) {
  return 1 << tiles_at_once_log(gemv, phase);
}
__device__ inline StepRound round_of(const StepGemv& gemv, int step, int phase, int tile) {
  return {phase, tile, (step + (max(tile, 0) >> tiles_at_once_log(gemv, phase))) & 1};
}

// The first row of scratch for the sums of the block's K split: behind those of whole pairs.
__device__ inline int k_split_row(const StepGemv& gemv) {
  return gemv.count << (gemv.rows_log + 1);
}

// Leaves the warp's sums of a round in scratch. `unit`: their factor, from stage_input.
__device__ inline void multiply_round(const StepGemv& gemv, const StepLayer& layer,
                                      const StepRound& at, const StepMemory& memory,
                                      const StepRing& ring, StepCursor& cursor, float unit) {
  const int halves_log = at.phase == kGateUp ? 1 : 0;
  const bool is_k_split = at.tile < 0;
  float* const scratch = memory.scratch(at.buffer) + (is_k_split ? k_split_row(gemv) : 0);
  const int n_tiles = is_k_split ? 1 : min(tiles_at_once(gemv, at.phase), gemv.count - at.tile);
  if (gemv.has_row_scales() && !is_k_split) {
    fetch_row_scales(gemv, layer, at.phase, at.tile, n_tiles, memory.scales[at.buffer]);
    ptx::copy_async_commit();
  }
  multiply(gemv, ring, memory.input, scratch, cursor, n_tiles << halves_log, unit,
           is_k_split ? gemv.k_split.stages : StepStages{0, gemv.n_stages});
}

// Adds the sums of all warps of a round, and publishes the rows or stores them as logits.
__device__ inline void finish_round(const StepParams& p, const StepGemv& gemv, const StepRound& at,
                                    const StepMemory& memory, const float* squares,
                                    uint32_t epoch) {
  const int thread = thread_index(), phase = at.phase;
  const int halves_log = phase == kGateUp ? 1 : 0, rows_log = gemv.rows_log;
  const int n_rows = min(tiles_at_once(gemv, phase), gemv.count - at.tile) << rows_log;
  const bool has_row = thread < n_rows;
  const int first_row = (gemv.begin + at.tile) << rows_log;
  float value = 0;
  if (has_row) {
    const bool has_norm = phase != kWo && phase != kDown;
    const float factor = has_norm ? norm_factor(squares, gemv, p.eps) : 1.0f;
    const float* const scratch = memory.scratch(at.buffer);
    const __half* const scales = memory.scales[at.buffer];
    const auto sum_of_row = [&](int row) {
      const float sum = sum_of_warps(scratch, row) * factor;
      return gemv.has_row_scales() ? sum * __half2float(scales[scale_place(row)]) : sum;
    };
    const int in_tile = thread & (gemv.tile_rows() - 1);
    const int row = (thread >> rows_log << (halves_log + rows_log)) + in_tile;
    value = sum_of_row(row);
    if (phase == kGateUp) value = precise::silu(value) * sum_of_row(row + gemv.tile_rows());
  }
  if (phase == kHead) {
    if (!has_row || first_row + thread >= gemv.out_dim) return;
    for (int rank = 0; rank < p.peers.n_ranks; ++rank) {
      p.peers.logits[rank][p.peers.logits_begin + first_row + thread] = value;
    }
    return;
  }
  uint4* words = p.words.qkv;
  if (phase == kGateUp) {
    words = p.words.hidden;
  } else if (phase != kQkv) {
    if (p.peers.n_ranks > 1) {
      value = sum_over_ranks(p.peers, phase == kWo ? 0 : 1, first_row, n_rows, value, epoch);
    }
    value += memory.residual[thread];
    memory.residual[thread] = value;
    words = phase == kWo ? p.words.after_attention : p.words.after_ffn;
  }
  publish(words + first_row / 4, 0, n_rows, value, epoch);
}

// The static shared memory of a block.
template <int kHeads>
struct StepStatic {
  uint64_t full[kStepMaxSlots], empty[kStepMaxSlots];
  float squares[2][kStepWarps];
  uint32_t first_epoch;
  int most_copies;
  int k_splits_came;
  float residual[kStepConsumers];  // a row for each thread
  alignas(16) __half scales[2][kStepMaxRows];
  alignas(16) StepAttentionShared<kHeads> attention;
  StepGemv gemvs[kStepPhases];
  alignas(16) StepLayer layers[2];  // this layer and the next
};
#endif

// One token through all layers and the output matrix: RMSNorm, q k v, RoPE, KV append, attention,
// wo, RMSNorm, SwiGLU, down; logits [vocab_size] F32. With several ranks each has a slice of the
// weights and runs this kernel at the same time; every rank gets all logits.
//
//   x, cache   as in DecodeModel; x [dim] F32 the token's embedding
//   launch     cooperative, one block on each SM; 8 consumer warps multiply, 4 producer warps fill
//              the ring. A block owns rows of every matrix and of the residual stream, and K splits
//              of left-over gate/up tile pairs: step_split_k.cuh
//   exchange   six vectors a layer and the sums of K splits: step_exchange.cuh; the sums of wo and
//              down over the ranks: step_peers.cuh
//   maths      activations are f32. Float weights are multiplied in f32. Codes are multiplied by x
//              in 32-bit fixed point: the sums of a group are exact integers (multiply_codes), to
//              which scales are applied in f32. q . k of an int8 cache is computed alike if
//              head_dim is 64 or 128 (step_codes.cuh), else in f32; weights . v of one such head
//              on F16 tensor cores, a weight being two halves (step_values.cuh), else in f32.
//              Everything is summed in one order: same input, same bits
//   moves      every weight and the cache once from memory; the exchanged vectors once for each
//              block (132 on an H200) from L2
//   source     the one-kernel decoders calm (Kuznetsov 2023) and Megakernels (HazyResearch 2025)
template <int kHeads>
__global__ void __launch_bounds__(kStepThreads, 1)
    decode_step_kernel(const __grid_constant__ StepParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint8_t* const shared = ptx::dynamic_shared<128>();
  auto& [s_full, s_empty, s_squares, s_first_epoch, s_most_copies, s_k_splits_came, s_residual,
         s_scales, s_attention, s_gemvs, s_layers] = ptx::static_shared<StepStatic<kHeads>>();

  const int thread = int(threadIdx.x), warp = thread / 32, block = int(blockIdx.x);
  if (thread < kStepPhases) {
    StepGemv& gemv = s_gemvs[thread] = p.gemvs[thread];
    gemv.begin = gemv.slice.begin(block);
    gemv.count = gemv.slice.count(block);
    gemv.k_split = gemv.k_split_of(block);
  }
  const auto fetch_layer = [&](int layer) {
    static_assert(sizeof(StepLayer) % 16 == 0);
    if (thread < int(sizeof(StepLayer) / 16)) {
      ptx::copy_async_16(ptx::shared_address(s_layers + layer % 2) + 16 * thread,
                         reinterpret_cast<const uint4*>(p.layers + layer) + thread);
    }
    ptx::copy_async_commit();
  };
  fetch_layer(0);
  ptx::copy_async_wait<0>();
  if (thread == 0) {
    for (int i = 0; i < p.n_slots; ++i) {
      ptx::mbarrier_init(s_full + i, 1);
      ptx::mbarrier_init(s_empty + i, kArrivalsOfEmpty);
    }
    ptx::mbarrier_init_fence();
    s_most_copies = p.copies_of_gemv;
    s_k_splits_came = 0;
  }
  __syncthreads();
  const StepRing ring{shared,
                      ptx::shared_address(s_full),
                      ptx::shared_address(s_empty),
                      p.n_slots,
                      p.slot_bytes,
                      &s_most_copies};
  if (warp >= kStepWarps) {
    fill_ring(p, s_gemvs, ring, warp - kStepWarps);
    return;
  }

  if (thread == 0) s_first_epoch = p.input->epoch;
  prepare_attention(p, s_attention, p.input->pos);
  {
    const StepGemv& wo = s_gemvs[kWo];
    const int row = (wo.begin << wo.rows_log) + thread;
    s_residual[thread] = row < p.dim ? __ldcg(p.x + row) : 0.0f;
  }

  consumers_sync();
  const StepMemory memory{shared + step_shared(p).input,
                          reinterpret_cast<float*>(shared + step_shared(p).scratch), s_scales,
                          s_residual};
  StepCursor cursor;
  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer_index = step / 4, phase = phase_of(p, step);
    const StepLayer& layer = s_layers[layer_index % 2];
    const StepGemv& gemv = s_gemvs[phase];
    const uint32_t epoch = s_first_epoch + uint32_t(layer_index);

    float* const squares = s_squares[step % 2];
    float unit = 1;
    if (thread_index() == 0) {
      allow_copies(&s_most_copies, phase == kWo ? p.copies_of_gemv : p.copies_of_exchange);
    }
    if (phase == kWo) {
      attend<kHeads>(p, layer, s_attention, reinterpret_cast<float*>(memory.input),
                     memory.scratch(0), ring, cursor, epoch);
      if (thread_index() == 0) allow_copies(&s_most_copies, p.copies_of_exchange);
    }
    // A block without rows in this phase does not wait for its input: step_exchange.cuh.
    if (gemv.count != 0 || gemv.k_split.exists()) {
      StepSource source{.norm_is_bf16 = p.norm_is_bf16};
      source.epoch = phase == kQkv || phase == kHead ? epoch - 1 : epoch;  // of the layer before
      if (phase == kWo || phase == kDown) {
        source.words = phase == kWo ? p.words.attended : p.words.hidden;
        unit = stage_input<false>(gemv, source, memory.input, squares);
      } else {
        source.words = phase == kGateUp ? p.words.after_attention : p.words.after_ffn;
        source.norm_weight = phase == kGateUp ? layer.ffn_norm : layer.attn_norm;
        source.plain = layer_index == 0 && phase == kQkv ? p.x : nullptr;
        unit = stage_input<true>(gemv, source, memory.input, squares);
      }
    }

    if (phase == kQkv) fetch_layer(layer_index + 1);
    if ((phase == kWo || phase == kDown) && thread == 0) {  // prefetch the weight of the next norm
      const StepLayer& next = s_layers[(layer_index + (phase == kDown ? 1 : 0)) % 2];
      ptx::prefetch_l2(phase == kWo ? next.ffn_norm : next.attn_norm, 2 * p.dim & ~15);
    }
    if (thread_index() == 0) allow_copies(&s_most_copies, p.copies_of_gemv);
    for (int tile = gemv.k_split.exists() ? -1 : 0;;) {
      const StepRound round = round_of(gemv, step, phase, tile);
      multiply_round(gemv, layer, round, memory, ring, cursor, unit);
      float* const k_split_scratch = memory.scratch(round.buffer) + k_split_row(gemv);
      if (tile < 0) {
        if (gemv.k_split.index != 0) {
          send_k_split(p, gemv, k_split_scratch, &s_k_splits_came, epoch);
        }
        tile = 0;
        continue;
      }
      StepWord k_split_word{};
      const bool adds = adds_k_splits(gemv);
      if (adds) k_split_word = load_k_splits(p, gemv);
      ptx::copy_async_wait<0>();
      consumers_sync();
      if (adds) {
        float scale = norm_factor(squares, gemv, p.eps);
        const int row = k_split_row(gemv) + thread_index() % 32;
        if (gemv.has_row_scales()) {
          scale *= __half2float(s_scales[round.buffer][scale_place(row)]);
        }
        add_k_splits(p, gemv, k_split_scratch, k_split_word, scale, epoch);
      }
      finish_round(p, gemv, round, memory, squares, epoch);
      tile += tiles_at_once(gemv, phase);
      if (tile >= gemv.count) break;
    }
  }
  end_with_peers(p.peers, (s_first_epoch - 1) / uint32_t(p.n_layers) + 1);
#endif
}

}  // namespace

auto step_kernel_of(int heads_per_block) -> void (*)(StepParams) {
  return heads_per_block == 1 ? decode_step_kernel<1> : decode_step_kernel<kStepMaxHeads>;
}

}  // namespace minfer::cuda
