#pragma once

#include "kernels/cuda/decode/cluster/cluster_exchange.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/operands.h"

// Attention within the step: a group of query heads of a key/value head goes to n_parts blocks,
// each with a range of the positions. A row of the cache belongs to eight lanes, each with 8
// elements.
namespace minfer::cuda {

// What a lane has in attention, the same in all layers. kQueries: heads of a group.
template <int kQueries>
class ClusterAttention {
 public:
  // pos: the position of the token.
  __device__ ClusterAttention(const ClusterParams& p, uint8_t* shared, int pos)
      : p_(p), shared_(shared), pos_(pos) {
    const int block = int(blockIdx.x), lane = int(threadIdx.x) % 32;
    const int warp = ptx::warp_index();
    group_ = block / p.n_parts;
    kv_head_ = group_ / p.groups_per_kv;
    column_ = lane % kLanes * 8;
    takes_part_ = group_ < p.n_heads / kQueries;
    const int kv_len = pos + 1, chunk = (kv_len + p.n_parts - 1) / p.n_parts;
    const int begin = min(block % p.n_parts * chunk, kv_len);
    end_ = min(begin + chunk, kv_len);
    first_ = begin + warp * kRows + lane / kLanes;
    first_of_warp_ = begin + warp * kRows;
    if (!takes_part_) return;
#pragma unroll
    for (int i = 0; i < kFirst; ++i) rows_[i] = row_at(first_ + i * kStride, pos_);
    new_at_ = int64_t{row_at(pos_, kv_len)} * kHeadDim + column_;
  }
  __device__ bool takes_part() const { return takes_part_; }

  // Attends in a layer, and sends the block's part of the result.
  __device__ void run(const ClusterLayer& layer, int index, const ClusterVectors& vectors) {
    uint4 k[kFirst], v[kFirst];
    load(k, v, layer, rows_);
    vectors.await(kVectorQkv, index);
    float top[kQueries], sum[kQueries], out[kQueries][8] = {};
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      top[h] = kNone;
      sum[h] = 0;
    }
    if (first_of_warp_ < end_) {
      float q[kQueries][8];
#pragma unroll
      for (int h = 0; h < kQueries; ++h) rotated_slice(q[h], group_ * kQueries + h);
      add_rows(top, sum, out, q, k, v, layer, 0);
      for (int at = kFirst * kStride; first_of_warp_ + at < end_; at += kMore * kStride) {
        int rows[kMore];
        uint4 keys[kMore], values[kMore];
#pragma unroll
        for (int i = 0; i < kMore; ++i) rows[i] = row_at(first_ + at + i * kStride, pos_);
        load(keys, values, layer, rows);
        add_rows(top, sum, out, q, keys, values, layer, at);
      }
    }
    merge_in_warp(top, sum, out);
    __syncthreads();
    send_part(vectors);
  }

  // Four elements, from `element` on, of the attention of all heads, from all parts. Each half of a
  // warp calls it for the elements of one head, or does not use the result.
  static __device__ float4 merged(const ClusterParams& p, const uint8_t* shared, int element) {
    const int lane = int(threadIdx.x) % 32;
    const int head = element / kHeadDim, group = head / kQueries;
    constexpr int kPart = kQueries * kQueryStride;
    const float* const first =
        reinterpret_cast<const float*>(shared + p.shared.vectors[kVectorAttnParts]) +
        group * p.n_parts * kPart + (head - group * kQueries) * kQueryStride;
    // Lane i of eight has the state of part i.
    static_assert(kMostClusterParts == 8);
    const int own = lane % 8;
    const float2 state =
        *reinterpret_cast<const float2*>(first + min(own, p.n_parts - 1) * kPart + kHeadDim);
    float top = state.x;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float factor = own < p.n_parts ? ptx::exp2_fast(state.x - top) : 0.0f;
    float sum = state.y * factor;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const float weight = factor * ptx::reciprocal_fast(sum);
    float4 out{};
#pragma unroll
    for (int i = 0; i < kMostClusterParts; ++i) {
      if (i >= p.n_parts) break;
      const float4 x = *reinterpret_cast<const float4*>(first + i * kPart + element % kHeadDim);
      const float its = __shfl_sync(~0u, weight, (lane & 16) + i);
      out.x = fmaf(x.x, its, out.x);
      out.y = fmaf(x.y, its, out.y);
      out.z = fmaf(x.z, its, out.z);
      out.w = fmaf(x.w, its, out.w);
    }
    return out;
  }

 private:
  static constexpr int kHeadDim = kClusterHeadDim, kQueryStride = kClusterQueryStride;
  static constexpr int kLanes = kHeadDim / 8;            // of a row
  static constexpr int kRows = 32 / kLanes;              // of a warp
  static constexpr int kStride = kRows * kClusterWarps;  // of the block
  // Rows that a lane asks for before q is there, and at once behind them: as many as there are
  // registers for.
  static constexpr int kFirst = kQueries == 1 ? 4 : 1, kMore = 4;
  static constexpr float kNone = -3.0e38f;  // the maximum of no scores

  // The row of a layer's cache that holds a position of the block before `end`; else -1.
  __device__ int row_at(int pos, int end) const {
    if (pos >= min(end_, end)) return -1;
    constexpr int kPage = int{kPagePositions};
    return (__ldg(p_.pages + pos / kPage) * p_.n_kv_heads + kv_head_) * kPage + pos % kPage;
  }
  template <int kN>
  __device__ void load(uint4 (&k)[kN], uint4 (&v)[kN], const ClusterLayer& layer,
                       const int (&rows)[kN]) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const int64_t at = int64_t{rows[i]} * kHeadDim + column_;
      k[i] = ptx::load_16_or_zero(rows[i] >= 0, layer.keys + at);
      v[i] = ptx::load_16_or_zero(rows[i] >= 0, layer.values + at);
    }
  }
  // Eight floats of 32 aligned bytes.
  static __device__ void load_eight(float (&to)[8], const float* from) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
  __device__ const float* head_at(int head) const {
    return reinterpret_cast<const float*>(shared_ + p_.shared.vectors[kVectorQkv]) +
           head * kHeadDim;
  }
  // Gives the lane's eight elements of a head, rotated. Heads are counted through q, then k. RoPE
  // turns an element of the lower half together with one of the upper half: the former becomes own
  // cos - other sin, the latter own cos + other sin, with the roundings of attention::rotated.
  __device__ void rotated_slice(float (&to)[8], int head) const {
    constexpr int kHalf = kHeadDim / 2;
    float other[8], cosines[8], sines[8];
    load_eight(to, head_at(head) + column_);
    load_eight(other, head_at(head) + (column_ ^ kHalf));
    const auto* const angles = reinterpret_cast<const float*>(shared_ + p_.shared.angles);
    load_eight(cosines, angles + column_);
    load_eight(sines, angles + kHeadDim + column_);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = fmaf(to[i], cosines[i], __fmul_rn(other[i], sines[i]));
  }
  // If position `at` is that of the token, and the block's, its key and value come from this step,
  // and are appended to the cache.
  __device__ void take_new_row(uint4& k, uint4& v, const ClusterLayer& layer, int at) const {
    if (at != pos_ || at >= end_) return;
    float key[8], value[8];
    rotated_slice(key, p_.n_heads + kv_head_);
    load_eight(value, head_at(p_.n_heads + p_.n_kv_heads + kv_head_) + column_);
    uint32_t of_key[4], of_value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 a = __floats2half2_rn(key[2 * i], key[2 * i + 1]);
      const __half2 b = __floats2half2_rn(value[2 * i], value[2 * i + 1]);
      of_key[i] = *reinterpret_cast<const uint32_t*>(&a);
      of_value[i] = *reinterpret_cast<const uint32_t*>(&b);
    }
    k = {of_key[0], of_key[1], of_key[2], of_key[3]};
    v = {of_value[0], of_value[1], of_value[2], of_value[3]};
    if (group_ % p_.groups_per_kv != 0) return;
    *reinterpret_cast<uint4*>(layer.keys + new_at_) = k;
    *reinterpret_cast<uint4*>(layer.values + new_at_) = v;
  }
  static __device__ void floats(float (&to)[8], const uint4& halves) {
    const uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      to[2 * i] = two.x;
      to[2 * i + 1] = two.y;
    }
  }
  // Adds kN of the lane's rows, from the `at`-th position behind its first one on. All lanes of the
  // warp call it.
  template <int kN>
  __device__ void add_rows(float (&top)[kQueries], float (&sum)[kQueries],
                           float (&out)[kQueries][8], const float (&q)[kQueries][8], uint4 (&k)[kN],
                           uint4 (&v)[kN], const ClusterLayer& layer, int at) const {
    float scores[kN][kQueries];
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const int pos = first_ + at + i * kStride;
      if (first_of_warp_ + at + i * kStride + kRows > pos_) take_new_row(k[i], v[i], layer, pos);
      float key[8];
      floats(key, k[i]);
#pragma unroll
      for (int h = 0; h < kQueries; ++h) {
        float score = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) score = fmaf(q[h][e], key[e], score);
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) score += __shfl_xor_sync(~0u, score, d);
        scores[i][h] = pos < end_ ? score * p_.scale_log2 : kNone;
      }
    }
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      float next = top[h];
#pragma unroll
      for (int i = 0; i < kN; ++i) next = fmaxf(next, scores[i][h]);
      const float factor = ptx::exp2_fast(top[h] - next);
      top[h] = next;
      sum[h] *= factor;
#pragma unroll
      for (float& x : out[h]) x *= factor;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const bool is_there = first_ + at + i * kStride < end_;
        scores[i][h] = is_there ? ptx::exp2_fast(scores[i][h] - next) : 0.0f;  // the weight
        sum[h] += scores[i][h];
      }
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      float value[8];
      floats(value, v[i]);
#pragma unroll
      for (int h = 0; h < kQueries; ++h) {
#pragma unroll
        for (int e = 0; e < 8; ++e) out[h][e] = fmaf(scores[i][h], value[e], out[h][e]);
      }
    }
  }
  // As integers, whose order is that of floats: one instruction finds the largest.
  static __device__ float largest_of_warp(float x) {
    constexpr uint32_t kSign = 1u << 31;
    const uint32_t bits = __float_as_uint(x);
    const uint32_t top = __reduce_max_sync(~0u, bits & kSign ? ~bits : bits | kSign);
    return __uint_as_float(top & kSign ? top & ~kSign : ~top);
  }
  // The results of a warp in shared memory: for each query head_dim elements, and two of softmax.
  __device__ float* results(int warp, int h) const {
    return reinterpret_cast<float*>(shared_ + p_.shared.heads) +
           (warp * kQueries + h) * kQueryStride;
  }
  __device__ void merge_in_warp(float (&top)[kQueries], float (&sum)[kQueries],
                                float (&out)[kQueries][8]) const {
    static_assert(kRows == 4);
    const int lane = int(threadIdx.x) % 32;
    const int warp = ptx::warp_index();
    const bool upper = lane & 16, odd = lane & 8;
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      float all = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 8));
      all = fmaxf(all, __shfl_xor_sync(~0u, all, 16));
      const float factor = ptx::exp2_fast(top[h] - all);
      sum[h] *= factor;
      sum[h] += __shfl_xor_sync(~0u, sum[h], 8);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 16);
      // Of the four lanes with the same elements each ends with two of them: halves and then
      // quarters exchange those that the other one keeps.
      float four[4], two[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float kept = factor * (upper ? out[h][4 + i] : out[h][i]);
        const float given = factor * (upper ? out[h][i] : out[h][4 + i]);
        four[i] = kept + __shfl_xor_sync(~0u, given, 16);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        two[i] =
            (odd ? four[2 + i] : four[i]) + __shfl_xor_sync(~0u, odd ? four[i] : four[2 + i], 8);
      }
      float* const to = results(warp, h);
      const int element = column_ + (upper ? 4 : 0) + (odd ? 2 : 0);
      *reinterpret_cast<float2*>(to + element) = {two[0], two[1]};
      if (lane == 0) *reinterpret_cast<float2*>(to + kHeadDim) = {all, sum[h]};
    }
  }
  // Adds the results of the warps: a thread has an element of a query, a warp those of one query.
  __device__ void send_part(const ClusterVectors& vectors) const {
    constexpr int kAll = kQueries * kHeadDim, kPart = kQueries * kQueryStride;
    static_assert(kAll <= kClusterThreads && kHeadDim % 32 == 0 && kClusterWarps <= 16);
    if (int(threadIdx.x) >= kAll) return;
    const int lane = int(threadIdx.x) % 32;
    const int h = int(threadIdx.x) / kHeadDim, element = int(threadIdx.x) % kHeadDim;
    const float* const from = results(0, h);
    // Lane w of 16 has the state of warp w.
    const int own = lane % 16;
    const float2 state =
        *reinterpret_cast<const float2*>(from + min(own, kClusterWarps - 1) * kPart + kHeadDim);
    const float top = largest_of_warp(state.x);
    const float factor = own < kClusterWarps ? ptx::exp2_fast(state.x - top) : 0.0f;
    float sum = state.y * factor, out = 0;
#pragma unroll
    for (int d = 1; d < 16; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
#pragma unroll
    for (int w = 0; w < kClusterWarps; ++w) {
      out = fmaf(from[w * kPart + element], __shfl_sync(~0u, factor, w), out);
    }
    const int to = int(blockIdx.x) * kPart + h * kQueryStride;
    vectors.send(p_, kVectorAttnParts, to + (element & ~3), out, true);
    vectors.send_four(p_, kVectorAttnParts, to + kHeadDim, {top, sum, 0, 0}, element < 4);
  }

  const ClusterParams& p_;
  uint8_t* const shared_;
  const int pos_;
  int group_, kv_head_, column_;     // column_: the lane's first element of a row
  int end_, first_, first_of_warp_;  // positions
  bool takes_part_;
  int rows_[kFirst];  // of the cache, of the lane's first positions
  int64_t new_at_;    // the lane's elements of the new row
};

}  // namespace minfer::cuda
