#pragma once

#include "kernels/cuda/launchers.h"

// How attention_decode splits the positions of a head over blocks. Benchmarks and tests call decode
// with splits of their own.
namespace minfer::cuda::attention {

struct DecodeSplits {
  int n = 1;             // most blocks of a group of columns
  int most_alone = 256;  // positions up to which one block takes them all
  int least = 128;       // least positions of a block if there are several
};

// The splits of a step of n sequences with so many rows each.
DecodeSplits decode_splits(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t max_seq_len,
                           int64_t rows_of_sequence = 1);

int64_t decode_workspace(int64_t n, int64_t n_heads, int64_t n_kv_heads, int64_t head_dim,
                         const DecodeSplits& splits, int64_t rows_of_sequence = 1);
void decode(cudaStream_t stream, const AttentionDecode& a, const DecodeSplits& splits);

}  // namespace minfer::cuda::attention
