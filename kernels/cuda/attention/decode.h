#pragma once

#include "kernels/cuda/launchers.h"

// How attention_decode parts the positions of a head, for it and for those who measure it.
namespace minfer::cuda::attention {

struct DecodeSplits {
  int cluster = 1;     // blocks that merge through their shared memory; 1 where that cannot be
  int n_clusters = 1;  // of a group of heads; what they leave is merged through global memory
  int most_alone = 0;  // positions of a block up to which one cluster takes them all
  int least = 64;      // positions of a block, at least
};

DecodeSplits decode_splits(int64_t n_heads, int64_t n_kv_heads, int64_t capacity);

int64_t decode_workspace(int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                         const DecodeSplits& splits);
void decode(cudaStream_t stream, const AttentionDecode& a, const DecodeSplits& splits);

}  // namespace minfer::cuda::attention
