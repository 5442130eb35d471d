#pragma once

#include "kernels/cuda/launchers.h"

// The three kernels behind attention_prefill, which checks their arguments, and how a U8 cache
// becomes F16 for the first. prefill_wgmma and prefill_mma visit the keys in tiles counted from
// position 0 and in the same order for every query, so that a row's bits depend on no chunking of
// the prompt; a U8 cache takes up to kMaxMatvecTokens queries by decode_queries, whose bits differ.
namespace minfer::cuda::attention {

constexpr float kLog2E = 1.44269504088896341f;

// Whether this card and the binary's kernels allow prefill_wgmma for heads of that size; all its
// tensors must be 16-byte aligned besides.
bool has_prefill_wgmma(int64_t head_dim);
// keys, values [.., n_kv_heads, kPagePositions, head_dim] F16: pages as `pages` has them, or, where
// that is null, one behind the other from the first one on that is seen.
void prefill_wgmma(cudaStream_t stream, Tensor out, Tensor q, Tensor keys, Tensor values,
                   const int32_t* pages, int64_t pos, float scale, int64_t window);

// Positions of a U8 cache from page `first_page` of the table on, up to kv_len, pages one behind
// the other: keys, values [n, n_kv_heads, kPagePositions, head_dim] F16, 16-byte aligned, n being
// those pages; head_dim a multiple of 8.
void dequantize_kv(cudaStream_t stream, Tensor keys, Tensor values, const KvLayer& cache,
                   const CachePlace& place, int64_t first_page, int64_t kv_len);

// Few queries over a U8 cache, whose positions are split over blocks: head dims up to 256, every
// card. `workspace`: decode_queries_workspace(head_dim) bytes, 256-byte aligned, of any content.
int64_t decode_queries_workspace(int64_t head_dim);
void decode_queries(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                    const CachePlace& place, float scale, int64_t window, void* workspace);

// Head dims up to 256, caches of F16 and U8, every card.
constexpr int64_t kMaxHeadDim = 256;
void prefill_mma(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                 const CachePlace& place, float scale, int64_t window);

}  // namespace minfer::cuda::attention
