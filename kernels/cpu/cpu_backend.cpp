#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pack.h"

namespace minfer {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  MINFER_REQUIRE(Usage, options.n_threads >= 0 && options.n_threads <= 1024, options.n_threads,
                 " threads, expected 0 to 1024");
  return std::make_unique<cpu::CpuBackend>(
      cpu::choose_kernels(options.isa), options.n_threads > 0 ? options.n_threads : usable_cores());
}

namespace cpu {
namespace {

// Elements below which waking another thread costs more than it gains, and per piece above it.
constexpr int64_t kSerialElements = 32768, kPieceElements = 8192;
// One piece of a matvec: some ten microseconds of streaming.
constexpr int64_t kMatvecPieceBytes = 256 << 10;
// Query rows that share one reading of keys and values.
constexpr int64_t kAttentionRows = 112;

const float* f32_or_null(const Tensor& x) { return x ? x.as<const float>() : nullptr; }

Activation of(GeluKind kind) {
  return kind == GeluKind::Erf ? Activation::GeluErf : Activation::GeluTanh;
}

// Rows of x, all but its last dim.
int64_t n_rows(const Tensor& x) {
  MINFER_CHECK(x.shape.last() > 0, "rows of ", x.shape);
  return x.n_elements() / x.shape.last();
}

void check_same_shape(const char* op, const Tensor& out, const Tensor& x) {
  MINFER_CHECK(out.shape == x.shape, op, ": x ", x.shape, ", out ", out.shape);
}

void check_vector(const char* op, const Tensor& vector, const Tensor& x) {
  MINFER_CHECK(!vector || vector.shape == Shape{x.shape.last()}, op, ": x ", x.shape, ", vector ",
               vector.shape);
}

}  // namespace

CpuBackend::CpuBackend(const CpuKernels& kernels, int n_threads)
    : kernels_(kernels), pool_(n_threads) {
  scratch_ = allocate(DType::F32, {n_threads, kMatmulScratch});
}

std::string CpuBackend::name() const {
  const int n = pool_.n_threads();
  return cat("cpu ", kernels_.name, ", ", n, n == 1 ? " thread" : " threads");
}

float* CpuBackend::scratch(int thread) {
  return scratch_.view().as<float>() + thread * scratch_.view().shape[1];
}

template <typename F>
void CpuBackend::for_ranges(int64_t n, int64_t cost, F&& f) {
  if (n * cost < kSerialElements) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kPieceElements / cost);
  pool_.parallel_for(ceil_div(n, step),
                     [&](int64_t piece, int) { f(piece * step, std::min(n, (piece + 1) * step)); });
}

// ---- memory ------------------------------------------------------------------------------------

DeviceTensor CpuBackend::allocate(DType dtype, const Shape& shape) {
  return allocate_tensor(dtype, shape);
}

DeviceTensor CpuBackend::upload(const Tensor& host) {
  DeviceTensor copy = allocate(host.dtype, host.shape);
  std::memcpy(copy.view().data, host.data, static_cast<size_t>(host.n_bytes()));
  return copy;
}

HostTensor CpuBackend::download(const Tensor& device) {
  HostTensor copy(device.dtype, device.shape);
  std::memcpy(copy.view().data, device.data, static_cast<size_t>(device.n_bytes()));
  return copy;
}

DeviceTensor CpuBackend::upload_vector(const Tensor& host) { return upload(to_f32_tensor(host)); }

Matrix CpuBackend::pack_matrix(const Tensor& host) {
  MINFER_CHECK(host.shape.rank == 2 && host.n_elements() > 0, "pack_matrix: ", host.shape);
  Matrix matrix;
  matrix.out_dim = host.shape[0];
  matrix.in_dim = host.shape[1];
  matrix.dtype = is_float(host.dtype) ? host.dtype : DType::F32;
  matrix.storage = allocate(matrix.dtype, {n_panels(matrix.out_dim), matrix.in_dim, kPanel});
  matrix.n_bytes = matrix.storage.view().n_bytes();
  void* const panels = matrix.storage.view().data;
  pool_.parallel_for(n_panels(matrix.out_dim), [&](int64_t panel, int) {
    pack_panels(panels, matrix.dtype, host, panel, panel + 1);
  });
  return matrix;
}

KvLayer CpuBackend::make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                  int64_t capacity) {
  MINFER_CHECK((dtype == DType::F16 || dtype == DType::F32) && n_kv_heads > 0 && head_dim > 0 &&
                   capacity > 0,
               "make_kv_layer: ", dtype, " [", n_kv_heads, ", ", head_dim, "], capacity ",
               capacity);
  KvLayer layer;
  layer.n_kv_heads = n_kv_heads;
  layer.head_dim = head_dim;
  layer.capacity = capacity;
  layer.dtype = dtype;
  layer.keys = allocate(dtype, {n_kv_heads, n_panels(capacity), head_dim, kPanel});
  layer.values = allocate(dtype, {n_kv_heads, n_panels(head_dim), capacity, kPanel});
  // Whole vectors are read, also where only some of their lanes have been written.
  for (const Tensor& part : {layer.keys.view(), layer.values.view()}) {
    std::memset(part.data, 0, static_cast<size_t>(part.n_bytes()));
  }
  const int64_t needed = attention_scratch(kAttentionRows, head_dim);
  if (needed > scratch_.view().shape[1]) {
    scratch_ = allocate(DType::F32, {pool_.n_threads(), needed});
  }
  return layer;
}

// ---- embedding and positions -------------------------------------------------------------------

void CpuBackend::embed(Tensor out, const Matrix& table, std::span<const TokenId> ids) {
  const int64_t n_tokens = int64_t(ids.size()), dim = table.in_dim;
  MINFER_CHECK(out.shape == Shape({n_tokens, dim}), "embed: ", n_tokens, " ids of dim ", dim,
               ", out ", out.shape);
  for (TokenId id : ids) MINFER_CHECK(id >= 0 && id < table.out_dim, "embed: token ", id);
  float* const to = out.as<float>();
  for_ranges(n_tokens, dim, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      unpack_row(to + t * dim, table.storage.view().data, table.dtype, ids[size_t(t)], dim);
    }
  });
}

void CpuBackend::rope(Tensor x, Tensor cos_sin, int64_t pos) {
  const Shape& shape = x.shape;
  MINFER_CHECK(shape.rank == 3 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   2 * cos_sin.shape[1] <= shape[2] && pos >= 0 &&
                   pos + shape[0] <= cos_sin.shape[0],
               "rope: x ", shape, ", table ", cos_sin.shape, ", position ", pos);
  const int64_t row = shape[1] * shape[2], rotary_dim = 2 * cos_sin.shape[1];
  float* const data = x.as<float>();
  const float* const angles = cos_sin.as<const float>() + pos * rotary_dim;
  for_ranges(shape[0], row, [&](int64_t begin, int64_t end) {
    kernels_.rope(data + begin * row, angles + begin * rotary_dim, end - begin, shape[1], shape[2],
                  rotary_dim);
  });
}

// ---- norms -------------------------------------------------------------------------------------

void CpuBackend::rms_norm(Tensor out, Tensor x, Tensor weight, float eps) {
  check_same_shape("rms_norm", out, x);
  check_vector("rms_norm", weight, x);
  const int64_t dim = x.shape.last();
  float* const to = out.as<float>();
  const float *from = x.as<const float>(), *w = weight.as<const float>();
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    kernels_.rms_norm(to + begin * dim, from + begin * dim, w, end - begin, dim, eps);
  });
}

void CpuBackend::norm_rows(Tensor out, Tensor x, Tensor weight, Tensor bias, float eps,
                           Activation activation) {
  check_same_shape("layer_norm", out, x);
  check_vector("layer_norm", weight, x);
  check_vector("layer_norm", bias, x);
  const int64_t dim = x.shape.last();
  float* const to = out.as<float>();
  const float *from = x.as<const float>(), *w = weight.as<const float>(), *b = f32_or_null(bias);
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    kernels_.layer_norm(to + begin * dim, from + begin * dim, w, b, end - begin, dim, eps,
                        activation);
  });
}

void CpuBackend::layer_norm(Tensor out, Tensor x, Tensor weight, Tensor bias, float eps) {
  norm_rows(out, x, weight, bias, eps, Activation::None);
}

void CpuBackend::layer_norm_gelu(Tensor out, Tensor x, Tensor weight, Tensor bias, float eps,
                                 GeluKind kind) {
  norm_rows(out, x, weight, bias, eps, of(kind));
}

// ---- elementwise -------------------------------------------------------------------------------

void CpuBackend::activate_rows(Tensor out, Tensor x, Tensor bias, Activation activation) {
  check_same_shape("activation", out, x);
  check_vector("activation", bias, x);
  const int64_t dim = x.shape.last();
  float* const to = out.as<float>();
  const float *from = x.as<const float>(), *b = f32_or_null(bias);
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    kernels_.activate(to + begin * dim, from + begin * dim, b, end - begin, dim, activation);
  });
}

void CpuBackend::gelu(Tensor out, Tensor x, GeluKind kind) { activate_rows(out, x, {}, of(kind)); }

void CpuBackend::bias_gelu(Tensor out, Tensor x, Tensor bias, GeluKind kind) {
  activate_rows(out, x, bias, of(kind));
}

void CpuBackend::silu(Tensor out, Tensor x) { activate_rows(out, x, {}, Activation::Silu); }

void CpuBackend::add_bias(Tensor out, Tensor x, Tensor bias) {
  activate_rows(out, x, bias, Activation::None);
}

void CpuBackend::swiglu(Tensor out, Tensor gate, Tensor up) {
  check_same_shape("swiglu", out, gate);
  check_same_shape("swiglu", out, up);
  float* const to = out.as<float>();
  const float *g = gate.as<const float>(), *u = up.as<const float>();
  for_ranges(out.n_elements(), 1, [&](int64_t begin, int64_t end) {
    kernels_.swiglu(to + begin, g + begin, u + begin, end - begin);
  });
}

void CpuBackend::add(Tensor out, Tensor a, Tensor b) {
  check_same_shape("add", out, a);
  check_same_shape("add", out, b);
  float* const to = out.as<float>();
  const float *x = a.as<const float>(), *y = b.as<const float>();
  for_ranges(out.n_elements(), 1, [&](int64_t begin, int64_t end) {
    kernels_.add(to + begin, x + begin, y + begin, end - begin);
  });
}

void CpuBackend::softmax(Tensor out, Tensor x) {
  check_same_shape("softmax", out, x);
  const int64_t n = x.shape.last();
  float* const to = out.as<float>();
  const float* const from = x.as<const float>();
  for_ranges(n_rows(x), n, [&](int64_t begin, int64_t end) {
    kernels_.softmax(to + begin * n, from + begin * n, end - begin, n);
  });
}

// ---- matmul ------------------------------------------------------------------------------------

void CpuBackend::matmul(Tensor out, Tensor x, const Matrix& w, bool accumulate) {
  const int64_t n_tokens = n_rows(x);
  MINFER_CHECK(
      x.shape.last() == w.in_dim && out.shape.last() == w.out_dim && n_rows(out) == n_tokens,
      "matmul: x ", x.shape, ", w [", w.out_dim, ", ", w.in_dim, "], out ", out.shape);
  const MatmulPiece whole{.out = out.as<float>(),
                          .x = x.as<const float>(),
                          .w = w.storage.view().data,
                          .in_dim = w.in_dim,
                          .out_dim = w.out_dim,
                          .token_begin = 0,
                          .token_end = n_tokens,
                          .panel_begin = 0,
                          .panel_end = n_panels(w.out_dim),
                          .accumulate = accumulate,
                          .scratch = nullptr};
  const auto run = w.dtype == DType::F32   ? kernels_.matmul_f32
                   : w.dtype == DType::F16 ? kernels_.matmul_f16
                                           : kernels_.matmul_bf16;

  // With few tokens the weights are streamed: small pieces of panels. With many, pieces are as
  // large as the caches allow, but not so large that one thread waits for another's last piece.
  const int64_t min_pieces = pool_.n_threads() == 1 ? 1 : 4 * pool_.n_threads();
  int64_t step_tokens = std::max<int64_t>(n_tokens, 1), step_panels = kMaxMatmulPanels;
  if (n_tokens < kManyTokens) {
    const int64_t panel_bytes = w.n_bytes / whole.panel_end;
    step_panels = std::min({kMaxMatmulPanels, ceil_div(kMatvecPieceBytes, panel_bytes),
                            ceil_div(whole.panel_end, min_pieces)});
    step_panels = align_up(step_panels, n_tokens == 1 ? kMatvecPanels : kMaxTilePanels);
  } else {
    step_tokens = ceil_div(n_tokens, ceil_div(n_tokens, kMaxMatmulTokens));
    const int64_t token_pieces = ceil_div(n_tokens, step_tokens);
    while (step_panels > kMaxTilePanels &&
           token_pieces * ceil_div(whole.panel_end, step_panels) < min_pieces) {
      step_panels /= 2;
    }
  }
  const int64_t panel_pieces = ceil_div(whole.panel_end, step_panels);
  pool_.parallel_for(ceil_div(n_tokens, step_tokens) * panel_pieces, [&](int64_t i, int thread) {
    MatmulPiece piece = whole;
    piece.token_begin = i / panel_pieces * step_tokens;
    piece.token_end = std::min(n_tokens, piece.token_begin + step_tokens);
    piece.panel_begin = i % panel_pieces * step_panels;
    piece.panel_end = std::min(whole.panel_end, piece.panel_begin + step_panels);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

// ---- attention ---------------------------------------------------------------------------------

void CpuBackend::kv_append(KvLayer& cache, Tensor k, Tensor v, int64_t pos) {
  const int64_t n_tokens = k.shape[0];
  const Shape shape{n_tokens, cache.n_kv_heads, cache.head_dim};
  MINFER_CHECK(k.shape == shape && v.shape == shape && pos >= 0 && pos + n_tokens <= cache.capacity,
               "kv_append: k ", k.shape, ", v ", v.shape, ", position ", pos, " of ",
               cache.capacity);
  const KvAppend whole{.keys = cache.keys.view().data,
                       .values = cache.values.view().data,
                       .k = k.as<const float>(),
                       .v = v.as<const float>(),
                       .n_kv_heads = cache.n_kv_heads,
                       .head_dim = cache.head_dim,
                       .capacity = cache.capacity,
                       .pos = pos};
  const auto append = cache.dtype == DType::F16 ? kernels_.kv_append_f16 : kernels_.kv_append_f32;
  for_ranges(n_tokens, 2 * cache.n_kv_heads * cache.head_dim,
             [&](int64_t begin, int64_t end) { append(whole, begin, end); });
}

void CpuBackend::attention(Tensor out, Tensor q, const KvLayer& cache, int64_t pos, float scale) {
  const int64_t n_tokens = q.shape[0], n_heads = q.shape[1], head_dim = cache.head_dim;
  MINFER_CHECK(q.shape == Shape({n_tokens, n_heads, head_dim}) && out.shape == q.shape &&
                   n_heads % cache.n_kv_heads == 0 && pos >= 0 && pos + n_tokens <= cache.capacity,
               "attention: q ", q.shape, ", out ", out.shape, ", ", cache.n_kv_heads,
               " key/value heads of ", head_dim, ", position ", pos, " of ", cache.capacity);
  const int64_t n_group = n_heads / cache.n_kv_heads, rows = n_tokens * n_group;
  const AttentionPiece whole{.out = out.as<float>(),
                             .q = q.as<const float>(),
                             .keys = cache.keys.view().data,
                             .values = cache.values.view().data,
                             .n_heads = n_heads,
                             .n_group = n_group,
                             .head_dim = head_dim,
                             .capacity = cache.capacity,
                             .row_begin = 0,
                             .row_end = rows,
                             .pos = pos,
                             .scale = scale,
                             .scratch = nullptr};
  const auto run = cache.dtype == DType::F16 ? kernels_.attention_f16 : kernels_.attention_f32;
  const int64_t element_bytes = info(cache.dtype).block_bytes;
  const int64_t key_bytes = panel_elements(cache.capacity, head_dim) * element_bytes;
  const int64_t value_bytes = panel_elements(head_dim, cache.capacity) * element_bytes;

  int64_t step = std::min(kAttentionRows, rows);
  while (step > 1 && cache.n_kv_heads * ceil_div(rows, step) < 2 * pool_.n_threads()) {
    step = ceil_div(step, 2);
  }
  pool_.parallel_for(cache.n_kv_heads * ceil_div(rows, step), [&](int64_t i, int thread) {
    const int64_t head = i % cache.n_kv_heads, block = i / cache.n_kv_heads;
    AttentionPiece piece = whole;
    piece.out += head * n_group * head_dim;
    piece.q += head * n_group * head_dim;
    piece.keys = static_cast<const char*>(piece.keys) + head * key_bytes;
    piece.values = static_cast<const char*>(piece.values) + head * value_bytes;
    piece.row_end = rows - block * step;  // the rows that see most positions first
    piece.row_begin = std::max<int64_t>(0, piece.row_end - step);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

}  // namespace cpu
}  // namespace minfer
