#include "kernels/cuda/bench/decode_products.h"

namespace minfer::cuda {

const char* name_of(DecodeProduct product) {
  constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down", "head"};
  return kNames[int(product)];
}

std::vector<Matrix> matrices_of(TensorPool& pool, const WeightFormat& f, DecodeProduct product) {
  std::vector<Matrix> w;
  switch (product) {
    case DecodeProduct::Qkv:
      for (int i = 0; i < 3; ++i) w.push_back(pool.matrix(f, kBenchDim, kBenchDim));
      break;
    case DecodeProduct::Output:
      w.push_back(pool.matrix(f, kBenchDim, kBenchDim));
      break;
    case DecodeProduct::GateUp:
      for (int i = 0; i < 2; ++i) w.push_back(pool.matrix(f, kBenchFfnDim, kBenchDim));
      break;
    case DecodeProduct::Down:
      w.push_back(pool.matrix(f, kBenchDim, kBenchFfnDim));
      break;
    case DecodeProduct::Head:
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

void run_product(cudaStream_t stream, const DecodeActivations& a, DecodeProduct product,
                 const std::vector<Matrix>& w, const MatvecTuning& tuning) {
  const bool is_normed = a.x.view().shape[0] > 1;
  const MatvecNorm* const norm = is_normed ? nullptr : &a.norm;
  const Tensor x = is_normed ? a.x : a.residual;
  switch (product) {
    case DecodeProduct::Qkv: {
      const MatvecPart parts[] = {{&w[0], a.q, {}}, {&w[1], a.k, {}}, {&w[2], a.v, {}}};
      return matvec_as(stream, x, norm, parts, Epilogue::Store, tuning);
    }
    case DecodeProduct::Output: {
      const MatvecPart part{&w[0], a.residual, {}};
      return matvec_as(stream, a.q, nullptr, {&part, 1}, Epilogue::Accumulate, tuning);
    }
    case DecodeProduct::GateUp: {
      const MatvecPart parts[] = {{&w[0], a.h, {}}, {&w[1], {}, {}}};
      return matvec_as(stream, x, norm, parts, Epilogue::SwiGlu, tuning);
    }
    case DecodeProduct::Down: {
      const MatvecPart part{&w[0], a.residual, {}};
      return matvec_as(stream, a.h, nullptr, {&part, 1}, Epilogue::Accumulate, tuning);
    }
    case DecodeProduct::Head: {
      const MatvecPart part{&w[0], a.logits, {}};
      return matvec_as(stream, x, norm, {&part, 1}, Epilogue::Store, tuning);
    }
  }
}

}  // namespace minfer::cuda
