#include "kernels/cuda/decode/step_attention.cuh"
#include "kernels/cuda/decode/step_input.cuh"
#include "kernels/cuda/decode/step_product.cuh"
#include "kernels/cuda/decode/step_ring.cuh"

namespace minfer::cuda {
namespace {

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

// The matrix and row that a block's row of a product is.
struct StepRow {
  StepTile tile;
  int row;  // in the matrix
};
__device__ inline StepRow step_row(const StepProduct& product, const StepLayer& layer, int phase,
                                   int first_tile, int row, int half_of_pair) {
  const StepTile tile = step_tile(product, layer.matrices + first_matrix(phase), phase,
                                  first_tile + row / product.tile_rows, half_of_pair);
  return {tile, tile.row_tile * product.tile_rows + row % product.tile_rows};
}

// Where a row has one scale, that; asked for before the product begins.
__device__ inline float row_scale(const StepProduct& product, const StepRow& at) {
  const int index = at.row / 16 * 16 + at.row % 8 * 2 + at.row / 8 % 2;  // packed_layout.h
  return __half2float(reinterpret_cast<const __half*>(at.tile.matrix->scales)[index]);
}

__device__ inline float sum_of_warps(const float* scratch, int row) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) sum += scratch[w * kStepMaxRows + row];
  return sum;
}

// One token through all layers and the output matrix: RMSNorm, q k v, RoPE, KV append, attention,
// wo, RMSNorm, SwiGLU, down; logits [vocab_size] F32.
//
//   x, cache   as in DecodeModel; x [dim] F32 the token's embedding
//   launch     as many blocks as multiprocessors, cooperative; 16 warps multiply, one keeps the
//              ring of weights full. Blocks own rows: of the residual stream in a register each
//   exchange   six vectors a layer between all blocks or those of a group of heads:
//              step_exchange.cuh
//   maths      activations f32 throughout: floats times floats in f32; levels times f16(x) and
//              f16(x - f16(x)) on the tensor cores, f32 sums, scales on the sums. q . k and
//              weights . v in f32. Everything is summed in one order: same input, same bits
//   moves      every weight and the cache once; 132 times the exchanged vectors from L2
//   source     the one-kernel decoders calm (Kuznetsov 2023) and Megakernels (HazyResearch 2025)
template <int kHeads>
__global__ void __launch_bounds__(kStepThreads, 1)
    decode_step_kernel(const __grid_constant__ StepParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t s_full[kStepMaxSlots], s_empty[kStepMaxSlots];
  __shared__ alignas(16) float s_sums[2 * kStepWarps];
  __shared__ alignas(16) StepAttentionShared s_attention;

  const int warp = int(threadIdx.x) / 32, block = int(blockIdx.x);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.n_slots; ++i) {
      ptx::mbarrier_init(s_full + i, 1);
      ptx::mbarrier_init(s_empty + i, kStepWarps / 2);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const StepRing ring{shared, s_full, s_empty};
  if (warp == kStepWarps) {
    fill_ring(p, ring);
    return;
  }

  const StepShared layout = step_shared(p);
  const StepStage stage{shared + layout.input, reinterpret_cast<float4*>(shared + layout.biases),
                        reinterpret_cast<float*>(shared + layout.scratch), s_sums};
  const uint32_t first_epoch = __ldcg(p.epoch);
  const StepAttentionThread attention = attention_thread(p, __ldcg(p.pos));
  const int own_row = row_of_thread();
  StepCursor cursor(warp / 8);
  float residual = 0;
  {
    const StepProduct& wo = p.products[kWo];
    const int row = wo.share.begin(block) * wo.tile_rows + own_row;
    if (own_row >= 0 && row < p.dim) residual = __ldcg(p.x + row);
  }

  for (int step = 0; step <= 4 * p.n_layers; ++step) {
    const int layer_index = step / 4, phase = layer_index == p.n_layers ? int(kHead) : step % 4;
    const StepLayer& layer = p.layers[layer_index];
    const StepProduct& product = p.products[phase];
    const uint32_t epoch = first_epoch + uint32_t(layer_index);

    if (phase == kWo && attention.takes_part) {
      attend<kHeads>(p, layer, attention, s_attention, reinterpret_cast<float*>(stage.input),
                     stage.scratch, epoch);
    }
    float unit;
    if (phase == kWo || phase == kDown) {
      const StepSource source = phase == kWo ? StepSource{p.words.attended, nullptr, p.attended_map,
                                                          p.n_attended_words, epoch, nullptr}
                                             : StepSource{p.words.hidden, nullptr, p.hidden_map,
                                                          p.n_hidden_words, epoch, nullptr};
      unit = stage_input<kStepMaxWords, false>(p, product, source, stage);
    } else {
      const StepSource source =
          phase == kGateUp
              ? StepSource{p.words.after_attention, nullptr, p.x_map, p.n_x_words, epoch,
                           layer.ffn_norm}
              : StepSource{p.words.after_ffn, layer_index == 0 ? p.x : nullptr, p.x_map,
                           p.n_x_words, epoch - 1, layer.attn_norm};
      unit = stage_input<kStepMaxNormWords, true>(p, product, source, stage);
    }

    const int first_tile = product.share.begin(block), n_tiles = product.share.count(block);
    const int halves = phase == kGateUp ? 2 : 1;
    const int at_once = kStepMaxRows / (halves * product.tile_rows);
    const bool has_row_scales = product.format >= StepFormat::U4 && product.scales_per_piece == 0;
    for (int tile = 0; tile == 0 || tile < n_tiles; tile += at_once) {
      const int n_now = min(at_once, n_tiles - tile), n_rows = n_now * product.tile_rows;
      const bool has_row = own_row >= 0 && own_row < n_rows;
      const StepRow at =
          step_row(product, layer, phase, first_tile + tile, has_row ? own_row : 0, 0);
      const bool is_in_matrix = has_row && (phase != kHead || at.row < product.out_dim);
      float scale[2] = {unit, unit};
      if (has_row_scales && has_row) {
        scale[0] *= row_scale(product, at);
        if (phase == kGateUp) {
          scale[1] *= row_scale(
              product, step_row(product, layer, phase, first_tile + tile, own_row, 1));
        }
      }
      multiply(p, product, ring, stage, cursor, n_now * halves);
      consumers_sync();
      float value = 0;
      if (has_row) {
        const int in_tile = own_row % product.tile_rows, of_tile = own_row / product.tile_rows;
        const int row = (of_tile * halves) * product.tile_rows + in_tile;
        value = sum_of_warps(stage.scratch, row) * scale[0];
        if (phase == kGateUp) {
          value = silu(value) * (sum_of_warps(stage.scratch, row + product.tile_rows) * scale[1]);
        }
      }
      if (phase == kHead) {
        if (is_in_matrix) p.logits[at.row] = value;
        consumers_sync();  // scratch is free again
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
      // All its words, also where it has a row less than others: who reads them waits for all.
      publish_rows(words + block * product.words_per_block, 0, product.words_per_block, value,
                   epoch);
    }
  }
  // Every block has read it: this one has had words of all.
  if (block == 0 && threadIdx.x == 0) *p.epoch = first_epoch + uint32_t(p.n_layers);
}

}  // namespace

auto step_kernel_of(int heads_per_block) -> void (*)(StepParams) {
  return heads_per_block == 1 ? decode_step_kernel<1> : decode_step_kernel<kStepMaxHeads>;
}

}  // namespace minfer::cuda
