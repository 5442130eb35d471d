#pragma once

#include "kernels/cuda/attention/quantize_row.cuh"
#include "kernels/cuda/attention/rotate.cuh"
#include "kernels/cuda/decode/persistent/step_codes.cuh"
#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_gemv.cuh"
#include "kernels/cuda/decode/persistent/step_slice.cuh"

// What a block that attends gathers first: its heads of q and, where it has the step's positions,
// the new k and v. They are normed and rotated, and k and v appended to the cache.
namespace minfer::cuda {

// A pair of elements that RoPE rotates together, in a row of the block: a head of q, k or v.
struct StepPair {
  int8_t row;  // -1: none
  uint8_t element[2];
  uint16_t source[2];  // their elements in the exchanged vector qkv
};

template <typename I>
struct StepAttentionShared {
  alignas(16) float q[I::kQueries][I::kHeadDim];  // the heads of one token after those of another
  // k and v of each token of the step, as the cache holds them.
  float new_row[I::kTokens][2][I::kHeadDim];
  float2 states[kStepWarps][I::kQueries];

  // The pairs of each thread, the same for all layers of the step, and their angles in both kinds
  // of layers.
  static constexpr int kOwnPairs =
      (I::kTokens * (I::kHeads + 2) * I::kHeadDim / 2 + kStepConsumers - 1) / kStepConsumers;
  StepPair pairs[kOwnPairs][kStepConsumers];
  float2 angles[I::kKinds][kOwnPairs][kStepConsumers];
  StepAttentionSlice slices[I::kKinds];
  CacheStages caches[I::kKinds];
  float squares[I::kIsPlain ? 1 : 2][kStepWarps];  // of q and k, for their norms
};

// What a row of the block is: a query of a token, or that token's key or value. The queries of all
// tokens come first.
template <typename I>
struct StepRow {
  int token, head;  // of the block; 0 of a key or value
  bool is_new, is_v;
  __device__ StepRow(const StepAttention& a, int row) {
    const int n_queries = I::kTokens * a.heads_per_block;
    is_new = row >= n_queries;
    const int index = row - n_queries;
    is_v = is_new && index % 2 == 1;
    token = I::kTokens == 1 ? 0 : is_new ? index / 2 : int(row >= a.heads_per_block);
    head = is_new ? 0 : row - token * a.heads_per_block;
  }
};

// Of a block that has the new rows; one that has not leaves out their pairs.
template <typename I>
__device__ inline StepPair step_pair(const StepAttention& a, const StepAttentionSlice& t,
                                     int index) {
  const int pairs = a.head_dim / 2, row = index / pairs, i = index % pairs;
  StepPair x{};
  if (row >= I::kTokens * (a.heads_per_block + 2)) {
    x.row = -1;
    return x;
  }
  x.row = int8_t(row);
  const StepRow<I> which(a, row);
  const bool is_v = which.is_v;
  const bool turns = !is_v && i < a.n_pairs;
  x.element[0] = uint8_t(turns || is_v ? i : 2 * i);
  x.element[1] = uint8_t(turns ? i + a.n_pairs : is_v ? i + pairs : 2 * i + 1);
  const int head = !which.is_new ? t.first_head + which.head
                   : is_v        ? a.n_heads + a.n_kv_heads + t.kv_head
                                 : a.n_heads + t.kv_head;
#pragma unroll
  for (int k = 0; k < 2; ++k) x.source[k] = uint16_t(head * a.head_dim + x.element[k]);
  return x;
}

// The angle of a pair: that of no rotation if the layers of this kind have none.
template <typename I>
__device__ inline float2 step_angle(const StepAttention& a, const StepAttentionKind& kind, int pos,
                                    int index) {
  const int pairs = a.head_dim / 2, row = index / pairs, i = index % pairs;
  const StepRow<I> which(a, row);
  const bool is_there = row < I::kTokens * (a.heads_per_block + 2);
  const bool turns = is_there && !which.is_v && i < a.n_pairs && kind.rope != nullptr;
  return turns ? kind.rope[int64_t{pos + which.token} * a.n_pairs + i] : float2{1, 0};
}

// Computes what is the same in all layers of a step, or in all of one kind.
template <typename I>
__device__ inline void prepare_attention(const StepParams& p, StepAttentionShared<I>& s, int pos) {
  const StepAttention& a = p.attention;
  const int thread = thread_index();
#pragma unroll
  for (int kind = 0; kind < I::kKinds; ++kind) {
    const int window = I::kIsPlain ? 0 : a.kinds[kind].window;
    const StepAttentionSlice slice = attention_slice(a, pos, window);
    if (thread == 0) {
      s.slices[kind] = slice;
      s.caches[kind] = cache_stages(a, slice);
    }
#pragma unroll
    for (int k = 0; k < s.kOwnPairs; ++k) {
      const int index = thread + k * kStepConsumers;
      if (kind == 0) s.pairs[k][thread] = step_pair<I>(a, slice, index);
      s.angles[kind][k][thread] = step_angle<I>(a, a.kinds[kind], pos, index);
    }
  }
}

// The two elements of a token's qkv of a pair, from their words; 0 if the thread has none. All
// lanes of a warp call it.
__device__ inline void await_pair(float (&value)[2], const StepParams& p, int token,
                                  const StepPair& x, bool exists, uint32_t epoch) {
  const uint4* const qkv = p.words.qkv + token * p.words.of_token;
  const uint4* const from[2] = {qkv + x.source[0] / 4, qkv + x.source[1] / 4};
  StepWord words[2] = {StepWord::of(~epoch), StepWord::of(~epoch)};
  await_each(words, from, exists, epoch);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int place = x.source[k] % 4;
    const float first = place % 2 == 0 ? words[k].at(0) : words[k].at(1);
    const float second = place % 2 == 0 ? words[k].at(2) : words[k].at(3);
    value[k] = !exists ? 0.0f : place < 2 ? first : second;
  }
}

// The sum of squares of a warp's words of n elements of qkv, from element `first` on.
__device__ inline float squares_of_words(const StepParams& p, int first, int n, uint32_t epoch) {
  constexpr auto kPlace = own_word<false>;
  constexpr int kBatch = 4;
  float squares = 0;
#pragma unroll 1
  for (int begin = 0; begin < n / 4; begin += kPlace(kBatch)) {
    const int word = begin + thread_index();
    StepWord words[kBatch];
    await_words<kPlace>(words, p.words.qkv + first / 4 + word, n / 4 - word, epoch);
#pragma unroll
    for (const StepWord& x : words) {
#pragma unroll
      for (int i = 0; i < 4; ++i) squares = fmaf(x.at(i), x.at(i), squares);
    }
  }
  return warp_reduce(squares, Sum{});
}

// Whether a pair is one of q or of k, which norms of heads are for.
__device__ inline bool is_normed(const StepAttention& a, const StepAttentionSlice& t,
                                 const StepPair& x) {
  return x.row >= 0 && x.row < a.heads_per_block + int(t.has_new);
}

// Loads the weights of norm_heads. It does not wait for them, so it is called before the pairs are
// awaited.
template <typename I, int kPairs>
__device__ inline void load_norm_weights(float (&weights)[kPairs][2], const StepParams& p,
                                         const StepLayer& layer, const StepAttentionSlice& t,
                                         const StepAttentionShared<I>& s) {
  const StepAttention& a = p.attention;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const StepPair x = s.pairs[k][thread_index()];
    const bool is_key = x.row == a.heads_per_block;
    const int first_of_keys = is_key ? a.n_heads * a.head_dim : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = a.qk_norm == QkNorm::WholeWidth ? x.source[i] - first_of_keys : x.element[i];
      weights[k][i] =
          is_normed(a, t, x) ? element(p, is_key ? layer.k_norm : layer.q_norm, at) : 0.0f;
    }
  }
}

// RMSNorm of the heads of q and k that this block computes: each head by itself, or all heads
// together. `values` holds their pairs; a warp holds 32 pairs of one head.
template <typename I, int kPairs>
__device__ inline void norm_heads(float (&values)[kPairs][2], const float (&weights)[kPairs][2],
                                  const StepParams& p, const StepAttentionSlice& t,
                                  StepAttentionShared<I>& s, uint32_t epoch) {
  const StepAttention& a = p.attention;
  const bool is_whole = a.qk_norm == QkNorm::WholeWidth;
  const int thread = thread_index(), warp = thread / 32, q_dim = a.n_heads * a.head_dim;
  if (is_whole) {
    const int kv_dim = a.n_kv_heads * a.head_dim;
    const float q_squares = squares_of_words(p, 0, q_dim, epoch);
    const float k_squares = t.has_new ? squares_of_words(p, q_dim, kv_dim, epoch) : 0.0f;
    if (thread % 32 == 0) {
      s.squares[0][warp] = q_squares;
      s.squares[1][warp] = k_squares;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const float squares = fmaf(values[k][0], values[k][0], values[k][1] * values[k][1]);
      const float sum = warp_reduce(squares, Sum{});
      if (thread % 32 == 0) s.squares[k][warp] = sum;
    }
  }
  consumers_sync();
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const StepPair x = s.pairs[k][thread];
    if (!is_normed(a, t, x)) continue;
    const bool is_key = x.row == a.heads_per_block;
    const int warps_of_head = a.head_dim / 64;
    const int first = is_whole ? (is_key ? kStepWarps : 0) : x.row * warps_of_head;
    const int n_warps = is_whole ? kStepWarps : warps_of_head;
    const int n = !is_whole ? a.head_dim : is_key ? a.n_kv_heads * a.head_dim : q_dim;
    float sum = 0;
    for (int i = first; i < first + n_warps; ++i) sum += s.squares[i / kStepWarps][i % kStepWarps];
    const float factor = rsqrtf(sum / float(n) + p.eps);
#pragma unroll
    for (int i = 0; i < 2; ++i) values[k][i] *= factor * weights[k][i];
  }
}

// Gathers the block's q, k and v, norms and rotates q and k, and leaves in shared memory q times
// the scale (in digits too, if `query` has room) and the new k and v as the cache holds them;
// appends these to the cache.
template <typename I>
__device__ inline void take_new_rows(const StepParams& p, const StepLayer& layer, int kind,
                                     const StepAttentionSlice& t, StepAttentionShared<I>& s,
                                     const QueryCodes& query, int warp, uint32_t epoch) {
  constexpr int kPairs = StepAttentionShared<I>::kOwnPairs;
  const StepAttention& a = p.attention;
  const int n_queries = I::kTokens * a.heads_per_block, thread = thread_index();
  const int n_rows = n_queries + (t.has_new ? 2 * I::kTokens : 0);
  int64_t at_row[I::kTokens];
#pragma unroll
  for (int token = 0; token < I::kTokens; ++token) {
    at_row[token] = cache_row(p, t.kv_head, t.pos + token);
  }
  [[maybe_unused]] float norm_weights[kPairs][2];
  if constexpr (!I::kIsPlain) {
    if (a.qk_norm != QkNorm::None) load_norm_weights<I>(norm_weights, p, layer, t, s);
  }
  float values[kPairs][2] = {};
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const StepPair x = s.pairs[k][thread];
    const int token = I::kTokens == 1 ? 0 : StepRow<I>(a, x.row).token;
    await_pair(values[k], p, token, x, x.row >= 0 && x.row < n_rows, epoch);
  }
  if constexpr (!I::kIsPlain) {
    if (a.qk_norm != QkNorm::None) norm_heads<I>(values, norm_weights, p, t, s, epoch);
  }
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const StepPair x = s.pairs[k][thread];
    if (x.row < 0 || x.row >= n_rows) continue;
    float2 turned = attention::rotated(values[k][0], values[k][1], s.angles[kind][k][thread]);
    const StepRow<I> which(a, x.row);
    float* const to = which.is_new ? s.new_row[which.token][which.is_v] : s.q[x.row];
    if (!which.is_new) {
      turned.x *= a.scale_log2;
      turned.y *= a.scale_log2;
    } else if (!a.is_u8) {
      const __half first = __float2half_rn(turned.x), second = __float2half_rn(turned.y);
      turned = {__half2float(first), __half2float(second)};
      if (t.appends) {
        const int64_t at = I::kTokens > 1 && which.token == 1 ? at_row[I::kTokens - 1] : at_row[0];
        __half* const row =
            static_cast<__half*>(which.is_v ? layer.values : layer.keys) + at * a.head_dim;
        row[x.element[0]] = first;
        row[x.element[1]] = second;
      }
    }
    to[x.element[0]] = turned.x;
    to[x.element[1]] = turned.y;
  }
  consumers_sync();
  if (!a.is_u8 || (!t.has_new && query.digits == nullptr)) return;
  constexpr int kNewRows = 2 * I::kTokens;
  const int lane = thread_index() % 32;
  if (query.digits != nullptr && warp >= kNewRows) query.template make<I>(s.q, a, warp - kNewRows);
  if (t.has_new && warp < kNewRows) {  // even warps: a key; odd ones: a value
    const bool is_k = warp % 2 == 0;
    const int64_t at = I::kTokens > 1 && warp >= 2 ? at_row[I::kTokens - 1] : at_row[0];
    float* const row = s.new_row[warp / 2][warp % 2];
    auto* const codes = static_cast<uint8_t*>(is_k ? layer.keys : layer.values) + at * a.head_dim;
    float largest = 0;
    for (int i = lane; i < a.head_dim; i += 32) {
      largest = attention::larger_magnitude(largest, row[i]);
    }
    const attention::RowScale scale = attention::row_scale(largest);
    if (lane == 0 && t.appends) {
      (is_k ? layer.key_scales : layer.value_scales)[at] = scale.step;
    }
    for (int i = lane; i < a.head_dim; i += 32) {
      const uint8_t code = attention::code_of(row[i], scale);
      row[i] = (float(code) - 128) * scale.step;
      if (t.appends) codes[i] = code;
    }
  }
  consumers_sync();
}

}  // namespace minfer::cuda
