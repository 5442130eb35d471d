#pragma once

#include "kernels/cuda/attention/tensor_core.cuh"

namespace minfer::cuda::attention {

constexpr int kMostHeads = 8;  // query heads of a block: the columns of an mma

struct Cache {
  void *keys, *values;               // [n_kv_heads, capacity, head_dim] F16 or U8 levels
  float *key_scales, *value_scales;  // [n_kv_heads, capacity], of U8
  int64_t capacity;
  int head_dim;
};

// Key and value of this step as the cache holds them, zero past head_dim; in shared memory.
template <int kD>
struct alignas(16) NewRow {
  uint4 bytes[2][kD / 8];
  float scale[2];
  // By all threads of a block.
  __device__ void clear() {
    for (int i = threadIdx.x; i < 2 * kD / 8; i += blockDim.x) (&bytes[0][0])[i] = uint4{};
  }
  __device__ __half* halves(bool is_k) { return reinterpret_cast<__half*>(bytes[is_k ? 0 : 1]); }
  __device__ uint8_t* levels(bool is_k) { return reinterpret_cast<uint8_t*>(bytes[is_k ? 0 : 1]); }
};

// Levels in the low bytes of the halves of 0x64006400: 1024 + level, so level - 128 by an exact
// difference.
__device__ inline uint32_t to_halves(uint32_t levels, uint32_t selector) {
  const uint32_t biased = __byte_perm(levels, 0x64646464, selector);
  const uint32_t bias = 0x64806480;  // 1152
  return bits_of(__hsub2(*reinterpret_cast<const __half2*>(&biased),
                         *reinterpret_cast<const __half2*>(&bias)));
}
constexpr uint32_t kLowLevels = 0x4140, kHighLevels = 0x4342;  // bytes 0 and 1, or 2 and 3

// kStep positions of one head on their way to a warp, as operands of mma_16x8x16. A piece is 16
// bytes of a row, kE elements. With g = lane / 4, t = lane % 4, in unit u of 16 positions a lane
// has
//
//   keys    rows g and g + 8, pieces t + 4 i: the dims that an mma sums may come in any order, so
//           elements 4 s ... 4 s + 3 of piece i are its k 2t, 2t + 1 and 2t + 8, 2t + 9 in step
//           (i, s). q is read in the same order: load_query
//   values  rows 2t, 2t + 1, 2t + 8, 2t + 9, pieces g + 8 i: elements 2 s and 2 s + 1 are rows g
//           and g + 8 of the transposed operand of step (i, s)
//   scales  of U8: lane (g, t) fetches that of the key (t < 2) or value of position g + 8 (t & 1)
//
// Columns are query heads. Scores come out with position g in c0, c1 and g + 8 in c2, c3, of heads
// 2t and 2t + 1; sums over positions with the two dims of (i, s) in c0, c1 and c2, c3.
//
// All of it is in registers, loaded straight from memory: 256 bytes a lane, without a barrier or a
// layout in shared memory. Keys are asked for again as soon as the scores are there, values as soon
// as they are added, so that one half is on its way while the other is at work.
template <int kD, bool kU8, bool kAligned>
class DecodeTile {
 public:
  static constexpr int kUnits = kD <= (kU8 ? 128 : 64) ? 2 : 1, kStep = 16 * kUnits;
  static constexpr int kElementBytes = kU8 ? 1 : 2, kE = 16 / kElementBytes;
  static constexpr int kKeyPieces = kD / (4 * kE), kValuePieces = kD / (8 * kE);  // of a row
  static_assert(kValuePieces > 0, "rows are too short for this map");
  static constexpr int kPieces = kUnits * (2 * kKeyPieces + 4 * kValuePieces);
  static constexpr bool kAhead = kPieces <= 16;  // registers for the next step's while at one

  // Rows from position `readable` on are not read: their registers keep what they held, at first
  // zero. Their scores are to be masked, and then their weights are zero.
  __device__ DecodeTile(const Cache& cache, int kv_head, int readable)
      : readable_(readable), head_dim_(cache.head_dim), row_bytes_(cache.head_dim * kElementBytes) {
    const int64_t first = kv_head * cache.capacity;
    keys_ = static_cast<const uint8_t*>(cache.keys) + first * row_bytes_;
    values_ = static_cast<const uint8_t*>(cache.values) + first * row_bytes_;
    if (kU8) scales_ = (t() < 2 ? cache.key_scales : cache.value_scales) + first;
  }

  // The order in which this lane wants q: words (2 s, 2 s + 1) of piece i at [i * kE / 4 + s].
  __device__ static void load_query(uint32_t (&q)[kD / 16][2], const __half* row) {
#pragma unroll
    for (int i = 0; i < kKeyPieces; ++i)
#pragma unroll
      for (int h = 0; h < kE / 8; ++h) {
        const uint4 x = *reinterpret_cast<const uint4*>(row + key_dim(i) + 8 * h);
        const int at = i * (kE / 4) + 2 * h;
        q[at][0] = x.x, q[at][1] = x.y, q[at + 1][0] = x.z, q[at + 1][1] = x.w;
      }
  }

  // Positions begin ... end - 1 of both to L2, by one thread.
  __device__ void prefetch(int begin, int end) const {
    if (!kAligned || begin >= end) return;
    const uint32_t at = uint32_t(begin) * uint32_t(row_bytes_);
    ptx::prefetch_l2(keys_ + at, (end - begin) * row_bytes_);
    ptx::prefetch_l2(values_ + at, (end - begin) * row_bytes_);
  }

  // Keys of positions start ... start + kStep - 1, and the scales of both.
  __device__ void load_keys(int start) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < kKeyPieces; ++i)
          load(k_[u][r][i], keys_, start + u * 16 + score_row(r), key_dim(i));
      if constexpr (kU8) {
        const int position = start + u * 16 + scale_row();
        if (position < readable_) scale_[u] = scales_[position];
      }
    }
  }
  __device__ void load_values(int start) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < kValuePieces; ++i)
          load(v_[u][r][i], values_, start + u * 16 + value_row(r), value_dim(i));
  }

  // The row at pos, in the place of what was not read.
  __device__ void put_new_keys(int start, int pos, const NewRow<kD>& row) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (start + u * 16 + score_row(r) != pos) continue;
#pragma unroll
        for (int i = 0; i < kKeyPieces; ++i) k_[u][r][i] = row.bytes[0][key_dim(i) / kE];
      }
      if (kU8 && start + u * 16 + scale_row() == pos) scale_[u] = row.scale[t() >> 1];
    }
  }
  __device__ void put_new_values(int start, int pos, const NewRow<kD>& row) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (start + u * 16 + value_row(r) != pos) continue;
#pragma unroll
        for (int i = 0; i < kValuePieces; ++i) v_[u][r][i] = row.bytes[1][value_dim(i) / kE];
      }
  }

  // Scores in units of log2, -inf from position `end` on. Keeps the scales of the values.
  __device__ void scores(float (&sc)[kUnits][4], const uint32_t (&q)[kD / 16][2], int start,
                         int end, float scale_log2) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      constexpr int kChains = kUnits == 1 ? 2 : 1;  // of products, for their latency
      float sum[kChains][4] = {};
#pragma unroll
      for (int i = 0; i < kKeyPieces; ++i) {
        const uint4 &a = k_[u][0][i], &b = k_[u][1][i];
#pragma unroll
        for (int s = 0; s < kE / 4; ++s) {
          const auto& w = q[i * (kE / 4) + s];
          if constexpr (kU8) {
            const uint32_t x = word(a, s), y = word(b, s);
            mma_16x8x16(sum[s % kChains], to_halves(x, kLowLevels), to_halves(y, kLowLevels),
                        to_halves(x, kHighLevels), to_halves(y, kHighLevels), w[0], w[1]);
          } else {
            mma_16x8x16(sum[s % kChains], word(a, 2 * s), word(b, 2 * s), word(a, 2 * s + 1),
                        word(b, 2 * s + 1), w[0], w[1]);
          }
        }
      }
      float scale[2] = {scale_log2, scale_log2};
      if constexpr (kU8) {
        const float mine = scale_[u];
        const int first = threadIdx.x % 32 & ~3;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          scale[r] *= __shfl_sync(~0u, mine, first + r);
          v_scale_[u][r] = __shfl_sync(~0u, mine, first + 2 + r);
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x)
        sc[u][x] =
            start + u * 16 + score_row(x >> 1) < end
                ? (kChains == 1 ? sum[0][x] : sum[0][x] + sum[kChains - 1][x]) * scale[x >> 1]
                : -INFINITY;
    }
  }

  // U8: weights times their value's scale, in units of the largest scale so far, so that F16 holds
  // them whatever the size of the values. Returns what sums so far are to be multiplied by.
  __device__ float weigh(float (&weights)[kUnits][4], float& unit) const {
    float top = unit;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) top = fmaxf(top, fmaxf(v_scale_[u][0], v_scale_[u][1]));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float inverse = 1 / top, change = top == unit ? 1.0f : unit * inverse;
    unit = top;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int x = 0; x < 4; ++x) weights[u][x] *= v_scale_[u][x >> 1] * inverse;
    return change;
  }

  // o += weights times values; o[i * kE / 2 + s] as above
  __device__ void add_values(float (&o)[kD / 16][4], const float (&weights)[kUnits][4]) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t p0 = transpose_matrix(pack_halves(weights[u][0], weights[u][1]));
      const uint32_t p1 = transpose_matrix(pack_halves(weights[u][2], weights[u][3]));
#pragma unroll
      for (int i = 0; i < kValuePieces; ++i) {
#pragma unroll
        for (int s = 0; s < kE / 2; ++s) {
          uint32_t a[4];
          pair_rows(a[0], a[1], v_[u][0][i], v_[u][1][i], s);
          pair_rows(a[2], a[3], v_[u][2][i], v_[u][3][i], s);
          mma_16x8x16(o[i * (kE / 2) + s], a[0], a[1], a[2], a[3], p0, p1);
        }
      }
    }
  }

 private:
  __device__ static int g() { return threadIdx.x % 32 / 4; }
  __device__ static int t() { return threadIdx.x % 4; }
  __device__ static int score_row(int r) { return g() + 8 * r; }
  __device__ static int scale_row() { return g() + 8 * (t() & 1); }
  __device__ static int value_row(int r) { return 2 * t() + (r & 1) + (r >> 1) * 8; }
  __device__ static int key_dim(int i) { return kE * (t() + 4 * i); }
  __device__ static int value_dim(int i) { return kE * (g() + 8 * i); }
  __device__ static uint32_t word(const uint4& x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
  }

  // Dims 2 s and 2 s + 1 of a piece of rows x and y: (x, y) of the one, (x, y) of the other.
  __device__ static void pair_rows(uint32_t& even, uint32_t& odd, const uint4& x, const uint4& y,
                                   int s) {
    if constexpr (kU8) {
      const uint32_t both =
          __byte_perm(word(x, s / 2), word(y, s / 2), s % 2 == 0 ? 0x5140 : 0x7362);
      even = to_halves(both, kLowLevels);
      odd = to_halves(both, kHighLevels);
    } else {
      even = __byte_perm(word(x, s), word(y, s), 0x5410);
      odd = __byte_perm(word(x, s), word(y, s), 0x7632);
    }
  }

  __device__ void load(uint4& piece, const uint8_t* rows, int position, int dim) const {
    const bool reads = position < readable_ && dim < head_dim_;
    const uint8_t* const from =
        rows + uint32_t(position) * uint32_t(row_bytes_) + dim * kElementBytes;
    if constexpr (kAligned) {
      ptx::load_once(piece, from, reads);
    } else if (reads) {  // rows that begin anywhere: not a way for speed
      uint32_t words[4] = {};
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        if (dim + e >= head_dim_) break;
        if constexpr (kU8) {
          words[e / 4] |= uint32_t{from[e]} << (e % 4 * 8);
        } else {
          words[e / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[e]} << (e % 2 * 16);
        }
      }
      piece = {words[0], words[1], words[2], words[3]};
    }
  }

  const uint8_t *keys_, *values_;
  const float* scales_ = nullptr;
  int readable_, head_dim_, row_bytes_;
  uint4 k_[kUnits][2][kKeyPieces] = {}, v_[kUnits][4][kValuePieces] = {};
  float scale_[kUnits] = {}, v_scale_[kUnits][2];
};

}  // namespace minfer::cuda::attention
