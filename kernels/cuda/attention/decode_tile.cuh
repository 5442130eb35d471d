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

// Eight neighbouring elements of a cached row: four words of halves, or two of levels.
template <bool kU8>
struct Chunk {
  static constexpr int kWords = kU8 ? 2 : 4;
  static constexpr int kElementBytes = kU8 ? 1 : 2;
  uint32_t word[kWords];
};

// Past L1, which keeps nothing of a cache that is read once.
__device__ inline Chunk<false> load_chunk(const Chunk<false>* from) {
  Chunk<false> c;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3])
               : "l"(from));
  return c;
}
__device__ inline Chunk<true> load_chunk(const Chunk<true>* from) {
  Chunk<true> c;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(c.word[0]), "=r"(c.word[1])
               : "l"(from));
  return c;
}

// Levels in the low bytes of the halves of 0x64006400: 1024 + level, so level - 128 by an exact
// difference.
__device__ inline uint32_t to_halves(uint32_t levels, uint32_t selector) {
  const uint32_t biased = __byte_perm(levels, 0x64646464, selector);
  const uint32_t bias = 0x64806480;  // 1152
  return bits_of(__hsub2(*reinterpret_cast<const __half2*>(&biased),
                         *reinterpret_cast<const __half2*>(&bias)));
}
constexpr uint32_t kLowLevels = 0x4140, kHighLevels = 0x4342;  // bytes 0 and 1, or 2 and 3

// What a warp holds of kStep positions of one head, as operands of mma_16x8x16 straight from
// memory. With g = lane / 4, t = lane % 4, in unit u of 16 positions a lane has
//
//   keys    rows g and g + 8, chunks t + 4 i of 8 dims: the dims that an mma sums may come in any
//           order, so words 2 s and 2 s + 1 of chunk i (dims 8 (t + 4 i) + 4 s ... + 3) are its k
//           2t, 2t + 1 and 2t + 8, 2t + 9 in step (i, s). q is read in the same order
//   values  rows 2t, 2t + 1, 2t + 8, 2t + 9, chunks g + 8 i: dims 8 (g + 8 i) + 2 s and + 1 are
//           rows g and g + 8 of the transposed operand of step (i, s)
//
// Columns are query heads. Scores come out with position g in c0, c1 and g + 8 in c2, c3, of heads
// 2t and 2t + 1; sums over positions with the two dims of (i, s) in c0, c1 and c2, c3.
template <int kD, bool kU8, bool kAligned>
class DecodeTile {
 public:
  static constexpr int kUnits = kU8 && kD <= 128 ? 2 : 1, kStep = 16 * kUnits;
  using Part = Chunk<kU8>;

  // Rows from position `readable` on are not read; they count as zero.
  __device__ DecodeTile(const Cache& cache, int kv_head, int readable)
      : readable_(readable),
        head_dim_(cache.head_dim),
        row_bytes_(cache.head_dim * Part::kElementBytes) {
    const int64_t first = kv_head * cache.capacity;
    keys_ = static_cast<const uint8_t*>(cache.keys) + first * row_bytes_;
    values_ = static_cast<const uint8_t*>(cache.values) + first * row_bytes_;
    if (kU8) {
      key_scales_ = cache.key_scales + first;
      value_scales_ = cache.value_scales + first;
    }
  }

  __device__ void load_keys(int start) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int position = start + u * 16 + score_row(r);
#pragma unroll
        for (int i = 0; i < kD / 32; ++i) k_[u][r][i] = load(keys_, position, key_dim(i));
        if (kU8) k_scale_[u][r] = position < readable_ ? key_scales_[position] : 0.0f;
      }
  }
  __device__ void load_values(int start) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < kD / 64; ++i)
          v_[u][r][i] = load(values_, start + u * 16 + value_row(r), value_dim(i));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int position = start + u * 16 + score_row(r);
        if (kU8) v_scale_[u][r] = position < readable_ ? value_scales_[position] : 0.0f;
      }
    }
  }

  // The row at pos, from shared memory.
  __device__ void put_new_keys(int start, int pos, const NewRow<kD>& row) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (start + u * 16 + score_row(r) != pos) continue;
#pragma unroll
        for (int i = 0; i < kD / 32; ++i) k_[u][r][i] = part_of(row.bytes[0], key_dim(i));
        if (kU8) k_scale_[u][r] = row.scale[0];
      }
  }
  __device__ void put_new_values(int start, int pos, const NewRow<kD>& row) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (start + u * 16 + value_row(r) != pos) continue;
#pragma unroll
        for (int i = 0; i < kD / 64; ++i) v_[u][r][i] = part_of(row.bytes[1], value_dim(i));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (kU8 && start + u * 16 + score_row(r) == pos) v_scale_[u][r] = row.scale[1];
    }
  }

  // Scores in units of log2, -inf from position `end` on.
  __device__ void scores(float (&sc)[kUnits][4], const uint32_t (&q)[kD / 32][4], int start,
                         int end, float scale_log2) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int x = 0; x < 4; ++x) sc[u][x] = 0;
#pragma unroll
      for (int i = 0; i < kD / 32; ++i)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const Part &a = k_[u][0][i], &b = k_[u][1][i];
          if constexpr (kU8) {
            mma_16x8x16(sc[u], to_halves(a.word[s], kLowLevels), to_halves(b.word[s], kLowLevels),
                        to_halves(a.word[s], kHighLevels), to_halves(b.word[s], kHighLevels),
                        q[i][2 * s], q[i][2 * s + 1]);
          } else {
            mma_16x8x16(sc[u], a.word[2 * s], b.word[2 * s], a.word[2 * s + 1], b.word[2 * s + 1],
                        q[i][2 * s], q[i][2 * s + 1]);
          }
        }
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float scale = kU8 ? scale_log2 * k_scale_[u][x >> 1] : scale_log2;
        sc[u][x] = start + u * 16 + score_row(x >> 1) < end ? sc[u][x] * scale : -INFINITY;
      }
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

  // o += weights times values
  __device__ void add_values(float (&o)[kD / 16][4], const float (&weights)[kUnits][4]) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t p0 = transpose_matrix(pack_halves(weights[u][0], weights[u][1]));
      const uint32_t p1 = transpose_matrix(pack_halves(weights[u][2], weights[u][3]));
#pragma unroll
      for (int i = 0; i < kD / 64; ++i)
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          uint32_t a[4];
          pair_rows(a[0], a[1], v_[u][0][i], v_[u][1][i], s);
          pair_rows(a[2], a[3], v_[u][2][i], v_[u][3][i], s);
          mma_16x8x16(o[4 * i + s], a[0], a[1], a[2], a[3], p0, p1);
        }
    }
  }

 private:
  __device__ static int g() { return threadIdx.x % 32 / 4; }
  __device__ static int t() { return threadIdx.x % 4; }
  __device__ static int score_row(int r) { return g() + 8 * r; }
  __device__ static int value_row(int r) { return 2 * t() + (r & 1) + (r >> 1) * 8; }
  __device__ static int key_dim(int i) { return 8 * (t() + 4 * i); }
  __device__ static int value_dim(int i) { return 8 * (g() + 8 * i); }

  // Dims 2 s and 2 s + 1 of a chunk of rows x and y: (x, y) of the one, (x, y) of the other.
  __device__ static void pair_rows(uint32_t& even, uint32_t& odd, const Part& x, const Part& y,
                                   int s) {
    if constexpr (kU8) {
      const uint32_t both = __byte_perm(x.word[s / 2], y.word[s / 2], s % 2 == 0 ? 0x5140 : 0x7362);
      even = to_halves(both, kLowLevels);
      odd = to_halves(both, kHighLevels);
    } else {
      even = __byte_perm(x.word[s], y.word[s], 0x5410);
      odd = __byte_perm(x.word[s], y.word[s], 0x7632);
    }
  }

  __device__ Part load(const uint8_t* rows, int position, int dim) const {
    Part part = {};
    if (position >= readable_ || dim >= head_dim_) return part;
    const uint8_t* const from =
        rows + uint32_t(position) * uint32_t(row_bytes_) + dim * Part::kElementBytes;
    if constexpr (kAligned) {
      part = load_chunk(reinterpret_cast<const Part*>(from));
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (dim + e >= head_dim_) break;
        if constexpr (kU8) {
          part.word[e / 4] |= uint32_t{from[e]} << (e % 4 * 8);
        } else {
          const uint32_t x = reinterpret_cast<const uint16_t*>(from)[e];
          part.word[e / 2] |= x << (e % 2 * 16);
        }
      }
    }
    return part;
  }
  __device__ static Part part_of(const uint4* row, int dim) {
    return reinterpret_cast<const Part*>(row)[dim / 8];
  }

  const uint8_t *keys_, *values_;
  const float *key_scales_ = nullptr, *value_scales_ = nullptr;
  int readable_, head_dim_, row_bytes_;
  Part k_[kUnits][2][kD / 32], v_[kUnits][4][kD / 64];
  float k_scale_[kUnits][2], v_scale_[kUnits][2];
};

}  // namespace minfer::cuda::attention
