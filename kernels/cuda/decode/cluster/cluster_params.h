#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/quant/packed_layout.h"
#include "kernels/cuda/step_input.h"

// What cluster_step.cu prepares and the kernel of cluster_kernel.cuh reads.
namespace minfer::cuda {

constexpr int kClusterWarps = 12, kClusterThreads = 32 * kClusterWarps;
constexpr int kMostClusterBlocks = 16;

// A warp multiplies one piece of 64 columns of the rows, or two of those of down.
__host__ __device__ constexpr int most_cluster_pieces(bool is_down) {
  return (is_down ? 2 : 1) * kClusterWarps;
}
// Bytes from the staged digits of one place to those of the next (step_params.h): 8 banks more than
// a multiple of 16.
constexpr int kClusterDigits = most_cluster_pieces(true) * kTileColumns + 32;
// Tiles of a block in a phase, pairs counted twice: they bound the memory for sums, and the last
// warp has no rows.
constexpr int kMostClusterTiles = 16;
static_assert(kMostClusterTiles * kTileRows <= 32 * (kClusterWarps - 1));
constexpr int kMostClusterQueries = 4;  // query heads of a group
constexpr int kMostClusterParts = 8;    // of a group
constexpr int kClusterHeadDim = 64;
// Floats of a query of a part in kVectorAttnParts.
constexpr int kClusterQueryStride = kClusterHeadDim + 4;

// The linear phases of a layer, in their order.
enum ClusterPhase : int { kClusterQkv, kClusterWo, kClusterGateUp, kClusterDown, kClusterPhases };
// Tiles that a warp multiplies at a time: as many as a block of SmolLM2-135M has, or half of them.
__host__ __device__ constexpr int cluster_tiles_at_once(int phase) {
  return phase == kClusterQkv ? 4 : phase == kClusterGateUp ? 6 : 3;
}
constexpr int kMostTilesAtOnce = cluster_tiles_at_once(kClusterGateUp);
// The vectors that the blocks exchange in a layer. AttnParts: for each part, which is a range of
// the positions for a group of query heads, for each head, its output, not yet divided,
// and four numbers of which the first two are the maximum and the sum of softmax.
enum ClusterVector : int {
  kVectorQkv,
  kVectorAttnParts,
  kVectorAfterAttention,
  kVectorHidden,
  kVectorAfterFfn,
  kClusterVectors
};

// An mbarrier for each vector, and one for the weights of each phase behind them.
constexpr int kClusterBarriers = int{kClusterVectors} + int{kClusterPhases};

// One linear phase, the same in all layers. Block b of n has tiles n_tiles b / n ... n_tiles (b +
// 1) / n - 1, of gate/up pairs of tiles.
struct ClusterGemv {
  int n_tiles;
  int ends[3];  // tiles of the first matrix, of the first two, and of three
  int in_dim, n_pieces;
  float per_column;                        // 1 / in_dim
  int code_bytes, scale_bytes, min_bytes;  // of a tile
  int pieces_shift;                        // log2 of the pieces of a scale, if it has whole ones
  // Bytes in shared memory: the block's tiles, then all their scales, then all their minimums.
  int codes_at, scales_at, mins_at;
  int norm_at;  // the same, of the norm's weight

  __host__ __device__ int begin(int block, int n_blocks) const {
    return n_tiles * block / n_blocks;
  }
  __host__ __device__ int count(int block, int n_blocks) const {
    return begin(block + 1, n_blocks) - begin(block, n_blocks);
  }
  __host__ __device__ int tile_bytes() const { return code_bytes + scale_bytes + min_bytes; }
};

struct ClusterMatrix {
  const uint8_t *codes, *scales, *mins;  // packed_layout.h; mins may be null
};
struct ClusterLayer {
  ClusterMatrix matrices[7];         // q, k, v, o, gate, up, down
  const void *attn_norm, *ffn_norm;  // half or bfloat16
  uint16_t *keys, *values;  // halves, [n_pages, n_kv_heads, kPagePositions, kClusterHeadDim]
  const void* padding;      // to whole 16 bytes
};
static_assert(sizeof(ClusterLayer) % 16 == 0);

// Byte offsets in shared memory.
struct ClusterShared {
  int barriers, layers, angles, squares, digits, sums, heads;
  int vectors[kClusterVectors];
  int total;
};

struct ClusterParams {
  const ClusterLayer* layers;
  int n_layers, dim, n_blocks;
  int n_heads, n_kv_heads;
  int groups_per_kv;  // groups of query heads of a key/value head
  int n_parts;        // of a group: blocks that share its positions
  float scale_log2;   // of scores, whose unit is log2
  float eps;
  bool vectors_are_bf16;
  ClusterGemv gemvs[kClusterPhases];
  ClusterShared shared;
  int vector_bytes[kClusterVectors];
  float* x;              // [dim], in: the embeddings, out: the residual stream after all layers
  const float2* rope;    // [.., kClusterHeadDim / 2]: cosines and sines
  const int32_t* pages;  // page table of the sequence, in the order of positions
  const StepInput* input;
};

using ClusterKernel = void (*)(ClusterParams);
// What an instance is for: scales of pieces or of half pieces (step_multiply.cuh), and groups of so
// many query heads.
struct ClusterInstance {
  bool has_half_pieces, has_mins;
  int n_queries;
};
ClusterKernel cluster_kernel_of(const ClusterInstance& instance);

}  // namespace minfer::cuda
