#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <iterator>

#include "kernels/comm/rank_group.h"
#include "kernels/cuda/decode/captured_plan.h"
#include "kernels/cuda/decode/cluster/cluster_step.h"
#include "kernels/cuda/decode/graph/decode_graph.h"
#include "kernels/cuda/decode/graph/decode_rows.h"
#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer {
namespace cuda {

CudaBackend::CudaBackend(const CudaOptions& options)
    : device_(use_device(options.device)),
      type_(options.compute_dtype),
      persistent_decode_(options.persistent_decode),
      int8_activations_(options.activations == Activations::Int8),
      stream_(make_stream()),
      uploader_(stream_.get()),
      cublas_(options.use_cublas ? std::make_unique<Cublas>(stream_.get()) : nullptr) {
  MINFER_CHECK(type_ == DType::F16 || type_ == DType::BF16, "compute type ", type_);
  MINFER_CHECK(options.activations != Activations::Int8Asym && !(int8_activations_ && cublas_),
               "activations ", int(options.activations), cublas_ ? " with cuBLAS" : "");
  MINFER_REQUIRE(Gpu, !int8_activations_ || can_multiply_codes(), "int8 activations on ",
                 device_.name, ": they need a Hopper card, and a build for it");
}

std::string CudaBackend::name() const {
  return cat("cuda:", device_.index, " ", device_.name, ", ", type_, cublas_ ? ", cuBLAS" : "",
             int8_activations_ ? ", int8 activations" : "");
}

std::optional<int64_t> CudaBackend::free_device_bytes() const {
  size_t free = 0, total = 0;
  MINFER_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

// ---- memory ------------------------------------------------------------------------------------

DeviceTensor CudaBackend::allocate(DType dtype, const Shape& shape) {
  return allocate_device(dtype, shape);
}

DeviceTensor CudaBackend::upload(const Tensor& host) {
  DeviceTensor copy = allocate(host.dtype, host.shape);
  uploader_.copy(copy.view().data, host.data, host.n_bytes());
  return copy;
}

void CudaBackend::download_into(Tensor host, const Tensor& device) {
  MINFER_CHECK(host.dtype == device.dtype && host.shape == device.shape, "download: ", device.dtype,
               " ", device.shape, " into ", host.dtype, " ", host.shape);
  MINFER_CUDA_CHECK(cudaMemcpyAsync(host.data, device.data, static_cast<size_t>(device.n_bytes()),
                                    cudaMemcpyDeviceToHost, stream_.get()));
  synchronize();
}

Tensor CudaBackend::scratch(DeviceTensor& memory, DType dtype, const Shape& shape) {
  const int64_t n_bytes = align_up(bytes_of(dtype, shape), 256);
  if (!memory || memory.view().n_bytes() < n_bytes) {
    memory = {};
    memory = allocate(DType::U8, {n_bytes});
  }
  return {memory.view().data, dtype, shape};
}

// The driver maps pages of 2 MiB. Allocations of up to 1 MiB share them.
int64_t CudaBackend::allocated_bytes(int64_t n_bytes) const {
  constexpr int64_t kPageBytes = int64_t{2} << 20;
  return n_bytes <= kPageBytes / 2 ? n_bytes : align_up(n_bytes, kPageBytes);
}

KvLayer CudaBackend::make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                   int64_t n_pages) {
  MINFER_REQUIRE(Usage, dtype == DType::F16 || dtype == DType::U8, "a KV cache of ", dtype,
                 " on a card (supported there: f16, int8)");
  MINFER_CHECK(n_kv_heads > 0 && head_dim > 0 && n_pages > 0, "make_kv_layer: [", n_kv_heads, ", ",
               head_dim, "], ", n_pages, " pages");
  KvLayer layer;
  layer.n_kv_heads = n_kv_heads;
  layer.head_dim = head_dim;
  layer.n_pages = n_pages;
  layer.dtype = dtype;
  const Shape rows{n_pages, n_kv_heads, kPagePositions, head_dim};
  layer.keys = allocate(dtype, rows);
  layer.values = allocate(dtype, rows);
  if (dtype == DType::U8) {
    // Bulk copies move multiples of 16 bytes (decode/persistent/step_slice.cuh), so they also read
    // scales that are not written yet. No kernel uses those, but they must be initialized.
    for (DeviceTensor* const scales : {&layer.key_scales, &layer.value_scales}) {
      *scales = allocate(DType::F32, {n_pages, n_kv_heads, kPagePositions});
      MINFER_CUDA_CHECK(cudaMemsetAsync(
          scales->view().data, 0, static_cast<size_t>(scales->view().n_bytes()), stream_.get()));
    }
    prefill_workspace(layer);  // allocated before the first token, like all memory of a session
  }
  return layer;
}

// ---- embedding and positions -------------------------------------------------------------------

void CudaBackend::embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) {
  const auto n_tokens = std::ssize(ids);
  MINFER_CHECK(out.shape == Shape({n_tokens, table.in_dim}) && out.dtype == DType::F32,
               "embed: ", n_tokens, " ids of dim ", table.in_dim, ", out ", out.dtype, " ",
               out.shape);
  for (const TokenId id : ids) MINFER_CHECK(id >= 0 && id < table.out_dim, "embed: token ", id);
  const Tensor there = scratch(ids_, DType::F32, {n_tokens});  // 4 bytes each
  uploader_.copy(there.data, ids.data(), n_tokens * int64_t{sizeof(TokenId)});
  gather_rows(stream_.get(), out, table, static_cast<const TokenId*>(there.data));
}

// ---- rows and elements -------------------------------------------------------------------------

void CudaBackend::norm(const NormArgs& a) {
  check_norm_weights(a);
  if (a.kind == NormKind::None) return cuda::convert(stream_.get(), a.out, a.x);
  if (a.kind == NormKind::Rms) {
    return cuda::rms_norm(stream_.get(), a.out, a.x, a.weight, a.eps);
  }
  if (!a.activation) {
    return cuda::layer_norm(stream_.get(), a.out, a.x, a.weight, a.bias, a.eps);
  }
  cuda::layer_norm_gelu(stream_.get(), a.out, a.x, a.weight, a.bias, a.eps,
                        gelu_kind(*a.activation));
}
void CudaBackend::sum_squares(Tensor sums, Tensor x) { cuda::sum_squares(stream_.get(), sums, x); }
void CudaBackend::rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) {
  cuda::rms_norm_by_sums(stream_.get(), x, sums, weight, eps);
}
void CudaBackend::gelu(Tensor out, Tensor x, GeluKind kind) {
  cuda::gelu(stream_.get(), out, x, {}, kind);
}
void CudaBackend::bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) {
  cuda::gelu(stream_.get(), out, x, bias, kind);
}
void CudaBackend::silu(Tensor out, Tensor x) { cuda::silu(stream_.get(), out, x); }
void CudaBackend::glu(Tensor out, Tensor gate, Tensor up, Activation activation,
                      const SwiGluClamp& clamp) {
  cuda::glu(stream_.get(), out, gate, up, activation, clamp);
}
void CudaBackend::scale_and_cap(Tensor x, float scale, float softcap) {
  cuda::scale_and_cap(stream_.get(), x, scale, softcap);
}
void CudaBackend::add(Tensor out, Tensor a, Tensor b) { cuda::add(stream_.get(), out, a, b); }
void CudaBackend::add_bias(Tensor out, Tensor x, Tensor bias) {
  cuda::add_bias(stream_.get(), out, x, bias);
}
void CudaBackend::softmax(Tensor out, Tensor x) { cuda::softmax(stream_.get(), out, x); }

// ---- whole steps -------------------------------------------------------------------------------

namespace {

// Whether both are different cards whose atomic operations reach each other's memory.
bool counts_natively(int card, int other) {
  int is_native = 0, is_native_back = 0;
  if (card == other) return false;
  MINFER_CUDA_CHECK(
      cudaDeviceGetP2PAttribute(&is_native, cudaDevP2PAttrNativeAtomicSupported, card, other));
  MINFER_CUDA_CHECK(
      cudaDeviceGetP2PAttribute(&is_native_back, cudaDevP2PAttrNativeAtomicSupported, other, card));
  return is_native != 0 && is_native_back != 0;
}

}  // namespace

std::vector<std::unique_ptr<CapturedStep>> CudaBackend::persistent_steps(
    std::span<const DecodeModel> models) {
  // A norm over the heads of all ranks is left to the operations.
  const auto spans_ranks = [](const DecodeLayer& layer) {
    return layer.spec.qk_norm == QkNorm::WholeWidth;
  };
  if (models.size() > 1 && std::ranges::any_of(models[0].layers, spans_ranks)) return {};
  if (models.size() == 1) {
    std::vector<std::unique_ptr<CapturedStep>> alone;
    alone.push_back(ClusterStep::make(stream(), type_, models[0]));
    if (alone.front()) return alone;
  }
  std::vector<std::unique_ptr<PersistentStep>> of_ranks;
  CardChange change;
  for (int rank = 0; rank < std::ssize(models); ++rank) {
    auto& backend = rank == 0 ? *this : dynamic_cast<CudaBackend&>(ranks()->backend(rank));
    // Each kernel takes all SMs of a card, and counts in the memory of the others.
    if (rank > 0 && !counts_natively(card(), backend.card())) return {};
    change.to(backend.card());
    auto step = PersistentStep::make(backend.stream(), type_, models[size_t(rank)]);
    if (!step) return {};
    of_ranks.push_back(std::move(step));
  }
  if (models.size() > 1) PersistentStep::connect(of_ranks);
  return {std::make_move_iterator(of_ranks.begin()), std::make_move_iterator(of_ranks.end())};
}

bool CudaBackend::can_fuse(const DecodeModel& model) const {
  const auto takes_experts = [&](const DecodeLayer& layer) {
    return !layer.spec.has_experts() || expert_gemv_takes(layer.weights->moe, layer.spec, type_);
  };
  return DecodeLayers::can_compute(model) && std::ranges::all_of(model.layers, takes_experts);
}

std::unique_ptr<DecodePlan> CudaBackend::plan_decode(std::span<const DecodeModel> models) {
  std::vector<std::unique_ptr<CapturedStep>> steps;
  if (persistent_decode_) steps = persistent_steps(models);
  if (steps.empty()) {
    if (models.size() > 1 || !can_fuse(models[0])) return nullptr;
    steps.push_back(std::make_unique<DecodeGraph>(stream_.get(), type_, models[0]));
  }
  return std::make_unique<CapturedPlan>(std::move(steps));
}

std::unique_ptr<RowsPlan> CudaBackend::plan_rows(const DecodeModel& model) {
  if (!can_fuse(model)) return nullptr;
  std::unique_ptr<CapturedStep> two_tokens;
  if (persistent_decode_) {
    two_tokens = PersistentStep::make(stream_.get(), type_, model, {.n_tokens = 2});
  }
  return std::make_unique<DecodeRows>(stream_.get(), type_, model, std::move(two_tokens));
}

// ---- control -----------------------------------------------------------------------------------

void CudaBackend::negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                           std::span<const TokenId> targets) {
  const int64_t n = std::ssize(targets);
  MINFER_CHECK(logits.shape == Shape({n, logits.shape.last()}) && std::ssize(nll) == n, "nll of ",
               logits.shape, ", ", n, " targets");
  if (n == 0) return;
  const Tensor ids = scratch(ids_, DType::F32, {n});  // 4 bytes each
  uploader_.copy(ids.data, targets.data(), n * int64_t{sizeof(TokenId)});
  const Tensor on_card = scratch(nll_, DType::F32, {n});
  cuda::negative_log_likelihoods(stream_.get(), on_card, logits,
                                 static_cast<const TokenId*>(ids.data));
  const HostTensor host = download(on_card);
  for (int64_t i = 0; i < n; ++i) nll[size_t(i)] = double{host.as<float>()[i]};
}

int64_t CudaBackend::first_non_finite(Tensor x) {
  const Tensor found = scratch(found_, DType::U8, {int64_t{sizeof(int64_t)}});
  find_non_finite(stream_.get(), static_cast<int64_t*>(found.data), x);
  int64_t index = -1;
  MINFER_CUDA_CHECK(
      cudaMemcpyAsync(&index, found.data, sizeof index, cudaMemcpyDeviceToHost, stream_.get()));
  synchronize();
  return index == x.n_elements() ? -1 : index;
}

void CudaBackend::synchronize() { MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

}  // namespace cuda

int n_cuda_devices() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<cuda::CudaBackend>(options);
}

}  // namespace minfer
