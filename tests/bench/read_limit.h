#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace minfer::bench {

// Bytes a second at which this card reads `data` once, by the best loop known: the limit that a
// product of few tokens is held against. Takes a few milliseconds.
double read_limit(cudaStream_t stream, const void* data, size_t n_bytes);

}  // namespace minfer::bench
