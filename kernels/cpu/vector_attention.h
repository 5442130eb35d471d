#pragma once

// Attention over panels for one instruction set. It uses the matmul's tile twice: scores are
// queries times panels of keys, results are probabilities times panels of values.

namespace minfer::cpu {
namespace {

// The state of a piece's rows, which lies in the piece's scratch (attention_scratch floats).
struct AttentionRows {
  float* q;           // [n_blocks(head_dim)][n_rows][kKBlock]
  float* scores;      // [n_rows][kKBlock], of one block of positions, later its probabilities
  float* sums;        // [n_rows][padded head_dim], probabilities times values so far
  float* max;         // [n_rows], the largest score so far
  float* total;       // [n_rows], the sum of the probabilities so far
  float* correction;  // [n_rows], the factor that rescales older sums to the newest maximum
  int64_t n_rows, padded_dim;
};

inline AttentionRows start_rows(const AttentionPiece& piece) {
  AttentionRows rows;
  rows.n_rows = piece.row_end - piece.row_begin;
  rows.padded_dim = n_panels(piece.head_dim) * kPanel;
  rows.q = piece.scratch;
  rows.scores = rows.q + n_blocks(piece.head_dim) * rows.n_rows * kKBlock;
  rows.sums = rows.scores + rows.n_rows * kKBlock;
  rows.max = rows.sums + rows.n_rows * rows.padded_dim;
  rows.total = rows.max + rows.n_rows;
  rows.correction = rows.total + rows.n_rows;
  for (int64_t r = 0; r < rows.n_rows; ++r) {
    const int64_t row = piece.row_begin + r;
    const float* q =
        piece.q + (row / piece.n_group * piece.n_heads + row % piece.n_group) * piece.head_dim;
    for (int64_t i = 0; i < piece.head_dim; i += kKBlock) {
      pack_tokens(rows.q + (i / kKBlock * rows.n_rows + r) * kKBlock, q + i, 0, 1,
                  smaller(kKBlock, piece.head_dim - i));
    }
    for (int64_t i = 0; i < rows.padded_dim; i += kPanel) {
      store(rows.sums + r * rows.padded_dim + i, splat(0));
    }
    const bool has_sink = piece.sinks != nullptr;
    rows.max[r] = has_sink ? piece.sinks[row % piece.n_group] : -__builtin_inff();
    rows.total[r] = has_sink ? 1 : 0;
  }
  return rows;
}

// Returns how many positions of the block at `begin` do not lie after row r's own; grows with r.
inline int64_t n_visible(const AttentionPiece& piece, int64_t r, int64_t begin) {
  const int64_t n = piece.pos + (piece.row_begin + r) / piece.n_group + 1 - begin;
  return smaller(kPositionBlock, n > 0 ? n : 0);
}

// Returns how many positions of the block at `begin` lie before row r's window; grows with r.
inline int64_t n_hidden(const AttentionPiece& piece, int64_t r, int64_t begin) {
  if (piece.window == 0) return 0;
  const int64_t n = piece.pos + (piece.row_begin + r) / piece.n_group + 1 - piece.window - begin;
  return smaller(kPositionBlock, n > 0 ? n : 0);
}

// The rows that see at least one position of a block.
struct RowRange {
  int64_t begin, end;
};
inline RowRange rows_seeing(const AttentionPiece& piece, int64_t n_rows, int64_t begin) {
  RowRange range{0, n_rows};
  while (n_visible(piece, range.begin, begin) == 0) ++range.begin;
  while (n_hidden(piece, range.end - 1, begin) == kPositionBlock) --range.end;
  return range;
}

template <typename T>
void score_block(const AttentionPiece& piece, const AttentionRows& rows, RowRange range,
                 int64_t begin) {
  alignas(64) float sums[kTileTokens * kTilePanels * kPanel];
  const int64_t key_stride = piece.head_dim * kPanel;
  const int64_t matrix = matrix_of(piece.cache, begin, piece.kv_head);
  const T* const keys = keys_of<T>(piece.cache, matrix);
  for (int64_t r = range.begin; r < range.end; r += kTileTokens) {
    const int64_t n_tile = smaller(kTileTokens, range.end - r);
    const int64_t panels = n_panels(n_visible(piece, r + n_tile - 1, begin));
    for (int64_t p = 0; p < panels; p += group_size(panels - p)) {
      const int64_t n = group_size(panels - p);
      for (int64_t i = 0; i < piece.head_dim; i += kKBlock) {
        multiply(n_tile, n, sums, keys + p * key_stride + i * kPanel, key_stride,
                 rows.q + (i / kKBlock * rows.n_rows + r) * kKBlock,
                 smaller(kKBlock, piece.head_dim - i), i == 0 ? Sums::Replace : Sums::Continue);
      }
      const float* const scales =
          piece.cache.key_scales == nullptr
              ? nullptr
              : piece.cache.key_scales + matrix * kPositionBlock + p * kPanel;
      for (int64_t j = 0; j < n_tile * n; ++j) {
        F32x16 score = load(sums + j * kPanel) * splat(piece.scale);
        if (scales != nullptr) score = score * load(scales + j % n * kPanel);
        if (piece.softcap > 0) score = capped(score, piece.softcap);
        store(rows.scores + (r + j / n) * kKBlock + (p + j % n) * kPanel, score);
      }
    }
  }
}

// The online softmax of row r over one block: turns its scores into exp(score - new maximum) and
// updates the row's maximum, total and correction. With `value_scales` each result is then
// multiplied by the scale of its position's value, so that it can multiply the stored codes.
// Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
//   hidden, n  the row sees positions hidden ... n - 1 of the block
inline void softmax_block(const AttentionRows& rows, int64_t r, int64_t hidden, int64_t n,
                          const float* value_scales) {
  float* const scores = rows.scores + r * kKBlock;
  const float minus_infinity = -__builtin_inff();
  for (int64_t j = 0; j < hidden; ++j) scores[j] = minus_infinity;
  F32x16 max_lanes = splat(rows.max[r]);
  for (int64_t j = 0; j < n; j += kPanel) {
    const F32x16 score =
        n - j >= kPanel ? load(scores + j) : load_first(scores + j, n - j, minus_infinity);
    store(scores + j, score);
    max_lanes = max(max_lanes, score);
  }
  const float new_max = max_lane(max_lanes);
  F32x16 sum = splat(0);
  for (int64_t j = 0; j < n; j += kPanel) {
    const F32x16 p = exp(load(scores + j) - splat(new_max));
    store(scores + j, value_scales == nullptr ? p : p * load(value_scales + j));
    sum = sum + p;
  }
  rows.correction[r] = first_lane(exp(splat(rows.max[r] - new_max)));
  rows.total[r] = rows.total[r] * rows.correction[r] + sum_lanes(sum);
  rows.max[r] = new_max;
}

// Adds probabilities times values to the sums. The rows of a tile are multiplied together over the
// positions that all of them see, and one by one over those before and after them, so that a masked
// value is never multiplied, not even by 0: it may be NaN.
template <typename T>
void value_block(const AttentionPiece& piece, const AttentionRows& rows, RowRange range,
                 int64_t begin) {
  alignas(64) float sums[kTileTokens * kTilePanels * kPanel];
  const int64_t value_stride = kPositionBlock * kPanel, panels = n_panels(piece.head_dim);
  const T* const values = values_of<T>(piece.cache, matrix_of(piece.cache, begin, piece.kv_head));
  for (int64_t r = range.begin; r < range.end; r += kTileTokens) {
    const int64_t n_tile = smaller(kTileTokens, range.end - r);
    const int64_t hidden = n_hidden(piece, r + n_tile - 1, begin);
    const int64_t of_first = n_visible(piece, r, begin);
    const int64_t n_common = of_first > hidden ? of_first : hidden;
    for (int64_t p = 0; p < panels; p += group_size(panels - p)) {
      const int64_t n = group_size(panels - p);
      const T* const w = values + p * value_stride;
      for (int64_t t = 0; t < n_tile && hidden > 0; ++t) {  // before the common positions
        const int64_t from = n_hidden(piece, r + t, begin);
        const int64_t to = smaller(hidden, n_visible(piece, r + t, begin));
        multiply(1, n, sums + t * n * kPanel, w + from * kPanel, value_stride,
                 rows.scores + (r + t) * kKBlock + from, to - from, Sums::Replace);
      }
      multiply(n_tile, n, sums, w + hidden * kPanel, value_stride,
               rows.scores + r * kKBlock + hidden, n_common - hidden,
               hidden > 0 ? Sums::Continue : Sums::Replace);
      for (int64_t t = 0; t < n_tile; ++t) {
        float* const row_sums = sums + t * n * kPanel;
        const int64_t n_more = n_visible(piece, r + t, begin) - n_common;
        if (n_more > 0) {
          multiply(1, n, row_sums, w + n_common * kPanel, value_stride,
                   rows.scores + (r + t) * kKBlock + n_common, n_more, Sums::Continue);
        }
        for (int64_t i = 0; i < n; ++i) {
          float* const to = rows.sums + (r + t) * rows.padded_dim + (p + i) * kPanel;
          store(to, fma(load(to), splat(rows.correction[r + t]), load(row_sums + i * kPanel)));
        }
      }
    }
  }
}

template <typename T>
void attention(const AttentionPiece& piece) {
  const AttentionRows rows = start_rows(piece);
  int64_t first = 0;  // the block in which the first row's window begins
  while (n_hidden(piece, 0, first) == kPositionBlock) first += kPositionBlock;
  for (int64_t begin = first; n_visible(piece, rows.n_rows - 1, begin) > 0;
       begin += kPositionBlock) {
    const RowRange range = rows_seeing(piece, rows.n_rows, begin);
    const float* const value_scales =
        piece.cache.value_scales == nullptr
            ? nullptr
            : piece.cache.value_scales +
                  matrix_of(piece.cache, begin, piece.kv_head) * kPositionBlock;
    score_block<T>(piece, rows, range, begin);
    for (int64_t r = range.begin; r < range.end; ++r) {
      softmax_block(rows, r, n_hidden(piece, r, begin), n_visible(piece, r, begin), value_scales);
    }
    value_block<T>(piece, rows, range, begin);
  }
  for (int64_t r = 0; r < rows.n_rows; ++r) {
    const int64_t row = piece.row_begin + r;
    float* const out =
        piece.out + (row / piece.n_group * piece.n_heads + row % piece.n_group) * piece.head_dim;
    for (int64_t i = 0; i < piece.head_dim; i += kPanel) {
      const F32x16 result = load(rows.sums + r * rows.padded_dim + i) / splat(rows.total[r]);
      store_first(out + i, smaller(kPanel, piece.head_dim - i), result);
    }
  }
}

inline void scatter(float* p, int64_t stride, int64_t n, F32x16 x) {
  alignas(64) float lanes[kPanel];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = lanes[i];
}
inline void scatter(f16* p, int64_t stride, int64_t n, F32x16 x) {
  alignas(64) f16 lanes[kPanel];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = lanes[i];
}

inline void scatter(uint8_t* p, int64_t stride, int64_t n, F32x16 x) {
  alignas(64) uint8_t lanes[kPanel];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = lanes[i];
}

// Converts the key or value of one head at one position for the cache: the constructor finds the
// scale of this row (1 for floats), operator() makes numbers that are then stored as T.
template <typename T>
struct CacheRow {
  CacheRow(const float*, int64_t) {}
  F32x16 operator()(F32x16 x) const { return x; }
  float scale = 1;
};
template <>
struct CacheRow<uint8_t> {
  CacheRow(const float* x, int64_t n) {
    U32x16 bits = magnitude_bits(splat(0));
    for (int64_t i = 0; i < n; i += kPanel) {
      bits = max(bits, magnitude_bits(load_first(x + i, smaller(kPanel, n - i), 0)));
    }
    const float largest = __builtin_bit_cast(float, max_lane(bits));
    if (largest < kSmallestInput) return;
    const bool finite = largest <= __FLT_MAX__;
    scale = finite ? largest / 127 : __builtin_nanf("");
    inverse = finite ? 127 / largest : 0;
  }
  F32x16 operator()(F32x16 x) const {
    return round(x * splat(inverse)) + splat(float(kKvZeroCode));
  }
  float scale = 0, inverse = 0;
};

template <typename T>
void kv_append(const KvAppend& append, int64_t token_begin, int64_t token_end) {
  const CachePages& cache = append.cache;
  const int64_t head_dim = cache.head_dim;
  for (int64_t head = 0; head < cache.n_kv_heads; ++head) {
    for (int64_t t = token_begin; t < token_end; ++t) {
      const int64_t row = (t * cache.n_kv_heads + head) * head_dim;
      const int64_t matrix = matrix_of(cache, append.pos + t, head);
      const int64_t at = (append.pos + t) % kPositionBlock;
      T* const keys = keys_of<T>(cache, matrix);
      T* const values = values_of<T>(cache, matrix);
      const CacheRow<T> key(append.k + row, head_dim), value(append.v + row, head_dim);
      for (int64_t i = 0; i < head_dim; i += kPanel) {
        const int64_t n = smaller(kPanel, head_dim - i);
        scatter(keys + panel_offset(at, i, head_dim), kPanel, n,
                key(load_first(append.k + row + i, n, 0)));
        // Lanes past head_dim are padding.
        store(values + panel_offset(i, at, kPositionBlock),
              value(load_first(append.v + row + i, n, 0)));
      }
      if (cache.key_scales == nullptr) continue;
      cache.key_scales[matrix * kPositionBlock + at] = key.scale;
      cache.value_scales[matrix * kPositionBlock + at] = value.scale;
    }
  }
}

}  // namespace
}  // namespace minfer::cpu
