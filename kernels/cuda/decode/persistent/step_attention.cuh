#pragma once

#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/decode/persistent/step_codes.cuh"
#include "kernels/cuda/decode/persistent/step_exchange.cuh"
#include "kernels/cuda/decode/persistent/step_new_rows.cuh"
#include "kernels/cuda/decode/persistent/step_slice.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"

// Attention within the step: a group of query heads of one key/value head, for each token, goes to
// n_splits blocks, each with a range of the positions.
namespace minfer::cuda {

// n elements of each token follow one another. A thread has the one at `begin` plus its index,
// which is element first + thread_index() of `token`.
struct StepElement {
  int token, first, n;
  __device__ int index() const { return first + thread_index(); }
  __device__ bool exists() const { return index() < n; }
};
template <typename I>
__device__ inline StepElement element_of(int begin, int n) {
  if constexpr (I::kTokens == 1) return {0, begin, n};
  const int token = (begin + thread_index()) / n;
  return token < I::kTokens ? StepElement{token, begin - token * n, n} : StepElement{};
}

// Merges the results of the splits of a group, for each token. Each is a word (maximum, sum) for
// each head, followed by the words of the group's output, not yet divided by the sum. Each block of
// the group merges split_words words of the output.
template <typename I>
__device__ inline void merge_splits(const StepParams& p, const StepAttentionSlice& t, float* shared,
                                    int warp, uint32_t epoch) {
  const StepAttention& a = p.attention;
  const int heads = a.heads_per_block, split_words = heads + a.group_words;
  const int first = t.split * a.split_words;
  const int n_words = max(0, min(a.split_words, a.group_words - first));
  const int per_split = heads + n_words;
  const int lane = thread_index() % 32;
  const int n_splits = I::kTokens * t.splits;  // of all tokens
  const auto of_token = [&](int token) { return shared + token * kScratchFloats; };
  for (int i = warp; n_words > 0 && i < n_splits; i += kStepWarps) {
    const int token = I::kTokens == 1 ? 0 : i / t.splits, split = i - token * t.splits;
    const uint4* const results = p.words.split_results + token * p.words.of_token +
                                 (int64_t{t.group} * a.n_splits + split) * split_words;
    for (int begin = 0; begin < per_split; begin += 32) {
      const int j = begin + lane;
      const uint4* const from[] = {results + (j < heads ? j : j + first)};
      StepWord words[] = {StepWord::of(~epoch)};
      await_each(words, from, j < per_split, epoch);
      if (j < per_split) {
        *reinterpret_cast<float4*>(of_token(token) + (split * per_split + j) * 4) =
            make_float4(words[0].at(0), words[0].at(1), words[0].at(2), words[0].at(3));
      }
    }
  }
  consumers_sync();
  const int n = 4 * n_words;  // elements of a token
  for (int begin = 0; begin < I::kTokens * n; begin += kStepConsumers) {
    const StepElement e = element_of<I>(begin, n);
    const int i = e.index();
    const float* const from = of_token(e.token);
    float value = 0;
    if (e.exists()) {
      const int head = I::kHeads == 1 ? 0 : (first + i / 4) * 4 / a.head_dim;
      float top = -INFINITY, sum = 0;
      for (int split = 0; split < t.splits; ++split) {
        top = fmaxf(top, from[(split * per_split + head) * 4]);
      }
      for (int split = 0; split < t.splits; ++split) {
        const float* const state = from + (split * per_split + head) * 4;
        const float weight = ptx::exp2_fast(state[0] - top);
        sum = fmaf(weight, state[1], sum);
        value = fmaf(weight, from[(split * per_split + heads) * 4 + i], value);
      }
      value = __fdividef(value, sum);
    }
    uint4* const attended =
        p.words.attended + e.token * p.words.of_token + t.group * a.group_words + first;
    publish(attended, e.first, e.n, value, epoch);
  }
}

// Takes all stages of the cache, in f32: teams of a.lanes() lanes take rows in turns.
template <typename I, bool kIsU8, typename Clock>
__device__ inline void attend_rows(OnlineSoftmax<I>& softmax, const StepAttention& a,
                                   const CacheStages& cache, const float (*q)[I::kHeadDim],
                                   const StepRing& ring, StepCursor<Clock>& cursor) {
  constexpr int kQueries = I::kQueries;
  constexpr int kN = kQueries <= 2 ? 4 : 2;  // rows of a team at a time
  const int n_teams = kStepConsumers >> a.lanes_log, team = thread_index() >> a.lanes_log;
  const int at = (thread_index() & (a.lanes() - 1)) * 8;
  const bool has_columns = at < a.head_dim;
  const int q_at = has_columns ? at : 0;
  cursor.template take<4>(
      ring, 2 * cache.n_stages, [&](int step, const uint8_t* const(&stages)[4]) {
        // The stages are keys, values, keys, values; a team has every n_teams-th row of both pairs.
        const int n_rows[2] = {cache.rows_of(2 * step), cache.rows_of(2 * step + 1)};
        const int skipped[2] = {cache.skipped(2 * step), cache.skipped(2 * step + 1)};
#pragma unroll 1
        for (int first = 0; first < n_rows[0]; first += n_teams * (kN / 2)) {
          CacheEight k[kN], v[kN];
          bool valid[kN];
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            const int row = first + n / 2 * n_teams + team;
            valid[n] = row < n_rows[n % 2];
            k[n] = v[n] = CacheEight::zeros<kIsU8>();
            if (valid[n] && has_columns) {
              k[n] = load_eight<kIsU8>(a, stages[n % 2 * 2], row, at, skipped[n % 2]);
              v[n] = load_eight<kIsU8>(a, stages[n % 2 * 2 + 1], row, at, skipped[n % 2]);
            }
          }
          float weights[kQueries][kN];
          OnlineSoftmax<I>::template scores<kIsU8>(weights, k, valid, q, q_at, a);
          softmax.weigh(weights);
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            float row[8], weight[kQueries];
            unpack<kIsU8>(row, v[n]);
#pragma unroll
            for (int h = 0; h < kQueries; ++h) weight[h] = weights[h][n] * v[n].scale;
            softmax.add(weight, row);
          }
        }
      });
}

// Computes softmax(q k^T) v of the block's heads and positions. Publishes it as `attended` if the
// group has one split, else as a result for merge_splits. `memory`: [kStepWarps, queries, head_dim]
// floats and behind them, at query_at, QueryCodes; `merging`: memory of merge_splits.
template <typename I, typename Clock>
__device__ inline void attend(const StepParams& p, const StepLayer& layer, int kind,
                              StepAttentionShared<I>& s, float* memory, float* merging,
                              const StepRing& ring, StepCursor<Clock>& cursor, uint32_t epoch) {
  constexpr int kQueries = I::kQueries;
  const StepAttentionSlice t = s.slices[kind];
  if (!t.takes_part) return;
  const StepAttention& a = p.attention;
  const int lane = thread_index() % 32, warp = warp_index();
  const int at = (thread_index() & (a.lanes() - 1)) * 8;
  const bool has_columns = at < a.head_dim;
  const QueryCodes query{a.multiplies_codes ? reinterpret_cast<uint8_t*>(memory) + a.query_at
                                            : nullptr};
  take_new_rows<I>(p, layer, kind, t, s, query, warp, epoch);
  cursor.clock.end(kAttentionRow, kInput);

  OnlineSoftmax<I> softmax;
  const CacheStages cache = s.caches[kind];
  if (query.digits != nullptr) {
    attend_codes<I>(softmax, a, cache, query,
                    memory + warp * I::kTokens * a.heads_per_block * a.head_dim, ring, cursor);
  } else if (a.is_u8) {
    attend_rows<I, true>(softmax, a, cache, s.q, ring, cursor);
  } else {
    attend_rows<I, false>(softmax, a, cache, s.q, ring, cursor);
  }
  const int heads = a.heads_per_block;
  if (t.has_new && warp < I::kTokens) {  // a warp's first team takes one of the step's positions
    const int token = I::kTokens == 1 ? 0 : warp;
    const bool has_row = lane < a.lanes();
    const float(&key)[I::kHeadDim] = s.new_row[token][0];
    const float(&its_value)[I::kHeadDim] = s.new_row[token][1];
    float own_score[kQueries][1];
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (has_columns) sum = fmaf(s.q[h][at + i], key[at + i], sum);
      sum = team_sum<I>(sum, a.lanes());
      const bool sees = token == 0 || h >= heads;  // its own token's and those behind
      own_score[h][0] = has_row && sees ? capped<I>(sum, a) : -INFINITY;
    }
    softmax.weigh(own_score);
    float row[8], weight[kQueries];
#pragma unroll
    for (int i = 0; i < 8; ++i) row[i] = has_columns ? its_value[at + i] : 0.0f;
#pragma unroll
    for (int h = 0; h < kQueries; ++h) weight[h] = own_score[h][0];
    softmax.add(weight, row);
  }

  cursor.clock.end_multiply(kAttentionRow);

  if (a.lanes() == 8) softmax.merge(8);
  if (I::kHeadDim <= 128 || a.lanes() <= 16) softmax.merge(16);
  const int of_token = heads * a.head_dim, n_elements = I::kTokens * of_token;
  if (lane < a.lanes()) {
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      if (h >= I::kTokens * heads) break;
      if (lane == 0) s.states[warp][h] = {softmax.max[h], softmax.sum[h]};
      if (!has_columns) continue;
      float* const to = memory + warp * n_elements + h * a.head_dim + at;
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        *reinterpret_cast<float4*>(to + i) = make_float4(
            softmax.out[h][i], softmax.out[h][i + 1], softmax.out[h][i + 2], softmax.out[h][i + 3]);
      }
    }
  }
  consumers_sync();
  for (int begin = 0; begin < n_elements; begin += kStepConsumers) {
    const StepElement e = element_of<I>(begin, of_token);
    const int i = e.index();
    const int64_t words_before = e.token * p.words.of_token;
    uint4* const part = p.words.split_results + words_before +
                        (int64_t{t.group} * a.n_splits + t.split) * (heads + a.group_words);
    uint4* const attended = p.words.attended + words_before + t.group * a.group_words;
    float value = 0;
    if (e.exists()) {
      const int head = I::kHeads == 1 ? 0 : i / a.head_dim, row = e.token * heads + head;
      float top = -INFINITY, sum = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) top = fmaxf(top, s.states[w][row].x);
      top = through_word(top);
      const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) {
        const float2 state = s.states[w][row];
        const float weight = ptx::exp2_fast(state.x - base);
        sum = fmaf(weight, state.y, sum);
        value = fmaf(weight, memory[w * n_elements + e.token * of_token + i], value);
      }
      if (t.splits == 1) {
        value = __fdividef(value, sum);
      } else if (i == head * a.head_dim) {
        store_word(part + head, top, sum, 0, 0, epoch);
      }
    }
    publish(t.splits == 1 ? attended : part + heads, e.first, e.n, value, epoch);
  }
  if (t.splits > 1) merge_splits<I>(p, t, merging, warp, epoch);
  consumers_sync();  // `memory` and `merging` are free again
  cursor.clock.end(kAttentionRow, kPublish);
}

}  // namespace minfer::cuda
