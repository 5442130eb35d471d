#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/cancelled.h"
#include "kernels/base/host_tensor.h"
#include "kernels/base/quantized_matrix.h"
#include "kernels/base/tensor.h"
#include "kernels/operands.h"

namespace minfer {

class Communicator;
class DecodePlan;
class RankGroup;
class RankLinks;
class RowsPlan;
struct CombineArgs;
struct DecodeModel;
struct ExpertsArgs;
struct LayerSpec;
struct MoeArgs;
struct MoeWeights;
struct RouteArgs;

// Throws Internal unless weight, bias and activation suit the kind of norm and the width of x.
void check_norm_weights(const NormArgs& args);

// Throws Internal unless the batch has n_rows rows, the pages of each sequence reach to its last
// row, and everything that a row sees within `window` (0: all) lies in a page of the pool.
void check_batch(const char* operation, Batch batch, int64_t n_rows, const KvLayer& cache,
                 int64_t window = 0);

// How a matmul represents its input. Float keeps it in f32, or, with quantized weights on AVX-512
// VNNI, within 2^-22 of the largest magnitude of each 32 columns. Int8 quantizes each row in blocks
// of 32 columns to code * scale, symmetric: the largest magnitude becomes code +-127. Int8Asym
// quantizes them to (code - zero) * scale, asymmetric: 256 codes reach from the smallest value of
// the block, or 0, to the largest. CudaOptions says what a card does.
enum class Activations { Float, Int8, Int8Asym };

// Rows of one prefill pass, on the CPU and on a card, unless the caller asks for another number.
constexpr int64_t kHostChunk = 512, kCardChunk = 4096;

// The tensor operations of a transformer on one device: the contract that every implementation is
// tested against, in float64, with bounds derived from the formats.
//
// Activations are row-major tensors in the backend's memory, n_tokens rows in a call, of its
// activation type (F32 on the CPU, F16 or BF16 on a card). The residual stream is F32 everywhere:
// embed writes it, norms read it, and matmuls with `accumulate` add to it. Logits are F32 too: a
// matmul may write to an F32 tensor. Every operation accumulates in f32 and rounds once at the
// store. An output may be the same tensor as an input where "in place" is said and their types
// agree; it overlaps no other tensor. A shape that does not fit is a bug of the caller
// (Internal).
//
// The same inputs give the same bits for any number of threads. On the CPU row t of a result does
// not depend on how many rows the call has, so any chunking of a prompt gives the same logits. On a
// card matmuls of few and of many rows use different kernels (GEMV and GEMM), which agree within
// the bound of the type, or of int8 if CudaOptions asks for that.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu avx512, 2 threads": for people
  std::string name_of_ranks() const;     // "2 x cpu avx512, 1 thread"
  virtual DType activation_dtype() const = 0;
  virtual Activations activations() const { return Activations::Float; }  // as it was created
  // Free memory of the card; none if the backend uses the host's memory.
  virtual std::optional<int64_t> free_device_bytes() const { return std::nullopt; }
  // Rows of one prefill pass, unless the caller asks for another number.
  virtual int64_t preferred_chunk() const { return kHostChunk; }
  // How many sequences decode in one pass; the caller splits more of them into several passes.
  virtual int64_t preferred_decode_rows() const { return 64; }

  // Not initialized. Throws Memory, with the number of bytes, if there is not enough.
  virtual DeviceTensor allocate(DType dtype, const Shape& shape) = 0;
  virtual DeviceTensor upload(const Tensor& host) = 0;  // a copy with the same dtype and shape
  // Copies to `host`, which has the same dtype and shape.
  virtual void download_into(Tensor host, const Tensor& device) = 0;
  HostTensor download(const Tensor& device) {
    HostTensor copy(device.dtype, device.shape);
    download_into(copy, device);
    return copy;
  }
  // A vector (norm weight, bias) in the dtype of the activations.
  virtual DeviceTensor upload_vector(const Tensor& host) = 0;
  // host [out, in] of any DType. The CPU keeps every value exactly: float types stay as they are,
  // quantized ones stay codes with scales, or become F32 if it has no layout for such groups. A
  // card keeps codes with scales too (products in their bits, others in 4 or 8); floats, and groups
  // that it has no layout for, become its activation type.
  virtual Matrix pack_matrix(const Tensor& host) = 0;
  virtual Matrix pack_matrix(const QuantizedMatrix& host) = 0;
  // The same for a table that only embed() reads.
  virtual Matrix pack_table(const Tensor& host) { return pack_matrix(host); }
  virtual Matrix pack_table(const QuantizedMatrix& host) { return pack_matrix(host); }
  // The memory that an allocation of n_bytes takes.
  virtual int64_t allocated_bytes(int64_t n_bytes) const { return n_bytes; }
  // The memory that pack_matrix allocates for such a matrix; the memory that packing needs besides,
  // allocated once for all matrices; and the workspace of matmuls() for n_rows rows of an input and
  // these matrices, allocated once for all calls.
  virtual int64_t packed_bytes(const StoredMatrix& w) const = 0;
  virtual int64_t packing_workspace_bytes(const StoredMatrix&) const { return 0; }
  virtual int64_t matmul_workspace_bytes(int64_t /*n_rows*/, std::span<const StoredMatrix>) const {
    return 0;
  }
  // The workspace of add_to_residual() and add_experts() with a post norm or a scale, allocated
  // once for all calls. With several ranks, ranks_workspace_bytes() counts it.
  int64_t residual_workspace_bytes(int64_t n_rows, int64_t n) const;
  // The workspace of ffn_hidden() with a gate, allocated once for all calls.
  virtual int64_t ffn_workspace_bytes(int64_t n_rows, int64_t ffn_dim) const {
    return bytes_of(activation_dtype(), {n_rows, ffn_dim});
  }
  virtual KvLayer make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                int64_t n_pages) = 0;
  // The workspace of attention over caches of this kind.
  virtual int64_t attention_workspace_bytes(DType, int64_t /*n_kv_heads*/, int64_t /*head_dim*/,
                                            int64_t /*n_pages*/) const {
    return 0;
  }

  // ---- embedding and positions ----------------------------------------------------------------
  // out[t] = table[ids[t]]; out [n_tokens, dim]; ids checked by the caller to lie in the table.
  virtual void embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) = 0;
  // Rotates pairs (i, i + rotary_dim / 2) of each head by the angle of its position (half-split):
  //   x       [n_tokens, n_heads, head_dim], in place; elements past rotary_dim stay
  //   cos_sin [max_seq_len, rotary_dim / 2, 2] f32: cosine and sine
  virtual void rope(Tensor x, Tensor cos_sin, Batch batch) = 0;

  // x = scale * x, or c tanh(scale * x / c) if the soft cap c is more than 0; x F32.
  virtual void scale_and_cap(Tensor x, float scale, float softcap = 0) = 0;

  // ---- norms, row by row ----------------------------------------------------------------------
  // Rms:   out = x * weight / sqrt(mean(x^2) + eps)
  // Layer: out = (x - mean) / sqrt(var + eps) * weight + bias, var the mean of squares
  // None:  out = x
  virtual void norm(const NormArgs& args) = 0;
  // An RMSNorm in two steps, for rows of which each rank has some columns: sums[t] = (sum of the
  // squares of x[t], n), and x[t] *= weight / sqrt(sums[t, 0] / sums[t, 1] + eps); x [n_rows, n],
  // sums [n_rows, 2] F32.
  virtual void sum_squares(Tensor sums, Tensor x) = 0;
  virtual void rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) = 0;
  void rms_norm(Tensor out, Tensor x, Tensor weight, float eps) {
    norm({.out = out, .x = x, .weight = weight, .bias = {}, .eps = eps});
  }
  void layer_norm(Tensor out, Tensor x, Tensor weight, Tensor bias, float eps) {
    norm({.out = out, .x = x, .weight = weight, .bias = bias, .kind = NormKind::Layer, .eps = eps});
  }

  // ---- elementwise; all in place --------------------------------------------------------------
  // Erf: x / 2 * (1 + erf(x / sqrt 2)); Tanh: x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  virtual void gelu(Tensor out, Tensor x, GeluKind kind) = 0;
  virtual void bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) = 0;  // gelu(x + bias)
  virtual void silu(Tensor out, Tensor x) = 0;  // x / (1 + exp(-x)), also "Swish"
  // act(gate) * up: a GLU. ClampedSwiGlu, with g = min(gate, limit) and up clamped to +-limit:
  // (up + 1) g / (1 + exp(-alpha g))
  virtual void glu(Tensor out, Tensor gate, Tensor up, Activation activation,
                   const SwiGluClamp& clamp = {}) = 0;
  void swiglu(Tensor out, Tensor gate, Tensor up) { glu(out, gate, up, Activation::Silu); }
  virtual void add(Tensor out, Tensor a, Tensor b) = 0;          // a + b
  virtual void add_bias(Tensor out, Tensor x, Tensor bias) = 0;  // x[t] + bias for each row t
  // out[t] = exp(x[t] - max) / sum; x, out [n_rows, n]
  virtual void softmax(Tensor out, Tensor x) = 0;

  // Several matmuls of one input, with the results of one call after another.
  virtual void matmuls(Tensor x, std::span<const Matmul> calls) = 0;
  void matmul(Tensor out, Tensor x, const Matrix& w, bool accumulate = false) {
    const Matmul call{out, w, accumulate};
    matmuls(x, {&call, 1});
  }

  // out = act(gate(x)) * up(x), or act(up(x)) without a gate; gate and up are linear layers.
  virtual void ffn_hidden(const FfnArgs& args);
  // x += scale * post_norm(linear(input)), then norm(*next), if it is given. With several ranks,
  // each has some of the columns of `input` and of the weight, and linear(input) is summed over the
  // ranks: each rank's part is rounded to the activation type. A post norm is of the sum. With a
  // post norm or a scale, linear(input) is rounded to the activation type on one rank too.
  virtual void add_to_residual(const ResidualArgs& args);
  // out = x wᵀ [n_tokens, n] F32, where each rank has the rows of w that give the columns of `out`
  // from column `begin` on. Every rank gets all of `out`.
  void matmul_of_ranks(Tensor out, Tensor x, const Matrix& w, int64_t begin);

  // ---- mixtures of experts: moe.h has the arguments and the formulas ---------------------------
  // x += scale * post_norm(the mixture of experts of an input), then a norm: the router's logits,
  // the three operations below, and the shared expert. With several ranks, each has some of the
  // hidden elements of every expert, and the outputs are summed over the ranks and rounded as in
  // add_to_residual.
  virtual void add_experts(const MoeArgs& args);
  // Chooses the experts of each row, and sorts the rows by expert.
  virtual void route(const RouteArgs& args);
  // The output of every chosen expert for its rows. Only the chosen experts are read.
  virtual void run_experts(const ExpertsArgs& args);
  // The weighted sum of the experts' outputs for each row, then a norm, if one is given.
  virtual void combine_experts(const CombineArgs& args);
  // Whoever has filled or changed the matrices of the experts calls this before they are used.
  virtual void index_experts(MoeWeights& /*weights*/) {}
  // The workspace of add_experts() for n_rows rows [dim] of a layer, allocated once for all calls.
  // What its matmuls need is not in it: matmul_workspace_bytes() tells it for the router and the
  // shared expert, expert_workspace_bytes() for the matrices of one expert that have one input.
  virtual int64_t moe_workspace_bytes(int64_t n_rows, int64_t dim, const LayerSpec& layer) const;
  virtual int64_t expert_workspace_bytes(int64_t n_rows, const LayerSpec& layer,
                                         std::span<const StoredMatrix> of_one) const;

  // ---- attention ------------------------------------------------------------------------------
  // Writes keys and values of the batch's rows to their pages; k, v [n_tokens, n_kv_heads,
  // head_dim], rounded to the cache's dtype: U8 per head and position.
  virtual void kv_append(KvLayer& cache, Tensor k, Tensor v, Batch batch) = 0;
  // rope of q and of k, unless cos_sin is null, then kv_append. The cache gets the rotated k;
  // whether k is also rotated in place is unspecified.
  virtual void rope_append(KvLayer& cache, Tensor q, Tensor k, Tensor v, Tensor cos_sin,
                           Batch batch);
  // The norm of the heads of x [n_tokens, n_heads, head_dim]; in place. WholeWidth is over the
  // heads of all ranks, each of which must be on one rank alone.
  void norm_heads(Tensor x, QkNorm kind, Tensor weight, float eps);
  // q, k and v as linear layers of x, then their norms.
  void qkv(const QkvArgs& args);
  // qkv, then rope_append. The content of k and v is unspecified afterwards.
  virtual void qkv_append(const QkvArgs& args, KvLayer& cache, Tensor cos_sin, Batch batch);
  // Causal attention: the query at position p of a sequence over its cached positions 0 ... p, or
  // the last `window` of them. Query head h reads key/value head h / (n_heads / n_kv_heads); scores
  // and softmax in f32.
  virtual void attention(const AttentionArgs& args) = 0;

  // ---- results --------------------------------------------------------------------------------
  // nll[i] = log(sum_j exp(logits[i, j])) - logits[i, targets[i]], in host memory; logits [n,
  // vocab_size] F32.
  virtual void negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                        std::span<const TokenId> targets) = 0;
  // Index of the first element of x, F32, that is not a finite number, or -1.
  virtual int64_t first_non_finite(Tensor x) = 0;

  // A fused decode step for one token, or null if this backend has none for the model. Tensors and
  // caches must outlive it and keep their addresses. See decode_plan.h. `models`: as each rank has
  // it, this backend's own first; no rank may be at work.
  virtual std::unique_ptr<DecodePlan> plan_decode(std::span<const DecodeModel> models);
  // The same for the next tokens of several sequences at once, or several of one.
  virtual std::unique_ptr<RowsPlan> plan_rows(const DecodeModel& model);

  // Once the flag is set, work ends early by throwing Cancelled: on the CPU in the middle of an
  // operation, on a card when the host next looks at the flag. The flag must outlive the backend;
  // null: none.
  virtual void cancel_by(const std::atomic<bool>* flag) { cancel_flag_ = flag; }
  void throw_if_cancelled() const {
    if (cancel_flag_ != nullptr && cancel_flag_->load()) throw Cancelled();
  }
  virtual void synchronize() = 0;  // returns when all work is done

  // ---- ranks that share a model (tensor parallelism) ------------------------------------------
  // The connection to the other ranks, valid for every operation; null: there are none.
  void connect(Communicator* communicator) { communicator_ = communicator; }
  // The same with one that the backend keeps.
  void connect(std::shared_ptr<Communicator> communicator) {
    own_communicator_ = std::move(communicator);
    communicator_ = own_communicator_.get();
  }
  // The ranks of this process, which the backend of the first one keeps; null: there is but one.
  void lead(std::shared_ptr<RankGroup> ranks) { ranks_ = std::move(ranks); }
  RankGroup* ranks() const { return ranks_.get(); }
  // All ranks are threads of this process, or each is a process of its own.
  int rank() const;          // the first one of this process
  int n_ranks() const;       // of all processes
  int n_ranks_here() const;  // of this process
  int n_processes_of_host() const;
  Communicator* communicator() const { return communicator_; }
  // The workspace of add_to_residual() and matmul_of_ranks(), allocated once for all calls.
  //   n_rows, n  of the residual stream; n_logits  elements of the logits of this rank, at most
  int64_t ranks_workspace_bytes(int64_t n_rows, int64_t n, int64_t n_logits) const;
  // Allocates it, so that no pass has to.
  void reserve_for_ranks(int64_t n_rows, int64_t n, int64_t n_logits);

 protected:
  // Whether add_to_residual may sum and norm in one pass: an RMSNorm of nothing but the sum.
  static bool is_sum_and_rms_norm(const ResidualArgs& args) {
    const NormArgs* const next = args.next;
    return args.is_plain() && next != nullptr && next->kind == NormKind::Rms && !next->activation &&
           !args.linear.bias;
  }
  // The last step of add_to_residual: x += scale * post_norm(part), then *next. part [n_tokens,
  // out] of the activation type, which may be overwritten. args.input and args.linear are not read.
  virtual void add_part(const ResidualArgs& args, Tensor part);
  // The workspace of ffn_workspace_bytes(), valid until the next call.
  Tensor gate_scratch(DType dtype, const Shape& shape);

 private:
  Tensor part_scratch(DType dtype, const Shape& shape);  // [n_rows, n], up to 4 bytes an element
  // x += part, summed over the ranks, then *next if is_sum_and_rms_norm(args). Returns whether the
  // norm is done. args.input is not read, and of args.linear no more than whether it has a bias.
  bool add_part_of_ranks(const ResidualArgs& args, Tensor part);

  Communicator* communicator_ = nullptr;
  std::shared_ptr<Communicator> own_communicator_;
  std::shared_ptr<RankGroup> ranks_;
  DeviceTensor part_scratch_;  // F32; grows to the largest request
  const std::atomic<bool>* cancel_flag_ = nullptr;
  DeviceTensor gate_;         // of ffn_hidden and run_experts; grows to the largest request
  DeviceTensor moe_scratch_;  // of add_experts; grows to the largest request
};

struct CpuOptions {
  int n_threads = 0;  // 0: one for each core that this process may use
  std::string isa;    // "base", "avx2", "avx512"; empty: $MINFER_CPU_ISA, else the best there is
  Activations activations = Activations::Float;
};

// Whether the CPU backend keeps codes with such groups of columns; else they become F32.
bool cpu_keeps_groups(int64_t in_dim, int64_t group);

// The same on a card, where other groups become its compute type.
bool cuda_keeps_groups(int64_t in_dim, int64_t group);
// The bytes of the three allocations that a packed matrix takes on a card, padding included. Floats
// count as codes. Builds without CUDA have this too.
struct CudaMatrixBytes {
  int64_t codes = 0, scales = 0, mins = 0;
  int64_t sum() const { return codes + scales + mins; }
};
CudaMatrixBytes cuda_packed_bytes(const StoredMatrix& w);
// w.groups as a card keeps it, if it does.
GroupFormat cuda_groups(const StoredMatrix& w);

// Throws Usage if the ISA is unknown or this machine does not have it.
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options = {});

struct CudaOptions {
  int device = 0;
  DType compute_dtype = DType::F16;  // or BF16: of activations and of float weights
  bool persistent_decode = true;     // a decode step is one kernel if the model fits it
  bool use_cublas = false;           // cuBLAS for GEMMs of many tokens, instead of our kernels
  // Int8 (Hopper only): GEMMs of more than 8 tokens use the int8 tensor cores if every weight of
  // the launch is quantized and in_dim is a multiple of 16. Each row of the input is quantized to
  // code * scale, its largest magnitude to +-127. Weights that are not 8-bit and symmetric with one
  // scale per row are requantized on the fly, so that the largest magnitude that the scales and
  // minimums of a row allow becomes +-127. Everything else is as with Float, also the logits.
  Activations activations = Activations::Float;
};

// 0 if this build has no CUDA backend.
int n_cuda_devices();

// Throws Gpu if the build has no CUDA backend or no kernels for this card, or if the machine has no
// such card, no driver or, if asked for, no cuBLAS.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
// Connects CUDA backends over peer memory: join_ranks.
std::unique_ptr<RankLinks> make_card_links(std::span<Backend* const> backends);

}  // namespace minfer
