// Times GEMVs in the shapes of Llama-2-7B, the GEMVs of a decode step in a row (without attention),
// and the dequantization of the same matrices to F16 for GEMMs. Prints one JSON line each, with the
// fraction of the read bandwidth measured in the same process.
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/bench.h"
#include "kernels/cuda/bench/decode_gemvs.h"
#include "kernels/cuda/bench/timing.h"

namespace minfer::cuda {
namespace {

constexpr int kLayers = 32, kLaunches = 64;
using Which = DecodeGemv;

void report(const char* what, const char* format, int64_t n_tokens, double us, double n_bytes,
            double limit) {
  const double rate = n_bytes / (us * 1e-6);
  std::printf(
      "{\"what\":\"%s\",\"format\":\"%s\",\"tokens\":%d,\"us\":%.2f,\"MB\":%.2f,\"GBps\":%.0f,"
      "\"of_read_limit\":%.3f}\n",
      what, format, int(n_tokens), us, n_bytes * 1e-6, rate * 1e-9, rate / limit);
  std::fflush(stdout);
}

// The GEMVs of 32 layers in a row.
void chain(cudaStream_t stream, TensorPool& pool, const DecodeActivations& a, const WeightFormat& f,
           double limit) {
  std::vector<std::vector<Matrix>> sets;
  double n_bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Which which : {Which::Qkv, Which::Output, Which::GateUp, Which::Down}) {
      sets.push_back(matrices_of(pool, f, which));
      n_bytes += double(bytes_of_all(sets.back()));
    }
  }
  const int64_t n_tokens = a.residual.view().shape[0];
  const double us = graph_us(stream, 1, [&] {
    for (size_t i = 0; i < sets.size(); ++i) run_gemv(stream, a, Which(i % 4), sets[i]);
  });
  report("32 layers without attention", f.name, n_tokens, us, n_bytes, limit);
}

// Dequantizes the matrices of a GEMV to F16 in one call; counts bytes read and written. Outs rotate
// too.
void dequantize(cudaStream_t stream, TensorPool& pool, TensorPool& halves, const WeightFormat& f,
                Which which, double limit) {
  std::vector<std::vector<Matrix>> sets;
  std::vector<std::vector<DeviceTensor>> outs;
  double n_bytes = 0;
  for (int i = 0; i < kLaunches; ++i) {
    sets.push_back(matrices_of(pool, f, which));
    outs.emplace_back();
    n_bytes += double(bytes_of_all(sets.back()));
    for (const Matrix& w : sets.back()) {
      outs.back().push_back(halves.take(DType::F16, {w.out_dim, w.in_dim}));
      n_bytes += double(outs.back().back().view().n_bytes());
    }
  }
  const double us = graph_us(stream, kLaunches, [&] {
    for (size_t i = 0; i < sets.size(); ++i) {
      std::vector<DequantizePart> parts;
      for (size_t j = 0; j < sets[i].size(); ++j) parts.push_back({&sets[i][j], outs[i][j]});
      dequantize_rows(stream, parts);
    }
  });
  const std::string what = std::string("dequantize ") + name_of(which);
  report(what.c_str(), f.name, 0, us, n_bytes / kLaunches, limit);
}

void run() {
  use_device(0);
  const Stream stream = make_stream();
  const double limit = measure_cuda_read_bandwidth(0);
  TensorPool pool(int64_t{13'500'000'000} / 256 * 256);
  std::printf("{\"what\":\"read limit\",\"GBps\":%.0f}\n", limit * 1e-9);

  TensorPool halves(int64_t{1} << 31);
  for (const WeightFormat& f : {kInt8Weights, kInt4Weights, kQ4KWeights, kMxfp4Weights}) {
    for (const Which which : kDecodeGemvs) {
      dequantize(stream.get(), pool, halves, f, which, limit);
    }
  }
  for (const int64_t n_tokens : {int64_t{1}, int64_t{2}, int64_t{4}, kMaxGemvTokens}) {
    const DecodeActivations a(n_tokens);
    for (const WeightFormat& f :
         {kF16Weights, kInt8Weights, kInt4Weights, kQ4KWeights, kMxfp4Weights}) {
      for (const Which which : kDecodeGemvs) {
        std::vector<std::vector<Matrix>> sets;
        for (int i = 0; i < kLaunches; ++i) sets.push_back(matrices_of(pool, f, which));
        const double us = graph_us(stream.get(), kLaunches, [&] {
          for (const auto& w : sets) run_gemv(stream.get(), a, which, w);
        });
        report(name_of(which), f.name, n_tokens, us, double(bytes_of_all(sets[0])), limit);
      }
    }
    for (const WeightFormat& f :
         {kF16Weights, kInt8Weights, kInt4Weights, kQ4KWeights, kMxfp4Weights})
      chain(stream.get(), pool, a, f, limit);
  }
}

}  // namespace
}  // namespace minfer::cuda

int main() {
  try {
    minfer::cuda::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
