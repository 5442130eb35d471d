#include "kernels/cuda/decode/step_attention.cuh"
#include "kernels/cuda/decode/step_input.cuh"
#include "kernels/cuda/decode/step_parts.cuh"
#include "kernels/cuda/decode/step_product.cuh"
#include "kernels/cuda/decode/step_ring.cuh"
#include "kernels/cuda/matvec/epilogue.cuh"

namespace minfer::cuda {
namespace {

// One token through all layers and the output matrix: RMSNorm, q k v, RoPE, KV append, attention,
// wo, RMSNorm, SwiGLU, down; logits [vocab_size] F32.
//
//   x, cache   as in DecodeModel; x [dim] F32 the token's embedding
//   launch     as many blocks as multiprocessors, cooperative; 8 warps multiply, 4 keep the
//              ring of weights full. Blocks own rows: of the residual stream in a register each;
//              and parts of what rows of gate and up are left over: step_parts.cuh
//   exchange   six vectors a layer, between all blocks or those of a group of heads:
//              step_exchange.cuh
//   maths      activations f32 throughout: floats times floats in f32; levels times f16(x) and
//              f16(x - f16(x)) on the tensor cores, f32 sums, scales on the sums. q . k and
//              weights . v in f32. Everything is summed in one order: same input, same bits
//   moves      every weight and the cache once; 132 times the exchanged vectors from L2
//   source     the one-kernel decoders calm (Kuznetsov 2023) and Megakernels (HazyResearch 2025)
template <int kHeads>
__global__ void __launch_bounds__(kStepThreads, 1)
    decode_step_kernel(const __grid_constant__ StepParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t s_full[kStepMaxSlots], s_empty[kStepMaxSlots];
  __shared__ float s_squares[2][kStepWarps];
  __shared__ alignas(16) StepAttentionShared s_attention;
  __shared__ StepProduct s_products[kStepPhases];
  __shared__ StepLayer s_layers[2];  // this one and the next

  const int thread = int(threadIdx.x), warp = thread / 32, block = int(blockIdx.x);
  if (thread < kStepPhases) {
    StepProduct& product = s_products[thread] = p.products[thread];
    product.begin = product.share.begin(block);
    product.count = product.share.count(block);
    product.part = product.part_of(block);
  }
  const auto fetch_layer = [&](int layer) {
    if (thread < int(sizeof(StepLayer) / 8)) {
      reinterpret_cast<uint64_t*>(s_layers + layer % 2)[thread] =
          __ldg(reinterpret_cast<const unsigned long long*>(p.layers + layer) + thread);
    }
  };
  fetch_layer(0);
  if (thread == 0) {
    for (int i = 0; i < p.n_slots; ++i) {
      ptx::mbarrier_init(s_full + i, 1);
      ptx::mbarrier_init(s_empty + i, kStepWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const StepRing ring{shared,
                      ptx::shared_address(s_full),
                      ptx::shared_address(s_empty),
                      p.n_slots,
                      p.slot_bytes,
                      p.most_copies};
  if (warp >= kStepWarps) {
    fill_ring(p.layers, p.n_layers, s_products, ring, warp - kStepWarps);
    return;
  }

  const StepShared layout = step_shared(p);
  auto* const scratch = reinterpret_cast<float*>(shared + layout.scratch);
  const uint32_t first_epoch = p.input->epoch;
  const int pos = p.input->pos;
  StepCursor cursor;
  float residual = 0;
  {
    const StepProduct& wo = s_products[kWo];
    const int row = wo.begin * wo.tile_rows + thread;
    if (row < p.dim) residual = __ldcg(p.x + row);
  }

  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer_index = step / 4, phase = layer_index == p.n_layers ? int(kHead) : step % 4;
    const StepLayer& layer = s_layers[layer_index % 2];
    const StepProduct& product = s_products[phase];
    const uint32_t epoch = first_epoch + uint32_t(layer_index);

    // Who is done with a product may be a barrier ahead of others, who still read what it left.
    StepStage stage{shared + layout.input, scratch, s_squares[step % 2]};
    float unit;
    if (phase == kWo || phase == kDown) {
      if (phase == kWo) {
        fetch_layer(layer_index + 1);  // seen by all behind the barriers of the steps to come
        attend<kHeads>(p, layer, s_attention, reinterpret_cast<float*>(stage.input), scratch, pos,
                       epoch);
      }
      const StepSource source{.words = phase == kWo ? p.words.attended : p.words.hidden,
                              .epoch = epoch};
      unit = stage_input<false>(product, source, stage);
    } else {
      StepSource source{.norm_is_bf16 = p.norm_is_bf16};
      if (phase == kGateUp) {
        source.words = p.words.after_attention;
        source.epoch = epoch;
        source.norm_weight = layer.ffn_norm;
      } else {
        source.words = p.words.after_ffn;
        source.epoch = epoch - 1;
        source.plain = layer_index == 0 ? p.x : nullptr;
        source.norm_weight = layer.attn_norm;
      }
      unit = stage_input<true>(product, source, stage);
    }

    if (phase == kQkv && thread == 0) prefetch_rows(p.attention, layer, pos);
    if ((phase == kWo || phase == kDown) && thread == 0) {  // the next norm's weight, to L2
      const StepLayer& next = s_layers[(layer_index + (phase == kDown ? 1 : 0)) % 2];
      ptx::prefetch_l2(phase == kWo ? next.ffn_norm : next.attn_norm, 2 * p.dim & ~15);
    }
    const int n_tiles = product.count;
    const int halves = phase == kGateUp ? 2 : 1, tile_rows = product.tile_rows;
    const int at_once = kStepMaxRows / (halves * tile_rows);
    const bool has_row_scales = product.format >= StepFormat::U4 && product.scales_per_piece == 0;
    // A part of a pair comes first, as round -1; its sums lie behind the rows of the whole pairs.
    const int part_at = n_tiles * halves * tile_rows;
    for (int round = product.part.exists() ? -1 : 0; round <= 0 || round * at_once < n_tiles;
         ++round) {
      stage.scratch = scratch + (step + max(round, 0)) % 2 * kScratchFloats;
      const bool is_part = round < 0;
      const bool adds_parts = !is_part && adds_parts_of(product);
      const int tile = is_part ? 0 : round * at_once;
      const int n_now = is_part ? 1 : min(at_once, n_tiles - tile), n_rows = n_now * tile_rows;
      const bool has_row = !is_part && thread_index() < n_rows;
      float scale[2] = {1, 1};
      if (has_row_scales && (has_row || adds_parts)) {
        const int lane = thread_index() % 32;
        scale[0] *= row_scale(
            product, layer, phase, adds_parts ? product.part.tile : product.begin + tile,
            adds_parts ? lane % kTileRows : thread_index(), adds_parts ? lane / kTileRows : 0);
        if (phase == kGateUp && has_row) {
          scale[1] *= row_scale(product, layer, phase, product.begin + tile, thread_index(), 1);
        }
      }
      if (is_part) stage.scratch += part_at;
      multiply(product, ring, stage, cursor, n_now * halves, unit,
               is_part ? product.part.stages : StepStages{0, product.n_stages});
      if (is_part) {
        if (product.part.index != 0) send_part(p, product, stage.scratch, epoch);
        continue;
      }
      StepWord part_word{};
      if (adds_parts) part_word = ask_parts(p, product);
      consumers_sync();
      if (adds_parts) {
        scale[0] *= norm_factor(stage.squares, product.in_dim, p.eps);
        add_parts(p, product, stage.scratch + part_at, part_word, scale[0], epoch);
      }
      float value = 0;
      if (has_row) {
        if (phase != kWo && phase != kDown) {
          const float factor = norm_factor(stage.squares, product.in_dim, p.eps);
          scale[0] *= factor;
          scale[1] *= factor;
        }
        const int own = thread_index();
        const int row = own / tile_rows * halves * tile_rows + own % tile_rows;
        value = sum_of_warps(stage.scratch, row) * scale[0];
        if (phase == kGateUp) {
          value = silu(value) * (sum_of_warps(stage.scratch, row + tile_rows) * scale[1]);
        }
      }
      if (phase == kHead) {
        const int row = (product.begin + tile) * tile_rows + thread_index();
        if (has_row && row < product.out_dim) p.logits[row] = value;
        continue;
      }
      uint4* words = p.words.qkv;
      if (phase == kGateUp) {
        words = p.words.hidden;
      } else if (phase != kQkv) {
        residual += value;
        value = residual;
        words = phase == kWo ? p.words.after_attention : p.words.after_ffn;
      }
      publish(words + (product.begin + tile) * tile_rows / 4, 0, n_rows, value, epoch);
    }
  }
#endif
}

}  // namespace

auto step_kernel_of(int heads_per_block) -> void (*)(StepParams) {
  return heads_per_block == 1 ? decode_step_kernel<1> : decode_step_kernel<kStepMaxHeads>;
}

}  // namespace minfer::cuda
