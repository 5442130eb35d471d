#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/matvec/params.h"

// The products of a decode step of Llama-2-7B, to be timed.
namespace minfer::cuda {

constexpr int64_t kBenchDim = 4096, kBenchFfnDim = 11008, kBenchVocab = 32000;

enum class DecodeProduct { Qkv, Output, GateUp, Down, Head };
constexpr DecodeProduct kDecodeProducts[] = {DecodeProduct::Qkv, DecodeProduct::Output,
                                             DecodeProduct::GateUp, DecodeProduct::Down,
                                             DecodeProduct::Head};
const char* name_of(DecodeProduct product);

// Its one to three matrices, from the pool.
std::vector<Matrix> matrices_of(TensorPool& pool, const WeightFormat& format,
                                DecodeProduct product);
int64_t bytes_of_all(const std::vector<Matrix>& matrices);
// "12288 x 4096 u4_g64"
std::string shape_of(const WeightFormat& format, const std::vector<Matrix>& matrices);

// What the products of n_tokens read and write. One token's are normed by the product, as in a
// decode step; several have been normed before, as in a prompt.
struct DecodeActivations {
  explicit DecodeActivations(int64_t n_tokens);
  DeviceTensor residual, x, h, q, k, v, logits, weight;
  MatvecNorm norm;
};
void run_product(cudaStream_t stream, const DecodeActivations& a, DecodeProduct product,
                 const std::vector<Matrix>& w, const MatvecTuning& tuning = {});

}  // namespace minfer::cuda
