#pragma once

#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"

namespace minfer::cuda::attention {

constexpr int kMostHeads = 8;  // query heads of a warp: the columns of an mma

// Keys and values of this step's positions, kMost at most, as the cache holds them, zero past
// head_dim; in shared memory.
template <int kD, bool kU8, int kMost>
struct alignas(16) NewRows {
  uint4 bytes[2][kMost][kD * (kU8 ? 1 : 2) / 16];
  float scale[kMost][2];
  // All threads of the block call it.
  __device__ void clear() {
    constexpr int kWords = sizeof(bytes) / sizeof(uint4);
    for (int i = threadIdx.x; i < kWords; i += blockDim.x) (&bytes[0][0][0])[i] = uint4{};
  }
  __device__ const uint4* keys() const { return bytes[0][0]; }
  __device__ const uint4* values() const { return bytes[1][0]; }
};

// Rows of keys or of values at consecutive positions, in shared memory with room for kRows rows of
// kD elements: n_copied rows as the cache holds them, and behind these, up to n_valid, rows of this
// step.
struct TileRows {
  const uint8_t* rows;  // [n_copied, row_bytes]; behind them may be anything
  const uint4* newest;  // [.., kD] elements, finite even where they are not valid
  int n_copied, n_valid;
  int start;      // position of the first row
  int first_new;  // which of `newest` is row n_copied
};

// Converts two codes to halves, exactly: 0x6400 with a code as its low byte is the half 1024 +
// code, and minus 1152 it is code - 128.
__device__ inline uint32_t to_halves(uint32_t codes, uint32_t selector) {
  const uint32_t biased = __byte_perm(codes, 0x64646464, selector);
  const uint32_t bias = 0x64806480;  // 1152
  return bits_of(__hsub2(*reinterpret_cast<const __half2*>(&biased),
                         *reinterpret_cast<const __half2*>(&bias)));
}
constexpr uint32_t kLowCodes = 0x4140, kHighCodes = 0x4342;  // bytes 0 and 1, or 2 and 3

// The softmax and the weighted values of up to 8 query heads over the positions of one warp. It
// takes tiles of kRows rows of one key/value head, first the keys of a tile, then its values. All
// lanes call all methods, and n_valid is at least 1. A piece is 16 bytes of a row, kE elements.
// With g = lane / 4 and t = lane % 4, a lane holds these operands of mma_16x8x16 in unit u of 16
// rows:
//
//   keys    rows g and g + 8, pieces t + 4 i: the dims that an mma sums may come in any order, so
//           elements 4 s ... 4 s + 3 of piece i are its k 2t, 2t + 1 and 2t + 8, 2t + 9 in step
//           (i, s). q is read in the same order
//   values  rows 2t, 2t + 1, 2t + 8, 2t + 9, pieces kValuePieces g + i: elements 2 s and 2 s + 1
//           are rows g and g + 8 of the transposed operand of step (i, s)
//   scales  U8 only: that of row scale_row() + 16 u, of its key if has_key_scale(), else of its
//           value
//
// Columns are query heads. The scores of heads 2t and 2t + 1 are in c0, c1 for row g and in c2, c3
// for row g + 8; their weighted values are in c0, c1 and c2, c3 for the two dims of step (i, s).
//
// Rows lie without gaps, so the same piece of all rows is in the same banks if a row is a multiple
// of 128 bytes. Eight lanes read at once, two rows of keys or four of values: so if a lane has
// several pieces, lanes of different rows read theirs in different orders (load_row). With heads of
// 128, keys then take the least time, F16 values twice that and U8 values four times: an average of
// 85 (F16) and 51 (U8) bytes a clock, while memory brings 20 to an SM.
//
// kMasked: columns have first and last positions of their own (see), as heads of several queries
// do, and a tile may have no position that a column sees.
template <int kD, bool kU8, bool kMasked = false>
class DecodeTile {
 public:
  static constexpr int kUnits = kD <= (kU8 ? 128 : 64) ? 2 : 1, kRows = 16 * kUnits;
  static constexpr int kElementBytes = kU8 ? 1 : 2, kE = 16 / kElementBytes;
  static constexpr int kKeyPieces = kD / (4 * kE), kValuePieces = kD / (8 * kE);  // of a row
  static_assert(kValuePieces > 0, "rows are too short for this map");

  //   q         row g, F16, zero past head_dim and for columns without a head
  //   row_bytes the size of a row of a tile, a multiple of 16; it is finite behind head_dim
  //   cap_log2  the soft cap of scores, in units of log2
  __device__ DecodeTile(const __half* q, int row_bytes, float scale_log2,
                        const SoftCap& cap_log2 = {})
      : row_bytes_(row_bytes), scale_log2_(scale_log2), cap_log2_(cap_log2) {
#pragma unroll
    for (int i = 0; i < kKeyPieces; ++i)
#pragma unroll
      for (int h = 0; h < kE / 8; ++h) {
        const uint4 x = *reinterpret_cast<const uint4*>(q + kE * (t() + 4 * i) + 8 * h);
        const int at = i * (kE / 4) + 2 * h;
        q_[at][0] = x.x, q_[at][1] = x.y, q_[at + 1][0] = x.z, q_[at + 1][1] = x.w;
      }
    const int turn = kKeyPieces > 1 ? g() & 1 : 0;
#pragma unroll
    for (int i = 0; i < kKeyPieces; ++i) {
      key_at_[i] = 16 * (t() + 4 * (i ^ turn));
      if (key_at_[i] >= row_bytes) key_at_[i] = 0;  // q is zero there: any number will do
    }
  }

  // kMasked: column 2 t (`column` 0) or 2 t + 1 (1) sees positions from ... to.
  __device__ void see(int column, int from, int to) {
    from_[column] = from;
    to_[column] = to;
  }

  __device__ static int scale_row() { return g() + 8 * (t() & 1); }
  __device__ static bool has_key_scale() { return t() < 2; }

  // Computes the scores of a tile's keys, and from them the weights of its values. scales: U8 only,
  // as above; newest_scale: [.., 2], of key and value, for the rows behind the copied ones.
  __device__ void take_keys(const TileRows& tile, const float (&scales)[kUnits],
                            const float* newest_scale) {
    float sum[kUnits][2][4] = {};  // two chains of mma each, to hide their latency
    uint4 k[kUnits][2][kKeyPieces];
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        load_row(k[u][r], tile, u * 16 + score_row(r), key_at_, kKeyPieces > 1 ? g() & 1 : 0);
#pragma unroll
    for (int i = 0; i < kKeyPieces; ++i)
#pragma unroll
      for (int s = 0; s < kE / 4; ++s)
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const uint4 &a = k[u][0][i], &b = k[u][1][i];
          const auto& w = q_[i * (kE / 4) + s];
          if constexpr (kU8) {
            const uint32_t x = word(a, s), y = word(b, s);
            mma_16x8x16(sum[u][s % 2], to_halves(x, kLowCodes), to_halves(y, kLowCodes),
                        to_halves(x, kHighCodes), to_halves(y, kHighCodes), w[0], w[1]);
          } else {
            mma_16x8x16(sum[u][s % 2], word(a, 2 * s), word(b, 2 * s), word(a, 2 * s + 1),
                        word(b, 2 * s + 1), w[0], w[1]);
          }
        }
    float v_scale[kUnits][2];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float scale[2] = {scale_log2_, scale_log2_};
      if constexpr (kU8) {
        const int row = u * 16 + scale_row();
        const float* const of_new = newest_scale + 2 * new_index(tile, row);
        float mine = row < tile.n_copied ? scales[u] : of_new[has_key_scale() ? 0 : 1];
        if (row >= tile.n_valid) mine = 0;
        const int first = lane() & ~3;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          scale[r] *= __shfl_sync(~0u, mine, first + r);
          v_scale[u][r] = __shfl_sync(~0u, mine, first + 2 + r);
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int row = u * 16 + score_row(x >> 1);
        bool is_seen = row < tile.n_valid;
        if constexpr (kMasked) {
          const int position = tile.start + row;
          is_seen = is_seen && position >= from_[x & 1] && position <= to_[x & 1];
        }
        const float score = cap_log2_((sum[u][0][x] + sum[u][1][x]) * scale[x >> 1]);
        weights_[u][x] = is_seen ? score : -INFINITY;
      }
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) top = fmaxf(top, fmaxf(weights_[u][h], weights_[u][h + 2]));
#pragma unroll
      for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
      // A column that has seen no position yet keeps its state: -inf - -inf would be NaN.
      const bool is_unseen = kMasked && fmaxf(top, state_[h].max) == -INFINITY;
      factor[h] = is_unseen ? 1.0f : state_[h].raise(top);
      const float shift = is_unseen ? 0.0f : state_[h].max;
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int x = h; x < 4; x += 2) {
          weights_[u][x] = ptx::exp2_fast(weights_[u][x] - shift);
          state_[h].sum += weights_[u][x];
        }
    }
    if constexpr (kU8) {
      const float change = weigh(v_scale);
      factor[0] *= change;
      factor[1] *= change;
    }
#pragma unroll
    for (int i = 0; i < kD / 16; ++i)
#pragma unroll
      for (int x = 0; x < 4; ++x) o_[i][x] *= factor[x & 1];
  }

  // Adds the values of the same rows.
  __device__ void take_values(const TileRows& tile) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      int value_at[kValuePieces];
#pragma unroll
      for (int i = 0; i < kValuePieces; ++i)
        value_at[i] = 16 * (kValuePieces * g() + (i ^ t() % kValuePieces));
      uint4 v[4][kValuePieces];
#pragma unroll
      for (int r = 0; r < 4; ++r)
        load_row(v[r], tile, u * 16 + value_row(r), value_at, t() % kValuePieces);
      const uint32_t p0 = transpose_matrix(pack_halves(weights_[u][0], weights_[u][1]));
      const uint32_t p1 = transpose_matrix(pack_halves(weights_[u][2], weights_[u][3]));
#pragma unroll
      for (int i = 0; i < kValuePieces; ++i)
#pragma unroll
        for (int s = 0; s < kE / 2; ++s) {
          uint32_t a[4];
          pair_rows(a[0], a[1], v[0][i], v[1][i], s);
          pair_rows(a[2], a[3], v[2][i], v[3][i], s);
          mma_16x8x16(o_[i * (kE / 2) + s], a[0], a[1], a[2], a[3], p0, p1);
        }
    }
  }

  // Stores the results of the first `heads` heads: states[head], and sums [heads, kD], the weighted
  // values not yet divided by the state's sum. A warp without a tile stores -inf and 0.
  __device__ void store(SoftmaxState* states, float* sums, int heads) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) state_[h].sum += __shfl_xor_sync(~0u, state_[h].sum, d);
      const int head = 2 * t() + h;
      if (head >= heads) continue;
      if (g() == 0) states[head] = state_[h];
      const float unit = kU8 ? v_unit_ : 1.0f;
      float* const to = sums + head * kD + kE * kValuePieces * g();
#pragma unroll
      for (int i = 0; i < kD / 32; ++i) {
        const float(&low)[4] = o_[2 * i], (&high)[4] = o_[2 * i + 1];
        *reinterpret_cast<float4*>(to + 4 * i) =
            make_float4(low[h] * unit, low[h + 2] * unit, high[h] * unit, high[h + 2] * unit);
      }
    }
  }

 private:
  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  __device__ static int score_row(int r) { return g() + 8 * r; }
  __device__ static int value_row(int r) { return 2 * t() + (r & 1) + (r >> 1) * 8; }
  // Which new row stands behind the copied ones. Unless kMasked, there is only one.
  __device__ static int new_index(const TileRows& tile, int row) {
    return kMasked && row >= tile.n_copied && row < tile.n_valid
               ? tile.first_new + row - tile.n_copied
               : 0;
  }
  __device__ static uint32_t word(const uint4& x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
  }

  // Loads piece i of a row into x[i]. Lanes read the pieces in different orders: byte at[i] has
  // piece i ^ turn, which one exchange for each bit of `turn` puts in place. For rows that are not
  // valid it reads a new row: their weights are zero.
  template <int n>
  __device__ void load_row(uint4 (&x)[n], const TileRows& tile, int row, const int (&at)[n],
                           int turn) const {
    constexpr int kNewWords = kD * kElementBytes / 16;
    const uint8_t* const from =
        row < tile.n_copied
            ? tile.rows + row * row_bytes_
            : reinterpret_cast<const uint8_t*>(tile.newest + new_index(tile, row) * kNewWords);
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] = *reinterpret_cast<const uint4*>(from + at[i]);
#pragma unroll
    for (int bit = 1; bit < n; bit *= 2)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (i & bit) continue;
        const uint4 low = x[i], high = x[i | bit];
        const bool turned = turn & bit;
        x[i] = turned ? high : low;
        x[i | bit] = turned ? low : high;
      }
  }

  // Multiplies the weights by the scales of their values, in units of the largest scale so far, so
  // that F16 holds them whatever the size of the values. Returns the factor of the sums so far.
  __device__ float weigh(const float (&v_scale)[kUnits][2]) {
    float top = v_unit_;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) top = fmaxf(top, fmaxf(v_scale[u][0], v_scale[u][1]));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float inverse = 1 / top, change = top == v_unit_ ? 1.0f : v_unit_ * inverse;
    v_unit_ = top;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int x = 0; x < 4; ++x) weights_[u][x] *= v_scale[u][x >> 1] * inverse;
    return change;
  }

  // Pairs the elements of rows x and y: dim 2 s of a piece in `even`, dim 2 s + 1 in `odd`.
  __device__ static void pair_rows(uint32_t& even, uint32_t& odd, const uint4& x, const uint4& y,
                                   int s) {
    if constexpr (kU8) {
      const uint32_t both =
          __byte_perm(word(x, s / 2), word(y, s / 2), s % 2 == 0 ? 0x5140 : 0x7362);
      even = to_halves(both, kLowCodes);
      odd = to_halves(both, kHighCodes);
    } else {
      even = __byte_perm(word(x, s), word(y, s), 0x5410);
      odd = __byte_perm(word(x, s), word(y, s), 0x7632);
    }
  }

  int row_bytes_, key_at_[kKeyPieces];
  float scale_log2_;
  SoftCap cap_log2_;
  uint32_t q_[kD / 16][2];
  float o_[kD / 16][4] = {};
  float weights_[kUnits][4];
  SoftmaxState state_[2];  // of heads 2 t and 2 t + 1; sums of this lane's rows
  int from_[2], to_[2];
  float v_unit_ = 1e-30f;  // the unit of o_: the largest scale of a U8 value so far
};

}  // namespace minfer::cuda::attention
