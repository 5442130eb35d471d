#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/gemv/experts.h"
#include "kernels/cuda/quant/packed_layout.h"
#include "kernels/cuda/step_input.h"
#include "kernels/layer.h"

// What persistent_step.cu prepares and the kernel of step_kernel.cuh reads.
namespace minfer::cuda {

constexpr int kStepWarps = 8;      // consumer warps, which multiply
constexpr int kStepProducers = 4;  // producer warps, which keep the ring of weights full
constexpr int kStepConsumers = 32 * kStepWarps;
constexpr int kStepThreads = kStepConsumers + 32 * kStepProducers;

// U5Short: U5 in shorter stages.
enum class StepFormat : int { F16, BF16, U2, U3, U4, U5, U5Short, U6, Table, U8 };
__host__ __device__ constexpr bool are_codes(StepFormat format) {
  return format > StepFormat::BF16;
}
__host__ __device__ constexpr bool has_two_bits(StepFormat format) {
  return format == StepFormat::U2 || format == StepFormat::U3;
}
// Of codes, in a piece (quant/packed_layout.h).
__host__ __device__ constexpr int piece_columns(StepFormat format) {
  return piece_columns_of(has_two_bits(format) ? 2 : format == StepFormat::U8 ? 8 : 4);
}

// A stage of the ring. With packed codes it holds pieces of 512 bytes, two for each consumer warp,
// and after them the scales of their columns, or their records; with float weights, 4096 columns of
// one row, or two or four whole rows (StepGemv::stage_rows_log).
constexpr int kStagePieces = 16, kStageBytes = kStagePieces * kPieceBytes;
constexpr int kStageColumns = kStageBytes / 2;  // float weights
// U2, U3 and U6 have half as many pieces in a stage: with their records they are then smaller than
// others, or about as large. So has U5 where shared memory has no room for enough of its stages:
// whole ones are 4 % faster.
__host__ __device__ constexpr int stage_pieces(StepFormat format) {
  const bool is_short =
      has_two_bits(format) || format == StepFormat::U5Short || format == StepFormat::U6;
  return is_short ? kStagePieces / 2 : kStagePieces;
}
__host__ __device__ constexpr int stage_bytes(StepFormat format) {
  return stage_pieces(format) * kPieceBytes;
}
constexpr int kFloatRowsLog = 2, kFloatRows = 1 << kFloatRowsLog;  // of a tile of float weights
constexpr int kStepMaxSlots = 20;  // more were no faster: copies in flight delay the exchange

// 16-byte words of a linear layer's input that a thread stages at once, through registers. For
// quantized weights a thread stages all its words at once, which limits in_dim; with two tokens
// only where there is a norm.
constexpr int kStepNormWords = 8, kStepInputWords = 16;
__host__ __device__ constexpr int most_code_columns(bool has_norm) {
  return 4 * kStepConsumers * (has_norm ? kStepNormWords : kStepInputWords);
}

// Most rows of a linear layer that a block computes in a round: shared memory holds the sums of all
// warps for them.
constexpr int kStepMaxRowsLog = 8, kStepMaxRows = 1 << kStepMaxRowsLog;
constexpr int kScratchFloats = kStepWarps * kStepMaxRows;  // there are two for each token
// Most K splits of a gate/up tile pair, and the flagged words that the partial sums of one take:
// step_split_k.cuh.
constexpr int kStepMaxKSplits = 5, kKSplitWords = 8;
// Most query heads of a key/value head that a block handles, by the size of a head: registers hold
// four queries of 128 elements. Two heads of 256 elements were 1 % faster for Gemma-2-9B at 4000
// positions, and 1 % slower at 2000.
__host__ __device__ constexpr int step_most_heads(int head_dim, int n_tokens = 1) {
  return head_dim <= 128 ? 4 / n_tokens : 1;
}
constexpr int kStepMostHeadDim = 256;
constexpr int kStepMostLayers = 128;
constexpr int kStepMostExperts = 16;  // chosen ones of a layer

// Layers whose matrices have the same formats are of one mix. As many as GGUF's mixes of K-quants
// have: in Q4_K_M v and down of half of the layers are Q6_K, and Q3_K_M has three.
constexpr int kStepMixes = 3;

// What the matrices of a model are. Floats: all of them. Int4: U4 with scales of groups of at least
// 64 columns in the layers, U4 or U8 in the output. ShortInt4: the same with groups of 32. Int8: U8
// with scales of rows or of groups. Codes: other codes, or codes and floats. Products: U4 and U6
// whose scales are products (Q4_K, Q6_K, and Q4_K_M of both), several mixes, v, or k and v, apart.
// Mixed: all of these, and minimums, tables, other products and experts.
enum class StepWeights { Floats, Int4, ShortInt4, Int8, Codes, Products, Mixed };
// Whether there are instances for two tokens.
constexpr bool has_two_tokens(StepWeights weights) {
  using enum StepWeights;
  return weights == Int4 || weights == ShortInt4 || weights == Int8 || weights == Codes;
}

// What the kernel is compiled for: up to so many query heads in a block, of up to so many elements.
// The plain instances compute Llama's block alone. Those of Mixed that are not plain compute
// mixtures of experts, too. kCounts: clocks (step_clocks.cuh). There are so many because code costs
// time even where it does not run, small models most: docs/lab/decode-2026-11.md. kHasOwnGemv: a
// block has a copy of its StepGemv in registers. kKeepsConstants: it also keeps there what the
// compiler would set or load again in each step of a loop. With other instances, models were up to
// 2 % slower by that. kTokens: of one sequence, at consecutive positions; two only in plain
// instances.
template <int kHeads_, int kHeadDim_, bool kIsPlain_, StepWeights kWeights, bool kCounts_,
          int kTokens_ = 1>
struct StepInstance {
  static constexpr int kHeads = kHeads_, kHeadDim = kHeadDim_, kTokens = kTokens_;
  static constexpr int kQueries = kTokens * kHeads;  // most queries of a block
  static constexpr bool kIsPlain = kIsPlain_, kCounts = kCounts_;
  static constexpr bool kIsFloat = kWeights == StepWeights::Floats;
  static constexpr bool kIsShortInt4 = kWeights == StepWeights::ShortInt4;
  static constexpr bool kIsInt4 = kWeights == StepWeights::Int4 || kIsShortInt4;
  static constexpr bool kIsInt8 = kWeights == StepWeights::Int8;
  static constexpr bool kIsProducts = kWeights == StepWeights::Products;
  static constexpr bool kIsMixed = kWeights == StepWeights::Mixed;
  static constexpr bool kHasMixes = kIsProducts || kIsMixed;
  static constexpr bool kAreCodes = kIsInt4 || kIsInt8 || kIsProducts;  // all matrices
  static constexpr bool kHasOwnGemv =
      kIsPlain && !kCounts &&
      ((kIsInt4 && (!kIsShortInt4 || kTokens == 1)) || kIsInt8 || kIsProducts);
  static constexpr bool kKeepsConstants = kHasOwnGemv && kTokens == 1;
  // StepCursor::take with kAhead; then more copies are allowed far from the end of a phase, too.
  static constexpr bool kAsksAhead = kTokens == 1 && (kIsInt4 || kIsInt8);
  static constexpr bool kHasExperts = kIsMixed && !kIsPlain;
  static constexpr int kMixes = kHasMixes ? kStepMixes : 1;
  static constexpr int kKinds = kIsPlain ? 1 : 2;  // of attention: StepAttention::kinds
  // That publish rows of one token.
  static constexpr int kThreadsOfToken = kStepConsumers / kTokens;
  static_assert(kTokens == 1 || (kTokens == 2 && kIsPlain && has_two_tokens(kWeights) && !kCounts));
};

constexpr int kMinsOverScales = 2;  // bytes of minimums, F32, over those of their scales, F16

// What the scales of packed codes belong to, and whether minimums in F32 come with them. Products:
// records (quant/packed_layout.h), for units of unit_of_products().
enum class StepScales : int {
  OfRow,
  OfPiece,
  OfHalfPiece,
  OfPieceMins,
  OfHalfPieceMins,
  Products,
  ProductsMins
};

// The linear phases of a layer, in their order, and the output matrix.
enum StepPhase : int { kQkv, kWo, kGateUp, kDown, kHead, kStepPhases };

// A step of two tokens stages what wo and down multiply in parts of so many columns, which leaves
// the ring its memory: it multiplies all tiles by one part, then by the next.
constexpr int kPartColumns = 4096;
__host__ __device__ constexpr bool is_in_parts(int n_tokens, int phase) {
  return n_tokens == 2 && (phase == kWo || phase == kDown);
}
// Of codes, in a stage, and stages of a part.
__host__ __device__ constexpr int stage_columns(StepFormat format) {
  return stage_pieces(format) * piece_columns(format);
}
__host__ __device__ constexpr int part_stages(StepFormat format) {
  return kPartColumns / stage_columns(format);
}

// Which tiles block b has: count(b) tiles from begin(b) on. Every block has `rounds` tiles, and the
// n_longer blocks from block `shift` on have one more. `shift` moves on from one linear layer to
// the next, so that all blocks have about as many tiles of a whole layer. Measured: dealing out q,
// k and v by heads, so that a block waits only for the blocks of its head, gained nothing, and
// reading at strides of powers of two cost F16 5 %.
struct StepSlice {
  int n_tiles, rounds, n_longer, shift, n_blocks;
  int first_tile, first_index, n_sharing;  // the blocks whose index - first_index is in [0,
                                           // n_sharing) share the tiles from first_tile on
  __host__ __device__ int begin(int block) const {
    const int i = index(block) - first_index;
    return first_tile + i * rounds + (i < n_longer ? i : n_longer);
  }
  __host__ __device__ int count(int block) const {
    const int i = index(block) - first_index;
    return shares(block) ? rounds + (i < n_longer ? 1 : 0) : 0;
  }
  __host__ __device__ bool shares(int block) const {
    const int i = index(block) - first_index;
    return i >= 0 && i < n_sharing;
  }
  // Index of a block in the order of the tiles.
  __host__ __device__ int index(int block) const {
    return block >= shift ? block - shift : block + n_blocks - shift;
  }
};

// Stages begin ... end - 1 of each stream (step_ring.cuh) of a tile.
struct StepStages {
  int begin, end;
};

// The K split of a gate/up tile pair that a block multiplies: a range of the stages of the pair, or
// none.
struct KSplit {
  int tile;   // index of the pair
  int index;  // of the K split; the block with K split 0 adds the sums of the others
  StepStages stages;
  __host__ __device__ bool exists() const { return stages.begin < stages.end; }
};

// One linear phase, the same in all layers of a mix. Its tiles are those of its matrices, one after
// the other. Gate and up tiles are paired instead: a tile of `slice` is then one of each. With
// experts the pairs of the first chosen one are followed by those of the second, and so on, and
// down has the columns of all of them, one after the other: the elements of `hidden`.
struct StepGemv {
  StepFormat format;
  StepScales scales;
  StepSlice slice;
  int n_left, n_k_splits;  // kGateUp: left-over pairs after those of `slice`, and K splits of each
  int round_tiles;         // most tiles, or pairs, of a round: StepRound
  int begin, count;        // of this block, from `slice`; the kernel sets them
  KSplit k_split;          // of this block; the kernel sets it
  int rows_log;            // log2 of a tile's rows: 16 of packed codes, kFloatRows of floats
  int stage_rows_log;   // floats: log2 of the rows of a stage, 4, 2 or 1; at 1 up to 4096 columns
  int out_dim, in_dim;  // rows of the largest matrix
  float per_column;     // 1 / in_dim
  int ends[2];          // tiles of the first matrix, and of the first two
  int expert_pairs;     // kGateUp with experts: pairs of one
  int n_pieces;         // packed codes: pieces of a tile; piece_columns()
  int n_stages;         // in a tile of codes, or in a row of floats
  int code_bytes;       // in a tile of codes, without upper bits, or in 1 << stage_rows_log rows
  int unit_shift;       // log2 of the columns of a scale
  int tile_scale_bytes, stage_scale_bytes;
  int expert_scale_bytes;  // of the columns that there are in a tile of one expert's down
  TableBytes table;        // of StepFormat::Table

  __host__ __device__ int tile_rows() const { return 1 << rows_log; }
  // Whole rows, in the instances for floats, if they are short.
  __host__ __device__ bool has_several_rows() const { return stage_rows_log != 0; }
  __host__ __device__ bool has_row_scales() const {
    return are_codes(format) && scales == StepScales::OfRow;
  }
  // In arrays of their own.
  __host__ __device__ bool has_mins() const {
    return scales == StepScales::OfPieceMins || scales == StepScales::OfHalfPieceMins;
  }
  int tile_min_bytes() const { return has_mins() ? kMinsOverScales * tile_scale_bytes : 0; }
  int stage_min_bytes() const { return has_mins() ? kMinsOverScales * stage_scale_bytes : 0; }

  // A block has at most one K split: there are n_left * n_k_splits of them, no more than blocks.
  __host__ __device__ KSplit k_split_of(int block) const {
    const int i = slice.index(block);
    if (i >= n_left * n_k_splits) return {};
    const int k = i % n_k_splits;
    return {slice.n_tiles + i / n_k_splits,
            k,
            {n_stages * k / n_k_splits, n_stages * (k + 1) / n_k_splits}};
  }
};

struct StepMatrix {
  const uint8_t* weights;
  const uint8_t* scales;
};

// The pointers of one layer. After the last layer there is one for the output, with the output
// matrix as matrices[0] and the output norm as attn_norm.
struct StepLayer {
  StepMatrix matrices[7];  // q, k, v, o, gate, up, down
  // Vectors, half or bfloat16 (StepParams::vectors_are_bf16).
  const void *attn_norm, *ffn_norm;
  void *keys, *values;
  float *key_scales, *value_scales;
  const void* post_norms[2];  // norms behind: the FFN of the layer before; this one's attention
  const void *q_norm, *k_norm;
  const void* biases[8];  // of the matrices; null: none
  const void* router;     // [n_experts, dim], half or bfloat16
  const ExpertPlace* experts;
  const float *router_bias, *router_correction;  // [n_experts]; null: none
  const uint8_t* mins[8];                        // of the matrices; null: none
};
// A StepLayer can be read as pairs of pointers, 16 bytes each: the matrices, the norms, keys and
// values, their scales, then what not all instances read.
constexpr int kLayerPairs = int(sizeof(StepLayer) / sizeof(StepMatrix)), kCachePair = 8;
constexpr int kMinsPair = kLayerPairs - 4;
constexpr int kNormPair = 7, kPostNormPair = 10, kRouterPair = 16;
static_assert(kLayerPairs <= 32, "a lane holds each: fill_ring");
static_assert(offsetof(StepLayer, keys) == kCachePair * sizeof(StepMatrix));
static_assert(offsetof(StepLayer, attn_norm) == kNormPair * sizeof(StepMatrix));
static_assert(offsetof(StepLayer, post_norms) == kPostNormPair * sizeof(StepMatrix));
static_assert(offsetof(StepLayer, router) == kRouterPair * sizeof(StepMatrix));
static_assert(offsetof(StepLayer, mins) == kMinsPair * sizeof(StepMatrix));
__host__ __device__ inline const StepMatrix& pointer_pair(const StepLayer& layer, int i) {
  return reinterpret_cast<const StepMatrix*>(&layer)[i];
}
__host__ __device__ constexpr int first_matrix(int phase) {
  return phase == kWo ? 3 : phase == kGateUp ? 4 : phase == kDown ? 6 : 0;
}

// The flagged words of the vectors that blocks exchange (step_exchange.cuh). `split_results`: the
// results of attention splits; `gate_up_splits`: the partial sums of K splits.
// `router_logits`: a word for each. Those of a second token are of_token words behind.
struct StepWords {
  int64_t of_token;
  uint4 *qkv, *split_results, *attended, *after_attention, *gate_up_splits, *hidden, *after_ffn;
  uint4* router_logits;
};

constexpr int kStepMostRanks = 8;

// What the kernels of one step, one on the card of each rank, know of each other: step_peers.cuh.
// Pointers are by rank, each to that rank's memory.
struct StepPeers {
  int rank, n_ranks;                   // n_ranks 1: alone, and no mailboxes and counters
  int mailbox_words;                   // of one sum of one sender: dim / 4
  uint4* mailboxes[kStepMostRanks];    // [2 sums of a layer][n_ranks senders][mailbox_words]
  float* logits[kStepMostRanks];       // [n_tokens, vocab_size]; of several ranks n_tokens is 1
  uint32_t* arrivals[kStepMostRanks];  // [n_ranks], blocks of that rank that have ended
  int logits_begin;                    // the first one that this rank computes
  int* failed;                         // in host memory: a rank that did not answer, plus 1
};

// Where a block's clocks go in a phase: until it has its input, staged; while it multiplies, and of
// these while it waits for the ring; and while it adds the sums of its warps and publishes rows.
enum StepPart : int { kInput, kMultiply, kRing, kPublish, kStepParts };
// The rows of StepClocks::parts: the phases, then attention, whose merge counts as publishing, and
// what comes before the first phase, which counts as input.
constexpr int kAttentionRow = kStepPhases, kStartRow = kAttentionRow + 1;
constexpr int kClockRows = kStartRow + 1;
// What one block adds up over all layers and steps: step_clocks.cuh.
struct StepClocks {
  unsigned long long parts[kClockRows][kStepParts];
  unsigned long long nanoseconds, n_steps;
};

// What may differ between two kinds of layers, as in Gemma.
struct StepAttentionKind {
  int window;          // positions that a query sees; 0: all
  const float2* rope;  // [.., n_pairs]; null: no rotation
};

struct StepAttention {
  StepAttentionKind kinds[2];
  uint32_t second_kind[kStepMostLayers / 32];  // bit i: layer i is of kinds[1]
  QkNorm qk_norm;
  int n_heads, n_kv_heads, head_dim, n_pairs;
  int heads_per_block, blocks_per_kv;
  int n_groups, n_splits;  // a group: heads_per_block heads of a key/value head
  int group_words;         // words of a group's output, four elements each
  int split_words;         // of those, the words that one block merges
  int most_alone;          // up to so many positions, one block takes a group without merging
  int lanes_log;           // log2 of the lanes that read a row of the cache together: 8, 16 or 32
  int stage_rows;          // rows of the cache in a stage of the ring
  bool is_u8;
  bool multiplies_codes;       // q . k uses the int8 tensor cores: step_codes.cuh
  int query_at;                // offset in bytes of QueryCodes in the shared memory of attention
  float scale_log2;            // of scores, whose unit is log2
  float cap_log2, cap_factor;  // of attention::SoftCap

  __host__ __device__ int kind(int layer) const {
    return int(second_kind[layer / 32] >> layer % 32 & 1);
  }
  __host__ __device__ int lanes() const { return 1 << lanes_log; }
  __host__ __device__ int row_bytes() const { return head_dim * (is_u8 ? 1 : 2); }  // of the cache
};

// The router of every layer; n_experts 0: there are none.
struct StepRouter {
  Router choice;  // its pointers are those of a StepLayer
  bool is_bf16;

  __host__ __device__ bool exists() const { return choice.n_experts != 0; }
  // The logits that a block computes.
  struct Rows {
    int first, n;
  };
  __host__ __device__ Rows rows_of(int block, int n_blocks) const {
    const int first = choice.n_experts * block / n_blocks;
    return {first, choice.n_experts * (block + 1) / n_blocks - first};
  }
};
constexpr int kStepMostRouterRows = 16;  // of a block; a lane publishes one

// What a block knows of the experts of a layer, in shared memory. The producers read `matrices`
// when `arrivals` is complete, and the consumers the rest. A layer overwrites the matrices of the
// one before it when the consumers have taken all stages of that one. Then its producers have read
// them, and none can miss two completions of `arrivals`: each has a stage in every layer.
template <typename I>
struct StepExperts {
  static constexpr int kMost = I::kHasExperts ? kStepMostExperts : 1;
  static constexpr int kAll = I::kHasExperts ? kStepConsumers : 4;
  static constexpr int kRows = I::kHasExperts ? kStepMostRouterRows : 1;
  StepMatrix matrices[3][kMost];  // gate, up and down of the chosen ones
  uint64_t arrivals;              // an mbarrier, complete once a layer: all matrices have been set
  alignas(16) uint32_t keys[kAll];  // in whose order they are chosen
  float scores[kAll];               // of softmax, the logits
  int chosen[kMost];
  float weights[kMost];
  float logit_sums[kRows][kStepWarps];  // of the block's rows of the router
};
// Whether a block, whose linear phases of a layer these are, has tiles of experts.
__host__ __device__ inline bool reads_experts(const StepGemv* phases) {
  return phases[kGateUp].count != 0 || phases[kGateUp].k_split.exists() || phases[kDown].count != 0;
}

// The fields of LayerSpec and EdgeSpec that the plain instances do not have.
struct StepBlock {
  Activation activation;
  NormPlaces norm_places;
  float residual_scale, embedding_scale, logit_scale, logit_softcap;
  bool has_biases;  // some: StepLayer::biases

  // With norms behind attention and the feed-forward network, blocks publish rows of the outputs of
  // wo and down, and each keeps a whole residual stream of its own.
  __host__ __device__ bool has_post_norms() const { return norm_places != NormPlaces::Before; }
  __host__ __device__ bool has_norm_before(int phase) const {
    return phase == kHead ||
           ((phase == kQkv || phase == kGateUp) && norm_places != NormPlaces::Behind);
  }
};

struct StepParams {
  const StepLayer* layers;
  int n_layers, dim;
  StepBlock block;
  StepAttention attention;
  StepRouter router;
  StepWords words;
  StepPeers peers;
  const float* x;        // [n_tokens, dim], the embeddings
  const int32_t* pages;  // page table of the sequence, in the order of positions
  const StepInput* input;
  StepClocks* clocks;  // [blocks], of an instance that counts; else null
  float eps;
  bool vectors_are_bf16;
  int n_slots, slot_bytes;
  // Most stages whose copies are in flight, at most n_slots: while the block waits for a vector;
  // while it attends or multiplies; and, in instances with kAsksAhead, while it has more than
  // near_stages left to multiply in a phase.
  int copies_of_exchange, copies_near, copies_far;
  int near_stages;
  int n_tokens;        // of the instance
  int token_stride;    // bytes from the staged activations of one token to those of the next
  int input_bytes;     // of shared memory for staged activations; attention uses the same memory
  int residual_bytes;  // of the block's own residual stream, if it has one
  int n_mixes;
  StepGemv gemvs[kStepMixes][kStepPhases];  // the head: in the first mix
  StepGemv qkv_rest[kStepMixes];  // v, or k and v, of another format than q: of blocks of their own
  uint8_t mix_of_layer[kStepMostLayers + 1];

  __host__ __device__ int n_blocks() const { return gemvs[0][kHead].slice.n_blocks; }
};
static_assert(sizeof(StepParams) <= 4096, "the arguments of a kernel");

// Activations are staged in shared memory as f32 or, for quantized weights, as three 8-bit digits
// each (step_input.cuh). All digits of one place lie together; digit_stride is the number of bytes
// from one place to the next: 8 banks more than a multiple of 16. Where there are too many columns
// for the registers of all threads, floats lie there first, which take the room of four digits.
constexpr int kDigits = 3;
__host__ __device__ inline int digit_stride(int in_dim) { return (in_dim + 63) / 64 * 64 + 32; }
__host__ __device__ inline int staged_bytes(int in_dim, bool is_float) {
  if (is_float) return (in_dim + 63) / 64 * 64 * 4;
  return (in_dim > most_code_columns(false) ? 4 : kDigits) * digit_stride(in_dim);
}

// Byte offsets in shared memory, in this order, and the total.
struct StepShared {
  int ring, input, scratch, residual, total;
};
__host__ __device__ inline StepShared step_shared(const StepParams& p) {
  StepShared at{};
  at.ring = 0;
  at.input = p.n_slots * p.slot_bytes;
  at.scratch = at.input + p.input_bytes;
  at.residual = at.scratch + 2 * p.n_tokens * kScratchFloats * 4;
  at.total = at.residual + p.residual_bytes;
  return at;
}

// An instance of the kernel. One that is not plain stages the residual stream at once, whatever the
// format: at most most_code_columns(true) columns.
using StepFunction = void (*)(StepParams);
struct StepKernel {
  StepFunction run, run_and_count;  // the second with clocks; null: there is none
  int queries;                      // StepInstance::kQueries
  bool is_plain;
};
// The instance for so many query heads in a block of the grid. `is_plain`: a plain one would do;
// there is none for large heads. Kinds of weights have files of their own: they compile at once.
template <StepWeights kWeights>
StepKernel step_kernel_of(int heads_per_block, int head_dim, bool is_plain);
// The same for two tokens, of weights that has_two_tokens() has: plain instances, heads of at most
// 128 elements.
StepKernel two_token_kernel_of(StepWeights weights, int heads_per_block);

}  // namespace minfer::cuda
