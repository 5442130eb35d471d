#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/usable_cores.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pack.h"

namespace minfer {

// Panels of codes consist of whole steps, so a group must too, or be the whole row.
bool cpu_keeps_groups(int64_t in_dim, int64_t group) {
  return group == in_dim || group % (cpu::kBrick / 2) == 0;
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  MINFER_REQUIRE(Usage, options.n_threads >= 0 && options.n_threads <= 1024, options.n_threads,
                 " threads, expected 0 to 1024");
  return std::make_unique<cpu::CpuBackend>(
      cpu::choose_kernels(options.isa), options.n_threads > 0 ? options.n_threads : usable_cores(),
      options.activations);
}

namespace cpu {
namespace {

const float* f32_or_null(const Tensor& x) { return x ? x.as<const float>() : nullptr; }

Activation of(GeluKind kind) {
  return kind == GeluKind::Erf ? Activation::GeluErf : Activation::GeluTanh;
}

Activation of(minfer::Activation activation) {
  return activation == minfer::Activation::Silu ? Activation::Silu : of(gelu_kind(activation));
}

void check_same_shape(const char* op, const Tensor& out, const Tensor& x) {
  MINFER_CHECK(out.shape == x.shape, op, ": x ", x.shape, ", out ", out.shape);
}

void check_vector(const char* op, const Tensor& vector, const Tensor& x) {
  MINFER_CHECK(!vector || vector.shape == Shape{x.shape.last()}, op, ": x ", x.shape, ", vector ",
               vector.shape);
}

}  // namespace

CpuBackend::CpuBackend(const CpuKernels& kernels, int n_threads, Activations activations)
    : kernels_(kernels),
      pool_(n_threads),
      activations_(activations),
      input_form_(activations == Activations::Float  ? InputForm::Planes
                  : activations == Activations::Int8 ? InputForm::Symmetric
                                                     : InputForm::Asymmetric) {
  scratch_ = allocate(DType::F32, {n_threads, kMatmulScratch});
}

std::string CpuBackend::name() const {
  const int n = pool_.n_threads();
  return cat("cpu ", kernels_.name, ", ", n, n == 1 ? " thread" : " threads");
}

float* CpuBackend::scratch(int thread) {
  return scratch_.view().as<float>() + thread * scratch_.view().shape[1];
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

void CpuBackend::download_into(Tensor host, const Tensor& device) {
  MINFER_CHECK(host.dtype == device.dtype && host.shape == device.shape, "download: ", device.dtype,
               " ", device.shape, " into ", host.dtype, " ", host.shape);
  std::memcpy(host.data, device.data, static_cast<size_t>(device.n_bytes()));
}

DeviceTensor CpuBackend::upload_vector(const Tensor& host) { return upload(to_f32_tensor(host)); }

Matrix CpuBackend::pack_matrix(const Tensor& host) {
  MINFER_CHECK(host.shape.rank == 2 && host.n_elements() > 0, "pack_matrix: ", host.shape);
  if (!is_float(host.dtype)) return pack_code_rows(code_rows(host));
  Matrix matrix;
  matrix.out_dim = host.shape[0];
  matrix.in_dim = host.shape[1];
  matrix.dtype = host.dtype;
  matrix.storage = allocate(matrix.dtype, {n_panels(matrix.out_dim), matrix.in_dim, kPanel});
  matrix.n_bytes = matrix.storage.view().n_bytes();
  pool_.parallel_for(n_panels(matrix.out_dim),
                     [&](int64_t panel, int) { pack_panel(matrix.storage, host, panel); });
  return matrix;
}

Matrix CpuBackend::pack_matrix(const QuantizedMatrix& host) {
  MINFER_CHECK(host.out_dim() > 0 && host.in_dim() > 0, "pack_matrix: ", host.codes.shape);
  if (cpu_keeps_groups(host.in_dim(), host.group)) return pack_code_rows(code_rows(host));
  HostTensor values(DType::F32, {host.out_dim(), host.in_dim()});
  pool_.parallel_for(host.out_dim(), [&](int64_t row, int) {
    dequantize_row(values.as<float>() + row * host.in_dim(), host, row);
  });
  return pack_matrix(values.view());
}

Matrix CpuBackend::pack_code_rows(const CodeRows& rows) {
  Matrix matrix = allocate_codes(rows, *this);
  pool_.parallel_for(n_panels(rows.out_dim),
                     [&](int64_t panel, int) { pack_code_panel(matrix, rows, panel); });
  return matrix;
}

int64_t CpuBackend::packed_bytes(const StoredMatrix& w) const {
  const int64_t rows = n_panels(w.out_dim) * kPanel;
  const bool keeps_groups = w.groups && cpu_keeps_groups(w.in_dim, w.groups->group);
  if (!keeps_groups) {
    const DType dtype = w.groups ? DType::F32 : w.dtype;
    return bytes_of(dtype, checked_mul(rows, w.in_dim));
  }
  const GroupFormat& format = *w.groups;
  return checked_add(n_panels(w.out_dim) * packed_panel_bytes(w.in_dim, format.bits),
                     scale_bytes(format, checked_mul(rows, w.in_dim)));
}

KvLayer CpuBackend::make_kv_layer(DType dtype, int64_t n_kv_heads, int64_t head_dim,
                                  int64_t n_pages) {
  static_assert(kPositionBlock == kPagePositions);
  const bool quantized = dtype == DType::U8;
  MINFER_CHECK((quantized || dtype == DType::F16 || dtype == DType::F32) && n_kv_heads > 0 &&
                   head_dim > 0 && n_pages > 0,
               "make_kv_layer: ", dtype, " [", n_kv_heads, ", ", head_dim, "], ", n_pages,
               " pages");
  KvLayer layer;
  layer.n_kv_heads = n_kv_heads;
  layer.head_dim = head_dim;
  layer.n_pages = n_pages;
  layer.dtype = dtype;
  layer.keys = allocate(dtype, {n_pages * n_kv_heads, n_panels(kPositionBlock), head_dim, kPanel});
  layer.values =
      allocate(dtype, {n_pages * n_kv_heads, n_panels(head_dim), kPositionBlock, kPanel});
  if (quantized) {
    const Shape scales{n_pages * n_kv_heads, kPositionBlock};
    layer.key_scales = allocate(DType::F32, scales);
    layer.value_scales = allocate(DType::F32, scales);
  }
  // Kernels read whole vectors, even if only some of their lanes have been written.
  for (const Tensor& part : {layer.keys.view(), layer.values.view(), layer.key_scales.view(),
                             layer.value_scales.view()}) {
    if (part) std::memset(part.data, 0, static_cast<size_t>(part.n_bytes()));
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
      if (is_float(table.dtype)) {
        unpack_row(to + t * dim, table.storage, ids[size_t(t)], dim);
      } else {
        unpack_code_row(to + t * dim, table, ids[size_t(t)]);
      }
    }
  });
}

void CpuBackend::rope(Tensor x, Tensor cos_sin, Batch batch) {
  const Shape& shape = x.shape;
  MINFER_CHECK(shape.rank == 3 && cos_sin.shape.rank == 3 && cos_sin.shape[2] == 2 &&
                   2 * cos_sin.shape[1] <= shape[2] && n_rows_of(batch) == shape[0],
               "rope: x ", shape, ", table ", cos_sin.shape, ", a batch of ", n_rows_of(batch));
  const int64_t row = shape[1] * shape[2], rotary_dim = 2 * cos_sin.shape[1];
  float* data = x.as<float>();
  for (const SequenceRows& rows : batch) {
    MINFER_CHECK(rows.pos >= 0 && rows.end() <= cos_sin.shape[0], "rope: positions ", rows.pos,
                 " to ", rows.end(), " by a table ", cos_sin.shape);
    const float* const angles = cos_sin.as<const float>() + rows.pos * rotary_dim;
    for_ranges(rows.n_rows, row, [&](int64_t begin, int64_t end) {
      kernels_.rope(data + begin * row, angles + begin * rotary_dim, end - begin, shape[1],
                    shape[2], rotary_dim);
    });
    data += rows.n_rows * row;
  }
}

void CpuBackend::scale_and_cap(Tensor x, float scale, float softcap) {
  MINFER_CHECK(softcap >= 0, "scale_and_cap: a cap of ", softcap);
  float* const data = x.as<float>();
  for_ranges(x.n_elements(), 1, [&](int64_t begin, int64_t end) {
    kernels_.scale_and_cap(data + begin, end - begin, scale, softcap);
  });
}

// ---- norms -------------------------------------------------------------------------------------

void CpuBackend::norm(const NormArgs& a) {
  const Tensor &x = a.x, &out = a.out;
  check_same_shape("norm", out, x);
  check_norm_weights(a);
  const bool is_rms = a.kind == NormKind::Rms, is_layer = a.kind == NormKind::Layer;
  const Activation activation = a.activation ? of(gelu_kind(*a.activation)) : Activation::None;
  const int64_t dim = x.shape.last(), n_weights = a.weight ? a.weight.n_elements() / dim : 1;
  float* const to = out.as<float>();
  const float *from = x.as<const float>(), *w = f32_or_null(a.weight);
  const float* const b = f32_or_null(a.bias);
  // Rows with the same weights are normed at once.
  const auto norm_rows = [&](int64_t begin, int64_t n) {
    const int64_t at = begin * dim, of_weights = begin % n_weights * dim;
    if (is_rms) {
      kernels_.rms_norm(to + at, from + at, w + of_weights, n, dim, a.eps);
    } else if (is_layer) {
      kernels_.layer_norm(to + at, from + at, w + of_weights, b, n, dim, a.eps, activation);
    } else if (to != from) {
      std::memcpy(to + at, from + at, static_cast<size_t>(n * dim) * sizeof(float));
    }
  };
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    if (n_weights == 1) return norm_rows(begin, end - begin);
    for (int64_t row = begin; row < end; ++row) norm_rows(row, 1);
  });
}

void CpuBackend::sum_squares(Tensor sums, Tensor x) {
  const int64_t dim = x.shape.last();
  MINFER_CHECK(sums.shape == Shape({n_rows(x), 2}), "sum_squares: x ", x.shape, ", sums ",
               sums.shape);
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = x.as<const float>() + row * dim;
      float sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += from[i] * from[i];
      sums.as<float>()[2 * row] = sum;
      sums.as<float>()[2 * row + 1] = static_cast<float>(dim);
    }
  });
}

void CpuBackend::rms_norm_by_sums(Tensor x, Tensor sums, Tensor weight, float eps) {
  const int64_t dim = x.shape.last();
  MINFER_CHECK(sums.shape == Shape({n_rows(x), 2}) && weight.shape == Shape{dim},
               "rms_norm_by_sums: x ", x.shape, ", sums ", sums.shape, ", weight ", weight.shape);
  const float* const w = weight.as<const float>();
  for_ranges(n_rows(x), dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const of_row = sums.as<const float>() + 2 * row;
      const float scale = 1 / std::sqrt(of_row[0] / of_row[1] + eps);
      float* const to = x.as<float>() + row * dim;
      for (int64_t i = 0; i < dim; ++i) to[i] *= scale * w[i];
    }
  });
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

void CpuBackend::glu(Tensor out, Tensor gate, Tensor up, minfer::Activation activation,
                     const SwiGluClamp& clamp) {
  check_same_shape("glu", out, gate);
  check_same_shape("glu", out, up);
  float* const to = out.as<float>();
  const float *g = gate.as<const float>(), *u = up.as<const float>();
  const bool is_clamped = activation == minfer::Activation::ClampedSwiGlu;
  MINFER_CHECK(!is_clamped || clamp.limit > 0, "glu: a limit of ", clamp.limit);
  for_ranges(out.n_elements(), 1, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    if (is_clamped) {
      kernels_.clamped_swiglu(to + begin, g + begin, u + begin, n, clamp.alpha, clamp.limit);
    } else {
      kernels_.glu(to + begin, g + begin, u + begin, n, of(activation));
    }
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

// ---- results -----------------------------------------------------------------------------------

void CpuBackend::negative_log_likelihoods(std::span<double> nll, Tensor logits,
                                          std::span<const TokenId> targets) {
  const int64_t n = std::ssize(targets), width = logits.shape.last();
  MINFER_CHECK(n_rows(logits) == n && std::ssize(nll) == n, "nll of ", logits.shape, ", ", n,
               " targets");
  for_ranges(n, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float *row = logits.as<const float>() + i * width, *row_end = row + width;
      const double top = double{*std::max_element(row, row_end)};
      double sum = 0;
      for (const float* x = row; x < row_end; ++x) sum += std::exp(double{*x} - top);
      nll[size_t(i)] = top + std::log(sum) - double{row[targets[size_t(i)]]};
    }
  });
}

// ---- control -----------------------------------------------------------------------------------

int64_t CpuBackend::first_non_finite(Tensor x) {
  const float *begin = x.as<const float>(), *end = begin + x.n_elements();
  const float* found = std::find_if_not(begin, end, [](float v) { return std::isfinite(v); });
  return found == end ? -1 : found - begin;
}

}  // namespace cpu
}  // namespace minfer
