#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/launchers.h"

// The GEMVs of a decode step of Llama-2-7B, for benchmarks.
namespace minfer::cuda {

enum class DecodeGemv { Qkv, Output, GateUp, Down, Head };
constexpr DecodeGemv kDecodeGemvs[] = {DecodeGemv::Qkv, DecodeGemv::Output, DecodeGemv::GateUp,
                                       DecodeGemv::Down, DecodeGemv::Head};
const char* name_of(DecodeGemv gemv);

// The one to three matrices of a GEMV, from the pool.
std::vector<Matrix> matrices_of(TensorPool& pool, const WeightFormat& format, DecodeGemv gemv);
int64_t bytes_of_all(const std::vector<Matrix>& matrices);
int64_t elements_of_all(const std::vector<Matrix>& matrices);
// "12288 x 4096 u4_g64"
std::string shape_of(const WeightFormat& format, const std::vector<Matrix>& matrices);

// The inputs and outputs of the GEMVs for n_tokens. For one token, the norm is fused into the GEMV,
// as in a decode step; several tokens are already normed, as in a prompt.
struct DecodeActivations {
  explicit DecodeActivations(int64_t n_tokens);
  DeviceTensor residual, x, h, q, k, v, logits, weight;
  GemvNorm norm;
};
void run_gemv(cudaStream_t stream, const DecodeActivations& a, DecodeGemv gemv,
              const std::vector<Matrix>& w);

}  // namespace minfer::cuda
