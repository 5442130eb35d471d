#pragma once

#include <limits>

#include "kernels/cuda/launchers.h"

// The three kernels behind attention_prefill, which checks their arguments, and the conversion of a
// U8 cache to F16 for the first one. prefill_wgmma and prefill_mma visit the keys in tiles counted
// from position 0 and in the same order for every query, so that the bits of a row do not depend on
// how the prompt is chunked. For up to kMaxGemvTokens queries a U8 cache takes decode_queries,
// whose bits differ.
namespace minfer::cuda::attention {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int kNoWindow = std::numeric_limits<int>::max();  // of kernels that always have one

// Whether this card and this build can run prefill_wgmma for heads of that size. All its tensors
// must also be 16-byte aligned.
bool has_prefill_wgmma(int64_t head_dim);
// keys, values [.., n_kv_heads, kPagePositions, head_dim] F16. `pages` is the page table; if it is
// null, pages follow one another from the first one that is seen.
void prefill_wgmma(cudaStream_t stream, Tensor out, Tensor q, Tensor keys, Tensor values,
                   const int32_t* pages, int64_t pos, float scale, int64_t window,
                   float softcap = 0, Tensor sinks = {});

// Converts positions of a U8 cache, from page `first_page` of the page table up to kv_len, to pages
// that follow one another: keys, values [n, n_kv_heads, kPagePositions, head_dim] F16, 16-byte
// aligned, with n the number of those pages; head_dim is a multiple of 8.
void dequantize_kv(cudaStream_t stream, Tensor keys, Tensor values, const KvLayer& cache,
                   const CachePlace& place, int64_t first_page, int64_t kv_len);

// Few queries over a U8 cache, whose positions are split over blocks: head_dim up to 256, every
// card. `workspace`: decode_queries_workspace(head_dim) bytes, 256-byte aligned, with any content.
int64_t decode_queries_workspace(int64_t head_dim);
void decode_queries(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                    const CachePlace& place, float scale, int64_t window, void* workspace,
                    float softcap = 0, Tensor sinks = {});

// head_dim up to 256, F16 and U8 caches, every card.
constexpr int64_t kMaxHeadDim = 256;
void prefill_mma(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache,
                 const CachePlace& place, float scale, int64_t window, float softcap = 0,
                 Tensor sinks = {});

}  // namespace minfer::cuda::attention
