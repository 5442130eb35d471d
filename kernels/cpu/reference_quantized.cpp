// Matmuls with quantized weights in plain loops. quantized_layout.h has the order of every sum;
// here multiplications and additions are not fused.

#include "kernels/cpu/reference_quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace minfer::cpu {
namespace {

// The codes of one step of a panel, [step][kPanel]; for those of a table, entry + 128.
void unpack_step(uint8_t* to, const PackedCodes& w, const uint8_t* panel, int64_t step) {
  for (int64_t k = 0; k < w.step; ++k) {
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int code = code_at(panel, w.bits, lane, step * w.step + k);
      to[k * kPanel + lane] = uint8_t(w.table != nullptr ? w.table[code] + 128 : code);
    }
  }
}

// Calls `add` for each step of each panel and each token, and writes the totals.
//   add  (total [kPanel], token, step, codes [step][kPanel], scales [kPanel], mins or null)
template <typename Add>
void matmul(const MatmulPiece& piece, const PackedCodes& w, Add&& add) {
  const int64_t n_tokens = piece.token_end - piece.token_begin;
  for (int64_t panel = piece.panel_begin; panel < piece.panel_end; ++panel) {
    float* const totals = piece.scratch;  // [n_tokens][kPanel]
    std::fill(totals, totals + n_tokens * kPanel, 0.0f);
    const uint8_t* const codes = w.codes + panel * packed_panel_bytes(piece.in_dim, w.bits);
    for (int64_t step = 0; step < w.n_steps; ++step) {
      uint8_t unpacked[kBrick * kPanel];
      unpack_step(unpacked, w, codes, step);
      float scale[kPanel], min[kPanel];
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        const ScaleAndMin of = scale_at(w, panel, step / w.steps_per_group, lane);
        scale[lane] = of.scale;
        min[lane] = of.min;
      }
      for (int64_t t = 0; t < n_tokens; ++t) {
        add(totals + t * kPanel, piece.token_begin + t, step, unpacked, scale,
            w.has_mins ? min : nullptr);
      }
    }
    const int64_t n_lanes = std::min(kPanel, piece.out_dim - panel * kPanel);
    for (int64_t t = 0; t < n_tokens; ++t) {
      float* const out = piece.out + (piece.token_begin + t) * piece.out_dim + panel * kPanel;
      for (int64_t lane = 0; lane < n_lanes; ++lane) {
        const float total = totals[t * kPanel + lane];
        out[lane] = piece.accumulate ? out[lane] + total : total;
      }
    }
  }
}

// The quantized form of one block: code = round(x * inverse) + zero.
struct BlockScale {
  float scale, inverse, zero;
};

BlockScale block_scale(const float* x, int64_t n, bool asymmetric) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  float magnitude = 0, lowest = 0, highest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return {kNone, 0, 0};
    magnitude = std::max(magnitude, std::abs(x[i]));
    lowest = std::min(lowest, x[i]);
    highest = std::max(highest, x[i]);
  }
  if (magnitude < kSmallestInput) return {0, 0, 0};
  if (!asymmetric) return {magnitude / 127, 127 / magnitude, 0};
  const float range = highest - lowest, inverse = 255 / range;
  if (!std::isfinite(range)) return {kNone, 0, 0};
  return {range / 255, inverse, std::nearbyint(-128 - lowest * inverse)};
}

}  // namespace

void reference_matmul_codes(const MatmulPiece& piece, const PackedCodes& w,
                            const FloatInput& input) {
  const int zero = w.zero_code();
  matmul(piece, w,
         [&](float* total, int64_t t, int64_t step, const uint8_t* codes, const float* scale,
             const float* min) {
           const float* const x = input.x + t * input.stride + step * w.step;
           for (int64_t lane = 0; lane < kPanel; ++lane) {
             float sum = 0;
             for (int64_t k = 0; k < w.step; ++k) {
               sum += x[k] * float(codes[k * kPanel + lane] - zero);
             }
             total[lane] += scale[lane] * sum;
             if (min != nullptr) total[lane] += min[lane] * input.sums[t * w.n_steps + step];
           }
         });
}

// Both int8 forms: the symmetric one has minus_zero 0.
void reference_matmul_int8(const MatmulPiece& piece, const PackedCodes& w,
                           const InputBlock* input) {
  const int zero = w.zero_code();
  const int64_t stride = n_input_blocks(piece.in_dim);
  matmul(piece, w,
         [&](float* total, int64_t t, int64_t step, const uint8_t* codes, const float* scale,
             const float* min) {
           const InputBlock& block = input[t * stride + step * w.step / kBrick];
           const int64_t half = step * w.step % kBrick / kPanel;
           const int8_t* const x = block.codes + half * kPanel;
           for (int64_t lane = 0; lane < kPanel; ++lane) {
             int32_t sum = 0;
             for (int64_t k = 0; k < w.step; ++k) {
               sum += (x[k] + block.minus_zero) * (codes[k * kPanel + lane] - zero);
             }
             total[lane] += scale[lane] * (float(sum) * block.scale);
             if (min != nullptr) total[lane] += min[lane] * block.sum[half];
           }
         });
}

void reference_quantize_input(InputBlock* out, const float* x, int64_t n_rows, int64_t cols,
                              const InputFormat& format) {
  for (int64_t row = 0; row < n_rows; ++row, x += cols) {
    for (int64_t k0 = 0; k0 < cols; k0 += kBrick, ++out) {
      const int64_t n = std::min(kBrick, cols - k0);
      const BlockScale to = block_scale(x + k0, n, format.form == InputForm::Asymmetric);
      out->scale = to.scale;
      out->minus_zero = -int(to.zero);
      int sums[2] = {};
      for (int64_t k = 0; k < kBrick; ++k) {
        const float value = k < n && std::isfinite(x[k0 + k]) ? x[k0 + k] : 0;
        const float code = std::nearbyint(value * to.inverse) + to.zero;
        out->codes[k] = int8_t(std::clamp(code, -128.0f, 127.0f));
        sums[k / kPanel] += out->codes[k] + out->minus_zero;
      }
      if (format.step == kBrick) sums[0] += sums[1];
      for (int half = 0; half < 2; ++half) {
        out->start[half] = -format.zero_code * sums[half];
        out->sum[half] = to.scale * float(sums[half]);
      }
    }
  }
}

}  // namespace minfer::cpu
