#pragma once

#include "kernels/cuda/launchers.h"

// The two kernels behind attention_prefill, which checks their arguments. Both visit the keys in
// tiles counted from position 0 and in the same order for every query, so that a row's bits depend
// on no chunking of the prompt; between the two kernels they differ.
namespace minfer::cuda::attention {

constexpr float kLog2E = 1.44269504088896341f;

// Whether this card, the binary's kernels and the shapes allow prefill_wgmma.
bool has_prefill_wgmma(const Tensor& out, const Tensor& q, const KvLayer& cache);
void prefill_wgmma(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache, int64_t pos,
                   float scale);

// Head dims up to 256, caches of F16 and U8, every card.
constexpr int64_t kMaxHeadDim = 256;
void prefill_mma(cudaStream_t stream, Tensor out, Tensor q, const KvLayer& cache, int64_t pos,
                 float scale);

}  // namespace minfer::cuda::attention
