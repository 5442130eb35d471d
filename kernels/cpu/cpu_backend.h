#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pack_codes.h"

namespace minfer {
struct Routing;
}

namespace minfer::cpu {

// Number of rows of x: the product of all dims but the last.
inline int64_t n_rows(const Tensor& x) {
  MINFER_CHECK(x.shape.last() > 0, "rows of ", x.shape);
  return x.n_elements() / x.shape.last();
}

// Query rows of one attention piece, for which keys and values are read once.
constexpr int64_t kAttentionRows = 112;

// The form of the input that the kernels of a matrix take.
struct MatmulInputForm {
  enum class Kind { Float, Rounded, Codes, Bytes };
  Kind kind;
  int64_t step = 0;  // Codes with mins, and Bytes
  int zero_code = 0;
  bool operator==(const MatmulInputForm&) const = default;
};

// The input in one of the forms.
struct MatmulInput {
  MatmulInputForm::Kind kind;
  FloatInput floats;         // Codes; for Float and Rounded only x
  const InputBlock* blocks;  // Bytes
};

// One matmul, cut into pieces.
struct MatmulJob {
  const Matrix* w;
  MatmulPiece whole;
  PackedCodes codes;  // quantized weights only
  int64_t step_tokens, step_panels, panel_pieces, n_pieces;
};

// One linear layer of every expert.
struct ExpertMatmul {
  Tensor out;  // [n_pairs, out], by place
  std::function<const Linear&(int64_t expert)> linear_of;
};

// The backend on the host: it checks shapes, splits an operation into pieces for the thread pool
// and calls the kernels of one instruction set. The floating-point environment stays the default
// one: subnormal numbers are kept, on every thread.
class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuKernels& kernels, int n_threads, Activations activations);

  std::string name() const override;
  DType activation_dtype() const override { return DType::F32; }
  Activations activations() const override { return activations_; }

  DeviceTensor allocate(DType dtype, const Shape& shape) override;
  DeviceTensor upload(const Tensor& host) override;
  void download_into(Tensor host, const Tensor& device) override;
  DeviceTensor upload_vector(const Tensor& host) override;
  Matrix pack_matrix(const Tensor& host) override;
  Matrix pack_matrix(const QuantizedMatrix& host) override;
  int64_t packed_bytes(const StoredMatrix& w) const override;
  int64_t matmul_workspace_bytes(int64_t n_rows, std::span<const StoredMatrix> w) const override;
  KvLayer make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                        int64_t n_pages) override;

  void embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) override;
  void rope(Tensor x, Tensor cos_sin, Batch batch) override;
  void scale_and_cap(Tensor x, float scale, float softcap) override;

  void norm(const NormArgs& args) override;
  void sum_squares(Tensor sums, Tensor x) override;
  void rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) override;

  void gelu(Tensor out, Tensor x, GeluKind kind) override;
  void bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) override;
  void silu(Tensor out, Tensor x) override;
  void glu(Tensor out, Tensor gate, Tensor up, minfer::Activation activation,
           const SwiGluClamp& clamp) override;
  void add(Tensor out, Tensor a, Tensor b) override;
  void add_bias(Tensor out, Tensor x, Tensor bias) override;
  void softmax(Tensor out, Tensor x) override;

  void matmuls(Tensor x, std::span<const Matmul> calls) override;

  void route(const RouteArgs& args) override;
  void run_experts(const ExpertsArgs& args) override;
  void combine_experts(const CombineArgs& args) override;
  int64_t moe_workspace_bytes(int64_t n_rows, int64_t dim, const LayerSpec& layer) const override;

  void kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) override;
  void attention(const AttentionArgs& args) override;

  void negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                std::span<const TokenId> targets) override;
  int64_t first_non_finite(Tensor x) override;
  void cancel_by(const std::atomic<bool>* flag) override {
    Backend::cancel_by(flag);
    pool_.cancel_by(flag);
  }
  void synchronize() override {}  // every call returns when it is done

 private:
  // Calls f(begin, end) for ranges of [0, n), on all threads if n * cost is worth it. `cost`:
  // elements read or written for each of the n.
  template <typename F>
  void for_ranges(int64_t n, int64_t cost, F&& f) {
    // Below kSerialElements, waking another thread costs more than it gains. A piece has about
    // kPieceElements.
    constexpr int64_t kSerialElements = 32768, kPieceElements = 8192;
    if (n * cost < kSerialElements) {
      if (n > 0) f(int64_t{0}, n);
      return;
    }
    const int64_t step = std::max<int64_t>(1, kPieceElements / cost);
    pool_.parallel_for(ceil_div(n, step), [&](int64_t piece, int) {
      f(piece * step, std::min(n, (piece + 1) * step));
    });
  }
  // Calls f(piece, thread) for n_pieces pieces of an operation with n_multiplies multiplications,
  // on all threads if that is worth it.
  template <typename F>
  void for_pieces(int64_t n_pieces, double n_multiplies, F&& f) {
    constexpr double kSerialMultiplies = 128 << 10;  // some microseconds
    if (n_multiplies >= kSerialMultiplies) return pool_.parallel_for(n_pieces, f);
    for (int64_t piece = 0; piece < n_pieces; ++piece) f(piece, 0);
  }
  void attend(const AttentionArgs& args, const SequenceRows& sequence);
  Matrix pack_code_rows(const CodeRows& rows);
  void activate_rows(Tensor out, Tensor x, Tensor bias, Activation activation);
  float* scratch(int thread);

  MatmulInputForm::Kind input_kind(bool has_codes) const;  // of a matrix of codes, or of floats
  MatmulInputForm matmul_input_form(const Matrix& w) const;
  // x [n_rows, in_dim] in the form that `w` takes; valid until the next call.
  MatmulInput matmul_input(const MatmulInputForm& form, const float* x, int64_t n_rows,
                           const Matrix& w);
  MatmulJob matmul_job(const Matmul& call, int64_t n_tokens) const;
  void run_matmul_piece(const MatmulJob& job, const MatmulInput& input, int64_t i, int thread);
  FloatInput float_input(const float* x, int64_t n_rows, int64_t in_dim, const PackedCodes& w);
  const InputBlock* byte_input(const float* x, int64_t n_rows, int64_t in_dim, int64_t step,
                               int zero_code);
  const float* rounded_input(const float* x, int64_t n_rows, int64_t in_dim);  // via int8
  void multiply_by_expert(const Tensor& x, const Routing& routing,
                          std::span<const ExpertMatmul> calls);
  template <typename T>
  T* input_memory(DeviceTensor& memory, int64_t n) {  // grows and is kept
    const int64_t n_bytes = n * int64_t{sizeof(T)};
    if (!memory || memory.view().n_bytes() < n_bytes) memory = allocate(DType::U8, {n_bytes});
    return static_cast<T*>(memory.view().data);
  }

  const CpuKernels& kernels_;
  ThreadPool pool_;
  Activations activations_;
  InputForm input_form_;
  std::vector<MatmulJob> jobs_;  // of the current matmul
  DeviceTensor scratch_;         // [n_threads, floats]
  DeviceTensor padded_input_, input_sums_, input_blocks_;
  DeviceTensor expert_rows_;  // the input of run_experts by place
};

}  // namespace minfer::cpu
