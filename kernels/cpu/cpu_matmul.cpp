// Matmuls of the CPU backend: the forms of the input, and how the work is cut into pieces.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pack_codes.h"

namespace minfer::cpu {
namespace {

// One piece of a GEMV: a few microseconds of streaming, for which other threads may wait at the
// end.
constexpr int64_t kGemvPieceBytes = 64 << 10;

// Sums in sixteen chains, then adds these in order.
float sum_of(const float* x, int64_t n) {
  float lanes[kPanel] = {}, sum = 0;
  for (int64_t i = 0; i < n; i += kPanel) {
    for (int64_t lane = 0; lane < kPanel; ++lane) lanes[lane] += x[i + lane];
  }
  for (const float lane : lanes) sum += lane;
  return sum;
}

ByteMatmuls::Matmul byte_matmul(const ByteMatmuls& matmuls, InputForm form) {
  switch (form) {
    case InputForm::Symmetric:
      return matmuls.symmetric;
    case InputForm::Asymmetric:
      return matmuls.asymmetric;
    case InputForm::Planes:
      return matmuls.planes;
  }
  return nullptr;
}

CpuKernels::Matmul float_matmul(const CpuKernels& kernels, DType dtype) {
  return dtype == DType::F32   ? kernels.matmul_f32
         : dtype == DType::F16 ? kernels.matmul_f16
                               : kernels.matmul_bf16;
}

}  // namespace

FloatInput CpuBackend::float_input(const float* x, int64_t n_rows, int64_t in_dim,
                                   const PackedCodes& w) {
  const int64_t stride = padded_cols(in_dim);
  FloatInput input{.x = x, .stride = stride, .sums = nullptr};
  if (stride > in_dim) {
    float* const padded = input_memory<float>(padded_input_, n_rows * stride);
    for_ranges(n_rows, 2 * stride, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::copy_n(x + row * in_dim, in_dim, padded + row * stride);
        std::fill(padded + row * stride + in_dim, padded + (row + 1) * stride, 0.0f);
      }
    });
    input.x = padded;
  }
  if (w.has_mins) {
    float* const sums = input_memory<float>(input_sums_, n_rows * w.n_steps);
    for_ranges(n_rows * w.n_steps, w.step, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums[i] = sum_of(input.x + i / w.n_steps * stride + i % w.n_steps * w.step, w.step);
      }
    });
    input.sums = sums;
  }
  return input;
}

const InputBlock* CpuBackend::byte_input(const float* x, int64_t n_rows, int64_t in_dim,
                                         int64_t step, int zero_code) {
  const InputFormat format{.form = input_form_, .step = step, .zero_code = zero_code};
  const int64_t row_blocks = n_input_blocks(in_dim) * n_planes(format.form);
  auto* const blocks =
      input_memory<InputBlock>(input_blocks_, (n_rows + kSpareInputRows) * row_blocks);
  const ByteMatmuls& bytes = kernels_.bytes;
  const auto quantize = format.form == InputForm::Planes ? bytes.quantize_planes : bytes.quantize;
  for_ranges(n_rows, 2 * in_dim, [&](int64_t begin, int64_t end) {
    quantize(blocks + begin * row_blocks, x + begin * in_dim, end - begin, in_dim, format);
  });
  return blocks;
}

// What matmul_input() takes.
int64_t CpuBackend::matmul_workspace_bytes(int64_t n_rows,
                                           std::span<const StoredMatrix> matrices) const {
  using Kind = MatmulInputForm::Kind;
  int64_t n_bytes = 0;
  for (const StoredMatrix& w : matrices) {
    const bool has_codes = w.groups && cpu_keeps_groups(w.in_dim, w.groups->group);
    const auto floats = [&](int64_t n) { return bytes_of(DType::F32, {n_rows, n}); };
    const int64_t blocks = (n_rows + kSpareInputRows) * n_input_blocks(w.in_dim) *
                           n_planes(input_form_) * int64_t{sizeof(InputBlock)};
    int64_t bytes = 0;
    switch (input_kind(has_codes)) {
      case Kind::Float:
        break;
      case Kind::Rounded:
        bytes = blocks + floats(w.in_dim);
        break;
      case Kind::Bytes:
        bytes = blocks;
        break;
      case Kind::Codes: {
        const int64_t stride = padded_cols(w.in_dim), group = w.groups->group;
        if (stride > w.in_dim) bytes += floats(stride);
        if (w.groups->has_mins) bytes += floats(ceil_div(w.in_dim, step_columns(w.in_dim, group)));
        break;
      }
    }
    n_bytes = std::max(n_bytes, bytes);
  }
  return n_bytes;
}

const float* CpuBackend::rounded_input(const float* x, int64_t n_rows, int64_t in_dim) {
  const InputBlock* const blocks = byte_input(x, n_rows, in_dim, kBrick, 0);
  float* const rounded = input_memory<float>(padded_input_, n_rows * in_dim);
  for_ranges(n_rows, 2 * in_dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < in_dim; ++i) {
        const InputBlock& block = blocks[row * n_input_blocks(in_dim) + i / kBrick];
        rounded[row * in_dim + i] = float(block.codes[i % kBrick] + block.minus_zero) * block.scale;
      }
    }
  });
  return rounded;
}

MatmulInputForm::Kind CpuBackend::input_kind(bool has_codes) const {
  using Kind = MatmulInputForm::Kind;
  const bool rounded = activations_ != Activations::Float;
  if (!has_codes) return rounded ? Kind::Rounded : Kind::Float;
  return rounded || kernels_.bytes.planes != nullptr ? Kind::Bytes : Kind::Codes;
}

MatmulInputForm CpuBackend::matmul_input_form(const Matrix& w) const {
  const bool has_codes = !is_float(w.dtype);
  const MatmulInputForm::Kind kind = input_kind(has_codes);
  if (!has_codes) return {kind};
  const PackedCodes codes = packed_codes(w);
  if (kind == MatmulInputForm::Kind::Bytes) return {kind, codes.step, codes.zero_code()};
  return {kind, codes.has_mins ? codes.step : 0};
}

MatmulInput CpuBackend::matmul_input(const MatmulInputForm& form, const float* x, int64_t n_rows,
                                     const Matrix& w) {
  MatmulInput input{.kind = form.kind, .floats = {x, w.in_dim, nullptr}, .blocks = nullptr};
  switch (form.kind) {
    case MatmulInputForm::Kind::Float:
      break;
    case MatmulInputForm::Kind::Rounded:
      input.floats.x = rounded_input(x, n_rows, w.in_dim);
      break;
    case MatmulInputForm::Kind::Codes:
      input.floats = float_input(x, n_rows, w.in_dim, packed_codes(w));
      break;
    case MatmulInputForm::Kind::Bytes:
      input.blocks = byte_input(x, n_rows, w.in_dim, form.step, form.zero_code);
      break;
  }
  return input;
}

MatmulJob CpuBackend::matmul_job(const Matmul& call, int64_t n_tokens) const {
  const Matrix& w = call.w;
  const int64_t panels = n_panels(w.out_dim);
  MatmulJob job{.w = &w,
                .whole = {.out = call.out.as<float>(),
                          .x = nullptr,
                          .w = w.storage.view().data,
                          .in_dim = w.in_dim,
                          .out_dim = w.out_dim,
                          .token_begin = 0,
                          .token_end = n_tokens,
                          .panel_begin = 0,
                          .panel_end = panels,
                          .accumulate = call.accumulate,
                          .scratch = nullptr},
                .codes = is_float(w.dtype) ? PackedCodes{} : packed_codes(w),
                .step_tokens = std::max<int64_t>(n_tokens, 1),
                .step_panels = kMaxMatmulPanels,
                .panel_pieces = 0,
                .n_pieces = 0};
  // With few tokens the weights are streamed, in small pieces of panels. With many, pieces are as
  // large as the caches allow, but small enough that no thread waits long for the last piece of
  // another.
  const int64_t min_pieces = pool_.n_threads() == 1 ? 1 : 4 * pool_.n_threads();
  if (n_tokens < kManyTokens) {
    const int64_t panel_bytes = w.n_bytes / panels;
    job.step_panels = std::min(
        {kMaxMatmulPanels, ceil_div(kGemvPieceBytes, panel_bytes), ceil_div(panels, min_pieces)});
    job.step_panels = align_up(job.step_panels, kMaxTilePanels);
  } else {
    job.step_tokens = ceil_div(n_tokens, ceil_div(n_tokens, kMaxMatmulTokens));
    const int64_t token_pieces = ceil_div(n_tokens, job.step_tokens);
    while (job.step_panels > kMaxTilePanels &&
           token_pieces * ceil_div(panels, job.step_panels) < min_pieces) {
      job.step_panels /= 2;
    }
  }
  job.panel_pieces = ceil_div(panels, job.step_panels);
  job.n_pieces = ceil_div(n_tokens, job.step_tokens) * job.panel_pieces;
  return job;
}

void CpuBackend::run_matmul_piece(const MatmulJob& job, const MatmulInput& input, int64_t i,
                                  int thread) {
  MatmulPiece piece = job.whole;
  piece.x = input.floats.x;
  piece.token_begin = i / job.panel_pieces * job.step_tokens;
  piece.token_end = std::min(job.whole.token_end, piece.token_begin + job.step_tokens);
  piece.panel_begin = i % job.panel_pieces * job.step_panels;
  piece.panel_end = std::min(job.whole.panel_end, piece.panel_begin + job.step_panels);
  piece.scratch = scratch(thread);
  switch (input.kind) {
    case MatmulInputForm::Kind::Float:
    case MatmulInputForm::Kind::Rounded:
      return float_matmul(kernels_, job.w->dtype)(piece);
    case MatmulInputForm::Kind::Codes:
      return kernels_.matmul_codes(piece, job.codes, input.floats);
    case MatmulInputForm::Kind::Bytes:
      return byte_matmul(kernels_.bytes, input_form_)(piece, job.codes, input.blocks);
  }
}

void CpuBackend::matmuls(Tensor x, std::span<const Matmul> calls) {
  const int64_t n_tokens = n_rows(x);
  for (const auto& [out, w, _] : calls) {
    MINFER_CHECK(
        x.shape.last() == w.in_dim && out.shape.last() == w.out_dim && n_rows(out) == n_tokens,
        "matmul: x ", x.shape, ", w [", w.out_dim, ", ", w.in_dim, "], out ", out.shape);
  }
  // Calls next to each other with the same form of the input use one copy of it, and run as one
  // loop.
  for (size_t begin = 0, end = 0; begin < calls.size(); begin = end) {
    const MatmulInputForm form = matmul_input_form(calls[begin].w);
    int64_t n_pieces = 0, out_dims = 0;
    jobs_.clear();
    for (; end < calls.size() && matmul_input_form(calls[end].w) == form; ++end) {
      jobs_.push_back(matmul_job(calls[end], n_tokens));
      n_pieces += jobs_.back().n_pieces;
      out_dims += calls[end].w.out_dim;
    }
    const MatmulInput input = matmul_input(form, x.as<const float>(), n_tokens, calls[begin].w);
    const double multiplications = double(n_tokens) * double(x.shape.last()) * double(out_dims);
    for_pieces(n_pieces, multiplications, [&](int64_t i, int thread) {
      const MatmulJob* job = jobs_.data();
      for (; i >= job->n_pieces; ++job) i -= job->n_pieces;
      run_matmul_piece(*job, input, i, thread);
    });
  }
}

}  // namespace minfer::cpu
