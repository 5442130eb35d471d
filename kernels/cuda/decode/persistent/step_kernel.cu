#include "kernels/cuda/decode/persistent/step_attention.cuh"
#include "kernels/cuda/decode/persistent/step_input.cuh"
#include "kernels/cuda/decode/persistent/step_parts.cuh"
#include "kernels/cuda/decode/persistent/step_product.cuh"
#include "kernels/cuda/decode/persistent/step_ring.cuh"
#include "kernels/cuda/matvec/epilogue.cuh"

namespace minfer::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// What of a product goes together: tiles from `tile` on, or, at -1, the block's part of a pair.
struct StepRound {
  int phase, tile;
  int buffer;  // of two: who is done with a round may be a barrier ahead of others, who still read
               // what it left
};
// The block's shared memory but for the ring. `scales` of a round's rows, `residual` of the rows
// that a thread adds to.
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
// Tiles of a share, or pairs, that a block multiplies before it adds its warps' sums up, as a
// logarithm.
__device__ inline int tiles_at_once_log(const StepProduct& product, int phase) {
  return kStepMaxRowsLog - product.rows_log - (phase == kGateUp ? 1 : 0);
}
__device__ inline int tiles_at_once(const StepProduct& product, int phase) {
  return 1 << tiles_at_once_log(product, phase);
}
__device__ inline StepRound round_of(const StepProduct& product, int step, int phase, int tile) {
  return {phase, tile, (step + (max(tile, 0) >> tiles_at_once_log(product, phase))) & 1};
}

// Rows of the round's scratch behind those of whole pairs: of the block's part.
__device__ inline int part_row(const StepProduct& product) {
  return product.count << (product.rows_log + 1);
}

// The warp's sums of a round in its scratch. `unit`: their factor, as stage_input returned it.
__device__ inline void multiply_round(const StepProduct& product, const StepLayer& layer,
                                      const StepRound& at, const StepMemory& memory,
                                      const StepRing& ring, StepCursor& cursor, float unit) {
  const int halves_log = at.phase == kGateUp ? 1 : 0;
  const bool is_part = at.tile < 0;
  float* const scratch = memory.scratch(at.buffer) + (is_part ? part_row(product) : 0);
  const int n_tiles = is_part ? 1 : min(tiles_at_once(product, at.phase), product.count - at.tile);
  if (product.has_row_scales() && !is_part) {
    fetch_row_scales(product, layer, at.phase, at.tile, n_tiles, memory.scales[at.buffer]);
    ptx::copy_async_commit();
  }
  multiply(product, ring, memory.input, scratch, cursor, n_tiles << halves_log, unit,
           is_part ? product.part.stages : StepStages{0, product.n_stages});
}

// Adds the warps' sums of a round, and publishes the rows or leaves them as logits.
__device__ inline void finish_round(const StepParams& p, const StepProduct& product,
                                    const StepRound& at, const StepMemory& memory,
                                    const float* squares, uint32_t epoch) {
  const int thread = thread_index(), phase = at.phase;
  const int halves_log = phase == kGateUp ? 1 : 0, rows_log = product.rows_log;
  const int n_rows = min(tiles_at_once(product, phase), product.count - at.tile) << rows_log;
  const bool has_row = thread < n_rows;
  const int first_row = (product.begin + at.tile) << rows_log;
  float value = 0;
  if (has_row) {
    const bool has_norm = phase != kWo && phase != kDown;
    const float factor = has_norm ? norm_factor(squares, product, p.eps) : 1.0f;
    const float* const scratch = memory.scratch(at.buffer);
    const __half* const scales = memory.scales[at.buffer];
    const auto product_of_row = [&](int row) {
      const float sum = sum_of_warps(scratch, row) * factor;
      return product.has_row_scales() ? sum * __half2float(scales[scale_place(row)]) : sum;
    };
    const int in_tile = thread & (product.tile_rows() - 1);
    const int row = (thread >> rows_log << (halves_log + rows_log)) + in_tile;
    value = product_of_row(row);
    if (phase == kGateUp) value = precise::silu(value) * product_of_row(row + product.tile_rows());
  }
  if (phase == kHead) {
    if (has_row && first_row + thread < product.out_dim) p.logits[first_row + thread] = value;
    return;
  }
  uint4* words = p.words.qkv;
  if (phase == kGateUp) {
    words = p.words.hidden;
  } else if (phase != kQkv) {
    value += memory.residual[thread];
    memory.residual[thread] = value;
    words = phase == kWo ? p.words.after_attention : p.words.after_ffn;
  }
  publish(words + first_row / 4, 0, n_rows, value, epoch);
}
#endif

// One token through all layers and the output matrix: RMSNorm, q k v, RoPE, KV append, attention,
// wo, RMSNorm, SwiGLU, down; logits [vocab_size] F32.
//
//   x, cache   as in DecodeModel; x [dim] F32 the token's embedding
//   launch     as many blocks as multiprocessors, cooperative; 8 warps multiply, 4 keep the
//              ring of weights full. Blocks own rows, also of the residual stream, and parts of
//              the rows of gate and up that are left over: step_parts.cuh
//   exchange   six vectors a layer and the sums of parts: step_exchange.cuh
//   maths      activations f32 throughout: floats times floats in f32; codes times x in fixed
//              point of 32 bits, whose sums of a group are exact integers (multiply_codes), scales
//              on those in f32. q . k of an int8 cache as such products where heads are of 64 or
//              128 (step_codes.cuh), else in f32; weights . v of one such head with weights of two
//              halves (step_values.cuh), else in f32. Everything is summed in one order: same
//              input, same bits
//   moves      every weight and the cache once; 132 times the exchanged vectors from L2
//   source     the one-kernel decoders calm (Kuznetsov 2023) and Megakernels (HazyResearch 2025)
template <int kHeads>
__global__ void __launch_bounds__(kStepThreads, 1)
    decode_step_kernel(const __grid_constant__ StepParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t s_full[kStepMaxSlots], s_empty[kStepMaxSlots];
  __shared__ float s_squares[2][kStepWarps];
  __shared__ uint32_t s_first_epoch;
  __shared__ int s_most_copies;
  __shared__ int s_parts_came;
  __shared__ float s_residual[kStepConsumers];  // of the rows that a thread adds to
  __shared__ alignas(16) __half s_scales[2][kStepMaxRows];
  __shared__ alignas(16) StepAttentionShared<kHeads> s_attention;
  __shared__ StepProduct s_products[kStepPhases];
  __shared__ alignas(16) StepLayer s_layers[2];  // this one and the next

  const int thread = int(threadIdx.x), warp = thread / 32, block = int(blockIdx.x);
  if (thread < kStepPhases) {
    StepProduct& product = s_products[thread] = p.products[thread];
    product.begin = product.share.begin(block);
    product.count = product.share.count(block);
    product.part = product.part_of(block);
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
    s_most_copies = p.copies_of_product;
    s_parts_came = 0;
  }
  __syncthreads();
  const StepRing ring{shared,
                      ptx::shared_address(s_full),
                      ptx::shared_address(s_empty),
                      p.n_slots,
                      p.slot_bytes,
                      &s_most_copies};
  if (warp >= kStepWarps) {
    fill_ring(p, s_products, ring, warp - kStepWarps);
    return;
  }

  if (thread == 0) s_first_epoch = p.input->epoch;
  prepare_attention(p, s_attention, p.input->pos);
  {
    const StepProduct& wo = s_products[kWo];
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
    const StepProduct& product = s_products[phase];
    const uint32_t epoch = s_first_epoch + uint32_t(layer_index);

    float* const squares = s_squares[step % 2];
    float unit = 1;
    if (thread_index() == 0) {
      allow_copies(&s_most_copies, phase == kWo ? p.copies_of_product : p.copies_of_exchange);
    }
    if (phase == kWo) {
      attend<kHeads>(p, layer, s_attention, reinterpret_cast<float*>(memory.input),
                     memory.scratch(0), ring, cursor, epoch);
      if (thread_index() == 0) allow_copies(&s_most_copies, p.copies_of_exchange);
    }
    // Who has no rows of the product does not wait for its input: step_exchange.cuh.
    if (product.count != 0 || product.part.exists()) {
      StepSource source{.norm_is_bf16 = p.norm_is_bf16};
      source.epoch = phase == kQkv || phase == kHead ? epoch - 1 : epoch;  // of the layer before
      if (phase == kWo || phase == kDown) {
        source.words = phase == kWo ? p.words.attended : p.words.hidden;
        unit = stage_input<false>(product, source, memory.input, squares);
      } else {
        source.words = phase == kGateUp ? p.words.after_attention : p.words.after_ffn;
        source.norm_weight = phase == kGateUp ? layer.ffn_norm : layer.attn_norm;
        source.plain = layer_index == 0 && phase == kQkv ? p.x : nullptr;
        unit = stage_input<true>(product, source, memory.input, squares);
      }
    }

    if (phase == kQkv) fetch_layer(layer_index + 1);
    if ((phase == kWo || phase == kDown) && thread == 0) {  // the next norm's weight, to L2
      const StepLayer& next = s_layers[(layer_index + (phase == kDown ? 1 : 0)) % 2];
      ptx::prefetch_l2(phase == kWo ? next.ffn_norm : next.attn_norm, 2 * p.dim & ~15);
    }
    if (thread_index() == 0) allow_copies(&s_most_copies, p.copies_of_product);
    for (int tile = product.part.exists() ? -1 : 0;;) {
      const StepRound round = round_of(product, step, phase, tile);
      multiply_round(product, layer, round, memory, ring, cursor, unit);
      float* const part_scratch = memory.scratch(round.buffer) + part_row(product);
      if (tile < 0) {
        if (product.part.index != 0) {
          send_part(p, product, part_scratch, &s_parts_came, epoch);
        }
        tile = 0;
        continue;
      }
      StepWord part_word{};
      const bool adds = adds_parts_of(product);
      if (adds) part_word = ask_parts(p, product);
      ptx::copy_async_wait<0>();
      consumers_sync();
      if (adds) {
        float scale = norm_factor(squares, product, p.eps);
        const int row = part_row(product) + thread_index() % 32;
        if (product.has_row_scales()) {
          scale *= __half2float(s_scales[round.buffer][scale_place(row)]);
        }
        add_parts(p, product, part_scratch, part_word, scale, epoch);
      }
      finish_round(p, product, round, memory, squares, epoch);
      tile += tiles_at_once(product, phase);
      if (tile >= product.count) break;
    }
  }
#endif
}

}  // namespace

auto step_kernel_of(int heads_per_block) -> void (*)(StepParams) {
  return heads_per_block == 1 ? decode_step_kernel<1> : decode_step_kernel<kStepMaxHeads>;
}

}  // namespace minfer::cuda
