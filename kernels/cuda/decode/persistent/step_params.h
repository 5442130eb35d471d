#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/step_input.h"

// What persistent_step.cu prepares and the kernel of step_kernel.cu reads.
namespace minfer::cuda {

constexpr int kStepWarps = 8;      // that multiply
constexpr int kStepProducers = 4;  // that keep the ring of weights full
constexpr int kStepConsumers = 32 * kStepWarps;
constexpr int kStepThreads = kStepConsumers + 32 * kStepProducers;

// A stage of the ring: pieces of 512 bytes, two for each multiplying warp, and the scales of their
// columns behind; of floats 4096 columns of a row.
constexpr int kPieceBytes = 512, kStagePieces = 16, kStageBytes = kStagePieces * kPieceBytes;
constexpr int kStageColumns = kStageBytes / 2;                     // of floats
constexpr int kFloatRowsLog = 2, kFloatRows = 1 << kFloatRowsLog;  // of a tile of floats
constexpr int kStepMaxSlots = 20;  // more were no faster: copies under way delay the exchange

// Words of 16 bytes of a product's input that a thread stages at once, in registers; of codes
// those are all it has.
constexpr int kStepNormWords = 8, kStepInputWords = 16;
__host__ __device__ constexpr int most_code_columns(bool has_norm) {
  return 4 * kStepConsumers * (has_norm ? kStepNormWords : kStepInputWords);
}

// Rows of a product that a block may have at a time: sums of all warps wait in shared memory.
constexpr int kStepMaxRowsLog = 8, kStepMaxRows = 1 << kStepMaxRowsLog;
constexpr int kScratchFloats = kStepWarps * kStepMaxRows;  // twice
// Parts of a pair of tiles that blocks share, and words of the sums of one: step_parts.cuh.
constexpr int kStepMaxParts = 5, kPartWords = 8;
constexpr int kStepMaxHeads = 4;  // query heads of a key/value head that a block attends with
constexpr int kStepMaxHeadDim = 128;

enum class StepFormat : int { F16, BF16, U4, U8 };

// The products of a layer, in their order, and the output matrix.
enum StepPhase : int { kQkv, kWo, kGateUp, kDown, kHead, kStepPhases };

// Which tiles a block has: begin(b) ... begin(b) + count(b). Those that have one more than others
// begin at block `shift`, elsewhere for each product, so that the blocks' sums over a layer agree.
// Measured: q, k and v dealt out by heads, so that the blocks of a head wait for each other alone,
// gained nothing, and reading at distances of powers of two cost F16 5 %.
struct StepShare {
  int n_tiles, rounds, n_longer, shift, n_blocks;
  __host__ __device__ int begin(int block) const {
    const int i = index(block);
    return i * rounds + (i < n_longer ? i : n_longer);
  }
  __host__ __device__ int count(int block) const {
    return rounds + (index(block) < n_longer ? 1 : 0);
  }
  // In the order of the tiles.
  __host__ __device__ int index(int block) const {
    return block >= shift ? block - shift : block + n_blocks - shift;
  }
};

// begin ... end - 1, of each stream of a tile.
struct StepStages {
  int begin, end;
};

// What a block has of a pair that goes in parts: some stages, or none at all.
struct StepPart {
  int tile;   // of the product
  int index;  // of the pair's parts; the block of the first adds the others
  StepStages stages;
  __host__ __device__ bool exists() const { return stages.begin < stages.end; }
};

// One product, alike in all layers. Its tiles are those of its matrices one after the other, but
// gate and up go in pairs: a tile of the share is then one of each.
struct StepProduct {
  StepFormat format;
  StepShare share;
  int n_left, n_parts;   // kGateUp: pairs behind those of `share`, and the parts of each
  int begin, count;      // of this block, from `share`: the kernel's own
  StepPart part;         // that too
  int rows_log;          // log2 of a tile's rows: 16 of packed codes, kFloatRows of floats
  int out_dim, in_dim;   // rows of the largest matrix
  float per_column;      // 1 / in_dim
  int ends[2];           // tiles of the first matrix, and of the first two
  int n_pieces;          // of packed codes, of a tile along the columns: 64 of U4, 32 of U8
  int n_stages;          // of a tile; of floats, of a row
  int code_bytes;        // of a tile; of floats, of a row
  int scales_per_piece;  // of a row: 0 (the row has one), 1, 2
  int unit_shift;        // log2 of the columns of a scale
  int tile_scale_bytes, stage_scale_bytes;

  __host__ __device__ int tile_rows() const { return 1 << rows_log; }
  __host__ __device__ bool has_row_scales() const {
    return format >= StepFormat::U4 && scales_per_piece == 0;
  }

  // One part at most: there are n_left * n_parts of them, no more than blocks.
  __host__ __device__ StepPart part_of(int block) const {
    const int i = share.index(block);
    if (i >= n_left * n_parts) return {};
    const int k = i % n_parts;
    return {share.n_tiles + i / n_parts, k, {n_stages * k / n_parts, n_stages * (k + 1) / n_parts}};
  }
};

struct StepMatrix {
  const uint8_t* weights;
  const uint8_t* scales;
};

// Of a layer, and behind the last one the output: its matrix first, and its norm.
struct StepLayer {
  StepMatrix matrices[7];  // q, k, v, o, gate, up, down
  const void *attn_norm, *ffn_norm;
  void *keys, *values;
  float *key_scales, *value_scales;
};
// All pointers of a layer in pairs of 16 bytes: the matrices, the norms, then keys and values, then
// their scales.
constexpr int kLayerPairs = int(sizeof(StepLayer) / sizeof(StepMatrix)), kCachePair = 8;
static_assert(offsetof(StepLayer, keys) == kCachePair * sizeof(StepMatrix));
__host__ __device__ inline const StepMatrix& pointer_pair(const StepLayer& layer, int i) {
  return reinterpret_cast<const StepMatrix*>(&layer)[i];
}
__host__ __device__ constexpr int first_matrix(int phase) {
  return phase == kWo ? 3 : phase == kGateUp ? 4 : phase == kDown ? 6 : 0;
}

// Where the vectors travel between blocks: step_exchange.cuh.
struct StepWords {
  uint4 *qkv, *parts, *attended, *after_attention, *gate_up_parts, *hidden, *after_ffn;
};

struct StepAttention {
  int n_heads, n_kv_heads, head_dim, n_pairs;
  int heads_per_block, blocks_per_kv;
  int n_groups, n_splits;  // a group: heads_per_block heads of a key/value head
  int group_words;         // of its output, four elements each
  int split_words;         // of those, merged by one block
  int most_alone;          // positions of a group that one block takes without merging
  int lanes;               // that share a row of the cache: 8 or 16
  int stage_rows;          // of the cache that come in a stage of the ring
  bool is_u8;
  bool multiplies_codes;  // q . k by the integer tensor cores: step_codes.cuh
  int query_at;           // of what that wants, in bytes, in the memory of attention
  float scale_log2;

  __host__ __device__ int row_bytes() const { return head_dim * (is_u8 ? 1 : 2); }  // of the cache
};

struct StepParams {
  const StepLayer* layers;
  int n_layers, dim;
  StepProduct products[kStepPhases];
  StepAttention attention;
  StepWords words;
  const float* x;        // [dim], the embedding
  const float2* rope;    // [.., n_pairs]
  const int32_t* pages;  // of the sequence, in the order of positions
  const StepInput* input;
  float* logits;
  float eps;
  bool norm_is_bf16;
  int n_slots, slot_bytes;
  // Copies under way at most, no more than slots: while the block waits for a vector, and while it
  // multiplies or attends.
  int copies_of_exchange, copies_of_product;
  int input_bytes;  // of shared memory: staged activations; also what attention merges
};

// Activations that wait in shared memory: f32, or for codes 4 digits of 8 bits (step_input.cuh),
// all of one kind together; kinds lie this many bytes apart, which is 8 banks more than a multiple
// of 16.
__host__ __device__ inline int digit_stride(int in_dim) { return (in_dim + 63) / 64 * 64 + 32; }
__host__ __device__ inline int staged_bytes(int in_dim, bool is_float) {
  return is_float ? (in_dim + 63) / 64 * 64 * 4 : 4 * digit_stride(in_dim);
}

// Bytes of shared memory, in this order.
struct StepShared {
  int ring, input, scratch, total;
};
__host__ __device__ inline StepShared step_shared(const StepParams& p) {
  StepShared at{};
  at.ring = 0;
  at.input = p.n_slots * p.slot_bytes;
  at.scratch = at.input + p.input_bytes;
  at.total = at.scratch + 2 * kScratchFloats * 4;
  return at;
}

// For up to that many query heads a block; 1 or kStepMaxHeads.
auto step_kernel_of(int heads_per_block) -> void (*)(StepParams);

}  // namespace minfer::cuda
