#include "kernels/cuda/bench/decode_gemvs.h"

namespace minfer::cuda {

const char* name_of(DecodeGemv gemv) {
  constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down", "head"};
  return kNames[int(gemv)];
}

std::vector<Matrix> matrices_of(TensorPool& pool, const WeightFormat& f, DecodeGemv gemv) {
  std::vector<Matrix> w;
  switch (gemv) {
    case DecodeGemv::Qkv:
      for (int i = 0; i < 3; ++i) w.push_back(pool.matrix(f, kBenchDim, kBenchDim));
      break;
    case DecodeGemv::Output:
      w.push_back(pool.matrix(f, kBenchDim, kBenchDim));
      break;
    case DecodeGemv::GateUp:
      for (int i = 0; i < 2; ++i) w.push_back(pool.matrix(f, kBenchFfnDim, kBenchDim));
      break;
    case DecodeGemv::Down:
      w.push_back(pool.matrix(f, kBenchDim, kBenchFfnDim));
      break;
    case DecodeGemv::Head:
      w.push_back(pool.matrix(f, kBenchVocab, kBenchDim));
      break;
  }
  return w;
}

int64_t bytes_of_all(const std::vector<Matrix>& matrices) {
  int64_t n = 0;
  for (const Matrix& m : matrices) n += m.n_bytes;
  return n;
}

int64_t elements_of_all(const std::vector<Matrix>& matrices) {
  int64_t n = 0;
  for (const Matrix& m : matrices) n += m.out_dim * m.in_dim;
  return n;
}

std::string shape_of(const WeightFormat& format, const std::vector<Matrix>& matrices) {
  int64_t n = 0;
  for (const Matrix& m : matrices) n += m.out_dim;
  return cat(n, " x ", matrices[0].in_dim, " ", format.name);
}

DecodeActivations::DecodeActivations(int64_t n_tokens)
    : residual(random_tensor(DType::F32, {n_tokens, kBenchDim})),
      x(random_tensor(DType::F16, {n_tokens, kBenchDim})),
      h(random_tensor(DType::F16, {n_tokens, kBenchFfnDim})),
      q(random_tensor(DType::F16, {n_tokens, kBenchDim})),
      k(random_tensor(DType::F16, {n_tokens, kBenchDim})),
      v(random_tensor(DType::F16, {n_tokens, kBenchDim})),
      logits(allocate_device(DType::F32, {n_tokens, kBenchVocab})),
      weight(random_tensor(DType::F16, {kBenchDim})),
      norm{weight, {}, 1e-5f, true} {}

void run_gemv(cudaStream_t stream, const DecodeActivations& a, DecodeGemv gemv,
              const std::vector<Matrix>& w) {
  const bool is_normed = a.x.view().shape[0] > 1;
  const GemvNorm* const norm = is_normed ? nullptr : &a.norm;
  const Tensor x = is_normed ? a.x : a.residual;
  switch (gemv) {
    case DecodeGemv::Qkv: {
      const GemvPart parts[] = {{&w[0], a.q, {}}, {&w[1], a.k, {}}, {&w[2], a.v, {}}};
      return cuda::gemv(stream, x, norm, parts, Epilogue::Store);
    }
    case DecodeGemv::Output: {
      const GemvPart part{&w[0], a.residual, {}};
      return cuda::gemv(stream, a.q, nullptr, {&part, 1}, Epilogue::Accumulate);
    }
    case DecodeGemv::GateUp: {
      const GemvPart parts[] = {{&w[0], a.h, {}}, {&w[1], {}, {}}};
      return cuda::gemv(stream, x, norm, parts, Epilogue::SwiGlu);
    }
    case DecodeGemv::Down: {
      const GemvPart part{&w[0], a.residual, {}};
      return cuda::gemv(stream, a.h, nullptr, {&part, 1}, Epilogue::Accumulate);
    }
    case DecodeGemv::Head: {
      const GemvPart part{&w[0], a.logits, {}};
      return cuda::gemv(stream, x, norm, {&part, 1}, Epilogue::Store);
    }
  }
}

}  // namespace minfer::cuda
