// The linear layers of the CUDA backend: by GEMV for few rows, else by GEMM, of dequantized weights
// or of int8 codes.

#include <algorithm>

#include "kernels/comm/communicator.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/layer.h"

namespace minfer::cuda {

int64_t CudaBackend::matmul_workspace_bytes(int64_t n_rows,
                                            std::span<const StoredMatrix> matrices) const {
  if (n_rows <= kMaxGemvTokens) return 0;
  int64_t n_bytes = 0;
  const auto add_rows = [&](int64_t n, int64_t in_dim) {
    n_bytes += align_up(n * in_dim, 256) + align_up(n * int64_t{sizeof(float)}, 256);
  };
  if (int8_activations_) add_rows(n_rows, matrices.front().in_dim);
  for (const StoredMatrix& w : matrices) {
    if (!w.groups || !cuda_keeps_groups(w.in_dim, w.groups->group)) continue;
    if (int8_activations_) {
      add_rows(w.out_dim, w.in_dim);
    } else {
      n_bytes += align_up(bytes_of(type_, {w.out_dim, w.in_dim}), 256);
    }
  }
  return n_bytes;
}

std::vector<Tensor> CudaBackend::float_weights(std::span<const Matrix* const> matrices) {
  const auto n_bytes = [&](const Matrix& w) {
    return is_float(w.dtype) ? 0 : align_up(bytes_of(type_, {w.out_dim, w.in_dim}), 256);
  };
  int64_t needed = 0, offset = 0;
  for (const Matrix* w : matrices) needed += n_bytes(*w);
  if (needed > 0) scratch(dequantized_, DType::U8, {needed});
  std::vector<Tensor> weights;
  std::vector<DequantizePart> parts;
  for (const Matrix* w : matrices) {
    weights.push_back(w->storage);
    if (is_float(w->dtype)) continue;
    char* const memory = static_cast<char*>(dequantized_.view().data) + offset;
    weights.back() = {memory, type_, {w->out_dim, w->in_dim}};
    parts.push_back({w, weights.back()});
    offset += n_bytes(*w);
  }
  if (!parts.empty()) dequantize_rows(stream_.get(), parts);
  return weights;
}

bool CudaBackend::are_of_codes(std::span<const Matrix* const> matrices) const {
  return int8_activations_ && std::all_of(matrices.begin(), matrices.end(),
                                          [](const Matrix* w) { return fits_code_rows(*w); });
}

void CudaBackend::run_codes(Tensor x, std::span<const GemvPart> linears, Epilogue epilogue) {
  const auto bytes_of_rows = [](int64_t n, int64_t in_dim) {
    return align_up(n * in_dim, 256) + align_up(n * int64_t{sizeof(float)}, 256);
  };
  int64_t n_bytes = bytes_of_rows(x.shape[0], x.shape[1]);
  for (const GemvPart& p : linears) n_bytes += bytes_of_rows(p.w->out_dim, p.w->in_dim);
  char* memory = static_cast<char*>(scratch(dequantized_, DType::U8, {n_bytes}).data);
  const auto next_rows = [&](int64_t n, int64_t in_dim) {
    const CodeRows rows{{memory, DType::U8, {n, in_dim}},
                        {memory + align_up(n * in_dim, 256), DType::F32, {n}}};
    memory += bytes_of_rows(n, in_dim);
    return rows;
  };
  const CodeRows x_rows = next_rows(x.shape[0], x.shape[1]);
  std::vector<UnpackPart> unpacked;
  std::vector<CodesPart> parts;
  for (const GemvPart& p : linears) {
    unpacked.push_back({p.w, next_rows(p.w->out_dim, p.w->in_dim)});
    parts.push_back({unpacked.back().to, p.out, p.bias});
  }
  unpack_codes(stream_.get(), unpacked);
  quantize_rows(stream_.get(), x_rows, x);
  multiply_codes(stream_.get(), x_rows, parts, epilogue);
}

void CudaBackend::run_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue) {
  if (cublas_) {
    cublas_->gemm(x, parts, epilogue);
  } else {
    gemm(stream_.get(), x, parts, epilogue);
  }
}

void CudaBackend::run_matmuls(Tensor x, std::span<const Matmul> calls) {
  const Epilogue epilogue = calls.front().accumulate ? Epilogue::Accumulate : Epilogue::Store;
  std::vector<GemvPart> packed_parts;
  for (const Matmul& p : calls) packed_parts.push_back({&p.w, p.out, {}});
  if (x.shape[0] <= kMaxGemvTokens) {
    return gemv(stream_.get(), x, nullptr, packed_parts, epilogue);
  }
  std::vector<const Matrix*> matrices;
  for (const Matmul& p : calls) matrices.push_back(&p.w);
  // Logits never use int8 activations, so that they agree with those of a prompt's last token,
  // which go through gemv.
  const bool are_logits = epilogue == Epilogue::Store && calls.front().out.dtype == DType::F32;
  if (!are_logits && are_of_codes(matrices)) return run_codes(x, packed_parts, epilogue);
  const std::vector<Tensor> weights = float_weights(matrices);
  std::vector<GemmPart> parts;
  for (size_t i = 0; i < calls.size(); ++i) parts.push_back({weights[i], calls[i].out, {}});
  run_gemm(x, parts, epilogue);
}

namespace {

Epilogue gated_epilogue(Activation activation) {
  switch (activation) {
    case Activation::Silu:
      return Epilogue::SwiGlu;
    case Activation::GeluErf:
      return Epilogue::GeGluErf;
    case Activation::GeluTanh:
      return Epilogue::GeGluTanh;
    case Activation::ClampedSwiGlu:
      break;
  }
  throw Error(ErrorKind::Internal, cat("a gate with activation ", int(activation)));
}

}  // namespace

void CudaBackend::ffn_hidden(const FfnArgs& a) {
  if (a.gate == nullptr) return Backend::ffn_hidden(a);
  const Epilogue epilogue = gated_epilogue(a.activation);
  const Tensor& x = a.x;
  if (x.shape[0] == 0) return;
  const Linear &gate = *a.gate, &up = a.up;
  const GemvPart packed_parts[] = {{&gate.weight, a.out, gate.bias}, {&up.weight, a.out, up.bias}};
  if (x.shape[0] <= kMaxGemvTokens) {
    return gemv(stream_.get(), x, nullptr, packed_parts, epilogue);
  }
  const Matrix* const matrices[] = {&gate.weight, &up.weight};
  if (are_of_codes(matrices)) return run_codes(x, packed_parts, epilogue);
  const std::vector<Tensor> weights = float_weights(matrices);
  const GemmPart parts[] = {{weights[0], a.out, gate.bias}, {weights[1], a.out, up.bias}};
  run_gemm(x, parts, epilogue);
}

void CudaBackend::add_to_residual(const ResidualArgs& a) {
  const Tensor& x = a.x;
  const Matrix* const matrix = &a.linear.weight;
  const bool is_float_gemm = x.shape[0] > kMaxGemvTokens && !are_of_codes({&matrix, 1});
  if (communicator() != nullptr && is_float_gemm && is_sum_and_rms_norm(a)) {
    std::vector<Tensor> weights;  // made once for all rows
    const auto make = [&](Tensor part, int64_t first_row) {
      if (weights.empty()) weights = float_weights({&matrix, 1});
      const GemmPart of_rows{weights[0], part, {}};
      run_gemm(a.input.rows(first_row, part.shape[0]), {&of_rows, 1}, Epilogue::Store);
    };
    const NormArgs& next = *a.next;
    if (communicator()->all_reduce_made({x, next.out, next.weight, next.eps, make})) return;
  }
  Backend::add_to_residual(a);
}

void CudaBackend::add_part(const ResidualArgs& a, Tensor part) {
  const auto is_fused = [](NormKind kind) { return kind != NormKind::Layer; };
  const NormWeights& post = a.post_norm;
  if (!is_fused(post.kind)) {
    cuda::layer_norm(stream_.get(), part, part, post.weight, post.bias, post.eps);
  }
  const NormArgs* const next = a.next;
  const bool fuses_next = next != nullptr && is_fused(next->kind) && !next->activation;
  add_normed_part(stream_.get(), a.x, part, is_fused(post.kind) ? post : NormWeights{}, a.scale,
                  fuses_next ? next : nullptr);
  if (next != nullptr && !fuses_next) norm(*next);
}

void CudaBackend::matmuls(Tensor x, std::span<const Matmul> calls) {
  MINFER_CHECK(x.shape.rank == 2 && x.dtype == type_, "matmuls: x ", x.dtype, " ", x.shape);
  if (x.shape[0] == 0) return;
  constexpr size_t kMaxParts = 3;
  while (!calls.empty()) {
    const auto other = std::find_if(calls.begin(), calls.end(), [&](const Matmul& p) {
      return p.accumulate != calls.front().accumulate;
    });
    const size_t n = std::min(kMaxParts, static_cast<size_t>(other - calls.begin()));
    run_matmuls(x, calls.first(n));
    calls = calls.subspan(n);
  }
}

}  // namespace minfer::cuda
