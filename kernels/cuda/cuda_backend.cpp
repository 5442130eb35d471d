#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/base/usable_cores.h"
#include "kernels/comm/communicator.h"
#include "kernels/comm/rank_group.h"
#include "kernels/cuda/decode/captured_plan.h"
#include "kernels/cuda/decode/graph/decode_graph.h"
#include "kernels/cuda/decode/graph/decode_rows.h"
#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/layer.h"

namespace minfer {
namespace cuda {
namespace {

HostQuantizedMatrix quantized(const Tensor& host) {
  return to_quantized_matrix(host, usable_cores());
}

}  // namespace

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

// Copies host, of a float type, to the card as the compute type, in `memory`.
Tensor CudaBackend::as_compute_type(const Tensor& host, DeviceTensor& memory) {
  memory = allocate(type_, host.shape);
  if (host.dtype == type_) {
    uploader_.copy(memory.view().data, host.data, host.n_bytes());
  } else {
    const Tensor staged = scratch(staging_, host.dtype, host.shape);
    uploader_.copy(staged.data, host.data, host.n_bytes());
    convert(stream_.get(), memory, staged);
  }
  return memory;
}

DeviceTensor CudaBackend::upload_vector(const Tensor& host) {
  DeviceTensor vector;
  as_compute_type(host, vector);
  return vector;
}

Matrix CudaBackend::pack_matrix(const Tensor& host) {
  MINFER_CHECK(host.shape.rank == 2 && host.n_elements() > 0, "pack_matrix: ", host.shape);
  if (!is_float(host.dtype)) {
    return group_format(host.dtype).products ? pack_products(host)
                                             : pack_matrix(quantized(host).view());
  }
  Matrix matrix;
  matrix.out_dim = host.shape[0];
  matrix.in_dim = host.shape[1];
  matrix.dtype = type_;
  as_compute_type(host, matrix.storage);
  matrix.n_bytes = matrix.storage.view().n_bytes();
  return matrix;
}

Matrix CudaBackend::pack_matrix(const QuantizedMatrix& host) {
  if (!cuda_keeps_groups(host.in_dim(), host.group)) {
    HostTensor values(DType::F32, {host.out_dim(), host.in_dim()});
    for (int64_t row = 0; row < host.out_dim(); ++row) {
      dequantize_row(values.as<float>() + row * host.in_dim(), host, row);
    }
    return pack_matrix(values.view());
  }
  Matrix matrix = allocate_codes(host.codes.dtype, host.scales.dtype, host.asymmetric(),
                                 host.out_dim(), host.in_dim(), host.group, host.table);
  const auto part_bytes = [](const Tensor& t) { return t ? align_up(t.n_bytes(), 256) : 0; };
  const Tensor staged =
      scratch(staging_, DType::U8,
              {part_bytes(host.codes) + part_bytes(host.scales) + part_bytes(host.mins)});
  char* to = static_cast<char*>(staged.data);
  const auto send = [&](const Tensor& part) {
    if (!part) return Tensor();
    const Tensor there{to, part.dtype, part.shape};
    uploader_.copy(to, part.data, part.n_bytes());
    to += part_bytes(part);
    return there;
  };
  const QuantizedMatrix on_device{send(host.codes), send(host.scales), send(host.mins), host.group,
                                  host.table};
  pack_codes(stream_.get(), matrix, on_device, 0);
  return matrix;
}

// GGUF's blocks whose scales are products stay so: Q4_K takes 4.6 bits in place of 6.
Matrix CudaBackend::pack_products(const Tensor& host) {
  const HostQuantizedMatrix q = quantized(host);
  Matrix matrix = allocate_products(host.shape[0], host.shape[1], group_format(host.dtype));
  const Tensor codes = q.codes.view();
  const Tensor staged = scratch(staging_, codes.dtype, codes.shape);
  uploader_.copy(staged.data, codes.data, codes.n_bytes());
  pack_product_codes(stream_.get(), matrix, staged);
  const std::vector<uint8_t> records = packed_records(host);
  const Tensor to = matrix.scales;
  MINFER_CHECK(to.n_bytes() == std::ssize(records), "records of ", records.size(), " bytes");
  uploader_.copy(to.data, records.data(), std::ssize(records));
  return matrix;
}

// Products stay packed: row-major codes would take four or eight bits.
Matrix CudaBackend::pack_table(const Tensor& host) {
  if (is_float(host.dtype) || group_format(host.dtype).products) return pack_matrix(host);
  return pack_table(quantized(host).view());
}

// A row of packed tiles lies in pieces of 64 bytes, each beside a piece of another row. In this
// layout a row is contiguous, so that a lookup reads that row only.
Matrix CudaBackend::pack_table(const QuantizedMatrix& host) {
  if (!cuda_keeps_groups(host.in_dim(), host.group)) return pack_matrix(host);
  Matrix table;
  table.out_dim = host.out_dim();
  table.in_dim = host.in_dim();
  table.group = host.group;
  table.dtype = host.codes.dtype;
  table.table = host.table;
  table.by_rows = true;
  table.code_bits = host.bits();
  table.storage = upload(host.codes);
  table.scales = upload(host.scales);
  if (host.mins) table.mins = upload(host.mins);
  table.n_bytes = table.storage.view().n_bytes() + table.scales.view().n_bytes() +
                  (table.mins ? table.mins.view().n_bytes() : 0);
  return table;
}

// The driver maps pages of 2 MiB. Allocations of up to 1 MiB share them.
int64_t CudaBackend::allocated_bytes(int64_t n_bytes) const {
  constexpr int64_t kPageBytes = int64_t{2} << 20;
  return n_bytes <= kPageBytes / 2 ? n_bytes : align_up(n_bytes, kPageBytes);
}

int64_t CudaBackend::packed_bytes(const StoredMatrix& w) const {
  const CudaMatrixBytes bytes = cuda_packed_bytes(w);
  return checked_add(allocated_bytes(bytes.codes),
                     checked_add(allocated_bytes(bytes.scales), allocated_bytes(bytes.mins)));
}

// The host matrix is staged on the card before it is packed.
int64_t CudaBackend::packing_workspace_bytes(const StoredMatrix& w) const {
  const int64_t n = checked_mul(w.out_dim, w.in_dim);
  if (!w.groups) return w.dtype == type_ ? 0 : bytes_of(w.dtype, n);
  const GroupFormat format = cuda_groups(w);
  if (!cuda_keeps_groups(w.in_dim, format.group)) return bytes_of(DType::F32, n);
  if (format.products) return n / 8 * widened(format).bits + 256;
  const int64_t scale_bytes = bytes_of(format.scales, n / format.group);
  const int64_t min_bytes = format.has_mins ? bytes_of(DType::F32, n / format.group) : 0;
  return n / 8 * format.bits + scale_bytes + min_bytes + 3 * 256;
}

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

// ---- matmul ------------------------------------------------------------------------------------

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

// ---- whole steps -------------------------------------------------------------------------------

std::vector<std::unique_ptr<CapturedStep>> CudaBackend::persistent_steps(
    std::span<const DecodeModel> models) {
  // A norm over the heads of all ranks is left to the operations.
  const auto spans_ranks = [](const DecodeLayer& layer) {
    return layer.spec.qk_norm == QkNorm::WholeWidth;
  };
  if (models.size() > 1 && std::ranges::any_of(models[0].layers, spans_ranks)) return {};
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
  return std::make_unique<DecodeRows>(stream_.get(), type_, model);
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
