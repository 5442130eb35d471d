// Matmul of the CPU backend: the forms of its input, and how it is cut into pieces.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pack_levels.h"

namespace minfer::cpu {
namespace {

// One piece of a matvec: a few microseconds of streaming, for which a thread may wait at the end.
constexpr int64_t kMatvecPieceBytes = 64 << 10;

// Sixteen chains, then those in order.
float sum_of(const float* x, int64_t n) {
  float lanes[kPanel] = {}, sum = 0;
  for (int64_t i = 0; i < n; i += kPanel) {
    for (int64_t lane = 0; lane < kPanel; ++lane) lanes[lane] += x[i + lane];
  }
  for (const float lane : lanes) sum += lane;
  return sum;
}

ByteProducts::Matmul product_of(const ByteProducts& products, InputForm form) {
  switch (form) {
    case InputForm::Symmetric:
      return products.symmetric;
    case InputForm::Asymmetric:
      return products.asymmetric;
    case InputForm::Planes:
      return products.planes;
  }
  return nullptr;
}

}  // namespace

template <typename T>
T* CpuBackend::input_memory(DeviceTensor& memory, int64_t n) {
  const int64_t n_bytes = n * int64_t{sizeof(T)};
  if (!memory || memory.view().n_bytes() < n_bytes) memory = allocate(DType::U8, {n_bytes});
  return static_cast<T*>(memory.view().data);
}

FloatInput CpuBackend::float_input(const float* x, int64_t n_rows, int64_t in_dim,
                                   const PackedLevels& w) {
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
  if (w.mins != nullptr) {
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
                                         int64_t step, int zero_level) {
  const InputFormat format{.form = input_form_, .step = step, .zero_level = zero_level};
  const int64_t row_blocks = n_input_blocks(in_dim) * n_planes(format.form);
  auto* const blocks =
      input_memory<InputBlock>(input_blocks_, (n_rows + kSpareInputRows) * row_blocks);
  const ByteProducts& bytes = kernels_.bytes;
  const auto quantize = format.form == InputForm::Planes ? bytes.quantize_planes : bytes.quantize;
  for_ranges(n_rows, 2 * in_dim, [&](int64_t begin, int64_t end) {
    quantize(blocks + begin * row_blocks, x + begin * in_dim, end - begin, in_dim, format);
  });
  return blocks;
}

const float* CpuBackend::rounded_input(const float* x, int64_t n_rows, int64_t in_dim) {
  const InputBlock* const blocks = byte_input(x, n_rows, in_dim, kBrick, 0);
  float* const rounded = input_memory<float>(padded_input_, n_rows * in_dim);
  for_ranges(n_rows, 2 * in_dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < in_dim; ++i) {
        const InputBlock& block = blocks[row * n_input_blocks(in_dim) + i / kBrick];
        rounded[row * in_dim + i] =
            float(block.levels[i % kBrick] + block.minus_zero) * block.scale;
      }
    }
  });
  return rounded;
}

template <typename F>
void CpuBackend::for_matmul_pieces(const MatmulPiece& whole, int64_t weight_bytes, F&& run) {
  const int64_t n_tokens = whole.token_end;
  // With few tokens the weights are streamed: small pieces of panels. With many, pieces are as
  // large as the caches allow, but not so large that one thread waits for another's last piece.
  const int64_t min_pieces = pool_.n_threads() == 1 ? 1 : 4 * pool_.n_threads();
  int64_t step_tokens = std::max<int64_t>(n_tokens, 1), step_panels = kMaxMatmulPanels;
  if (n_tokens < kManyTokens) {
    const int64_t panel_bytes = weight_bytes / whole.panel_end;
    step_panels = std::min({kMaxMatmulPanels, ceil_div(kMatvecPieceBytes, panel_bytes),
                            ceil_div(whole.panel_end, min_pieces)});
    step_panels = align_up(step_panels, kMaxTilePanels);
  } else {
    step_tokens = ceil_div(n_tokens, ceil_div(n_tokens, kMaxMatmulTokens));
    const int64_t token_pieces = ceil_div(n_tokens, step_tokens);
    while (step_panels > kMaxTilePanels &&
           token_pieces * ceil_div(whole.panel_end, step_panels) < min_pieces) {
      step_panels /= 2;
    }
  }
  const int64_t panel_pieces = ceil_div(whole.panel_end, step_panels);
  const int64_t n_pieces = ceil_div(n_tokens, step_tokens) * panel_pieces;
  const double products = double(n_tokens) * double(whole.in_dim) * double(whole.out_dim);
  for_pieces(n_pieces, products, [&](int64_t i, int thread) {
    MatmulPiece piece = whole;
    piece.token_begin = i / panel_pieces * step_tokens;
    piece.token_end = std::min(n_tokens, piece.token_begin + step_tokens);
    piece.panel_begin = i % panel_pieces * step_panels;
    piece.panel_end = std::min(whole.panel_end, piece.panel_begin + step_panels);
    piece.scratch = scratch(thread);
    run(piece);
  });
}

void CpuBackend::matmul(Tensor out, Tensor x, const Matrix& w, bool accumulate) {
  const int64_t n_tokens = n_rows(x);
  MINFER_CHECK(
      x.shape.last() == w.in_dim && out.shape.last() == w.out_dim && n_rows(out) == n_tokens,
      "matmul: x ", x.shape, ", w [", w.out_dim, ", ", w.in_dim, "], out ", out.shape);
  MatmulPiece whole{.out = out.as<float>(),
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
  const bool rounded = activations_ != Activations::Float;
  if (is_float(w.dtype)) {
    const auto run = w.dtype == DType::F32   ? kernels_.matmul_f32
                     : w.dtype == DType::F16 ? kernels_.matmul_f16
                                             : kernels_.matmul_bf16;
    if (rounded) whole.x = rounded_input(whole.x, n_tokens, w.in_dim);
    return for_matmul_pieces(whole, w.n_bytes, run);
  }
  const PackedLevels levels = packed_levels(w);
  if (!rounded && kernels_.bytes.planes == nullptr) {
    const FloatInput input = float_input(whole.x, n_tokens, w.in_dim, levels);
    return for_matmul_pieces(whole, w.n_bytes, [&](const MatmulPiece& piece) {
      kernels_.matmul_levels(piece, levels, input);
    });
  }
  const InputBlock* const input =
      byte_input(whole.x, n_tokens, w.in_dim, levels.step, levels.zero_level());
  const auto run = product_of(kernels_.bytes, input_form_);
  for_matmul_pieces(whole, w.n_bytes, [&](const MatmulPiece& piece) { run(piece, levels, input); });
}

}  // namespace minfer::cpu
