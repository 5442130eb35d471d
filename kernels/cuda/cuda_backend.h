#pragma once

#include <vector>

#include "kernels/cuda/gemm/cublas.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/upload.h"

namespace minfer::cuda {

class CapturedStep;

// The backend on one card: it checks shapes, owns the memory that an operation needs besides its
// tensors, and calls the launchers, all on one stream. Activations have the compute type, F16 or
// BF16; the residual stream and logits are F32. Not thread-safe.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options);

  int card() const { return device_.index; }
  const std::string& card_name() const { return device_.name; }
  cudaStream_t stream() const { return stream_.get(); }

  std::string name() const override;
  DType activation_dtype() const override { return type_; }
  Activations activations() const override {
    return int8_activations_ ? Activations::Int8 : Activations::Float;
  }
  std::optional<int64_t> free_device_bytes() const override;
  int64_t preferred_chunk() const override { return kCardChunk; }
  int64_t preferred_decode_rows() const override { return kMaxGemvTokens; }

  DeviceTensor allocate(DType dtype, const Shape& shape) override;
  DeviceTensor upload(const Tensor& host) override;
  void download_into(Tensor host, const Tensor& device) override;
  DeviceTensor upload_vector(const Tensor& host) override;
  Matrix pack_matrix(const Tensor& host) override;
  Matrix pack_matrix(const QuantizedMatrix& host) override;
  Matrix pack_table(const Tensor& host) override;
  Matrix pack_table(const QuantizedMatrix& host) override;
  int64_t allocated_bytes(int64_t n_bytes) const override;
  int64_t packed_bytes(const StoredMatrix& w) const override;
  int64_t packing_workspace_bytes(const StoredMatrix& w) const override;
  int64_t matmul_workspace_bytes(int64_t n_rows, std::span<const StoredMatrix> w) const override;
  int64_t ffn_workspace_bytes(int64_t, int64_t) const override { return 0; }  // fused: none
  KvLayer make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                        int64_t n_pages) override;
  int64_t attention_workspace_bytes(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                    int64_t n_pages) const override;

  void embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) override;
  void rope(Tensor x, Tensor cos_sin, Batch batch) override;

  void norm(const NormArgs& args) override;
  void sum_squares(Tensor sums, Tensor x) override;
  void rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) override;

  void gelu(Tensor out, Tensor x, GeluKind kind) override;
  void bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) override;
  void silu(Tensor out, Tensor x) override;
  void glu(Tensor out, Tensor gate, Tensor up, Activation activation,
           const SwiGluClamp& clamp) override;
  void add(Tensor out, Tensor a, Tensor b) override;
  void add_bias(Tensor out, Tensor x, Tensor bias) override;
  void scale_and_cap(Tensor x, float scale, float softcap) override;
  void softmax(Tensor out, Tensor x) override;

  void matmuls(Tensor x, std::span<const Matmul> calls) override;
  void ffn_hidden(const FfnArgs& args) override;
  void add_to_residual(const ResidualArgs& args) override;

  void route(const RouteArgs& args) override;
  void run_experts(const ExpertsArgs& args) override;
  void combine_experts(const CombineArgs& args) override;
  void index_experts(MoeWeights& weights) override;
  int64_t expert_workspace_bytes(int64_t, const LayerSpec&,
                                 std::span<const StoredMatrix>) const override {
    return 0;  // weights are read as they are stored
  }

  void kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) override;
  void qkv_append(const QkvArgs& args, KvLayer& cache, Tensor cos_sin, Batch batch) override;
  void rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                   Batch batch) override;
  void attention(const AttentionArgs& args) override;

  std::unique_ptr<DecodePlan> plan_decode(std::span<const DecodeModel> models) override;
  std::unique_ptr<RowsPlan> plan_rows(const DecodeModel& model) override;
  void negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                std::span<const TokenId> targets) override;
  int64_t first_non_finite(Tensor x) override;
  void synchronize() override;

 private:
  Matrix pack_products(const Tensor& host);  // of a Q type with products
  void add_part(const ResidualArgs& args, Tensor part) override;
  // The steps of all ranks: one kernel each, of a small model on one card ClusterStep; empty if
  // none supports the model.
  std::vector<std::unique_ptr<CapturedStep>> persistent_steps(std::span<const DecodeModel> models);
  // Whether the fused kernels of a decode step compute the model.
  bool can_fuse(const DecodeModel& model) const;
  Tensor as_compute_type(const Tensor& host, DeviceTensor& memory);
  // Memory that grows to the largest request and is kept; its content is valid for one operation.
  Tensor scratch(DeviceTensor& memory, DType dtype, const Shape& shape);
  // Runs our GEMM, or that of cuBLAS if it is asked for.
  void run_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);
  void run_matmuls(Tensor x, std::span<const Matmul> calls);
  // Whether a GEMM of these weights in one launch runs on int8 codes of both operands.
  bool are_of_codes(std::span<const Matrix* const> matrices) const;
  // Such a launch: quantizes the input per row, turns the weights into rows of int8 codes, and
  // multiplies them.
  void run_codes(Tensor x, std::span<const GemvPart> linears, Epilogue epilogue);
  // Each matrix in the compute type, row-major. Quantized ones are dequantized into scratch, valid
  // until the next call.
  std::vector<Tensor> float_weights(std::span<const Matrix* const> matrices);
  // Where the rows of each sequence of a batch lie in the cache. Copies the page tables to the card
  // if they have changed; valid until the next call.
  std::span<const CachePlace> places_of(Batch batch);
  // The workspace of attention_prefill for this cache, or null; one for all layers and sessions.
  void* prefill_workspace(const KvLayer& cache);

  DeviceProperties device_;
  DType type_;
  bool persistent_decode_, int8_activations_;
  Stream stream_;
  Uploader uploader_;
  std::unique_ptr<Cublas> cublas_;  // null unless asked for
  DeviceTensor staging_, kv_halves_, ids_, found_, nll_;
  DeviceTensor tables_;                    // page tables of a batch, one after another
  std::vector<int32_t> host_tables_;       // their content ...
  const int32_t* table_memory_ = nullptr;  // ... and where it is
  std::vector<CachePlace> places_;
  DeviceTensor dequantized_;  // or unpacked weights of one operation, and its quantized input
};

}  // namespace minfer::cuda
