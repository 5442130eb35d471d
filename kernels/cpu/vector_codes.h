#pragma once

// The matmul of f32 inputs with quantized weights for one instruction set. quantized_layout.h says
// in which order a dot product is summed.

namespace minfer::cpu {
namespace {

template <int... kIndices, typename F>
inline void unrolled(std::integer_sequence<int, kIndices...>, F&& f) {
  (f.template operator()<kIndices>(), ...);
}

// Calls f.operator()<i>() for each column i of a word of kBits-bit codes.
template <int kBits, typename F>
inline void for_columns(F&& f) {
  unrolled(std::make_integer_sequence<int, 32 / kBits>(), f);
}

// A GEMV of one row takes this many panels at once: the multiply-adds of independent sums hide each
// other's latency.
constexpr int kCodePanels = 2;

// Returns total + scale * sum (+ min * x_sum).
template <typename Scale>
inline F32x16 add_step(F32x16 total, F32x16 sum, const Scale* scales, const Scale* mins,
                       const float* x_sum) {
  total = fma(load(scales), sum, total);
  return mins == nullptr ? total : fma(load(mins), splat(*x_sum), total);
}

template <CodeForm kCodes, typename Scale, int kStep, int kPanels>
void gemv_panels(const MatmulPiece& piece, const PackedCodes& w, const FloatInput& input,
                 int64_t panel) {
  constexpr int kBits = bits_of(kCodes), kColumns = 32 / kBits, kWordBytes = 4 * kPanel;
  const CodeValues<kCodes> values(w);
  const int64_t panel_bytes = packed_panel_bytes(piece.in_dim, kBits);
  const int64_t panel_scales = w.n_groups * kPanel;
  const uint8_t* codes = w.codes + panel * panel_bytes;
  const Scale* const scales = static_cast<const Scale*>(w.scales) + panel * panel_scales;
  const Scale* const mins =
      w.mins == nullptr ? nullptr : static_cast<const Scale*>(w.mins) + panel * panel_scales;
  const float* x = input.x + piece.token_begin * input.stride;
  const float* x_sum = input.sums + piece.token_begin * w.n_steps;
  F32x16 totals[kPanels];
  for (F32x16& total : totals) total = splat(0);
  GroupCursor group(w);
  for (int64_t step = 0; step < w.n_steps; ++step, group.next_step(), ++x_sum) {
    F32x16 sums[kPanels];
    for (F32x16& sum : sums) sum = splat(0);
    for (int c = 0; c < kStep; c += kColumns, x += kColumns, codes += kWordBytes) {
      U32x16 words[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* const from = codes + p * panel_bytes;
        prefetch_codes(from);
        words[p] = load_codes(from);
      }
      for_columns<kBits>([&]<int kColumn>() {
        const F32x16 xv = splat(x[kColumn]);
        for (int p = 0; p < kPanels; ++p) {
          const F32x16 wv = values.template at<code_shift(kBits, kColumn)>(words[p]);
          sums[p] = fma(xv, wv, sums[p]);
        }
      });
    }
    for (int p = 0; p < kPanels; ++p) {
      const int64_t at = p * panel_scales + group.offset;
      totals[p] =
          add_step(totals[p], sums[p], scales + at, mins == nullptr ? nullptr : mins + at, x_sum);
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    write_outputs(piece, piece.token_begin, panel + p, totals[p]);
  }
}

// Writes the values of codes as f32 for columns [0, n_k) of n_panels panels; the panels in `to` are
// kKBlock columns apart.
template <CodeForm kCodes>
void unpack_codes(float* to, const PackedCodes& w, const uint8_t* codes, int64_t panel_bytes,
                  int64_t n_panels, int64_t n_k) {
  constexpr int kBits = bits_of(kCodes), kColumns = 32 / kBits, kWordBytes = 4 * kPanel;
  const CodeValues<kCodes> values(w);
  for (int64_t p = 0; p < n_panels; ++p, to += kKBlock * kPanel, codes += panel_bytes) {
    for (int64_t k = 0; k < n_k; k += kColumns) {
      const U32x16 words = load_codes(codes + k / kColumns * kWordBytes);
      for_columns<kBits>([&]<int kColumn>() {
        store(to + (k + kColumn) * kPanel, values.template at<code_shift(kBits, kColumn)>(words));
      });
    }
  }
}

// Some neighbouring panels with their scales, at the first step of a block of columns.
template <typename Scale>
struct ScaledPanels {
  const Scale *scales, *mins;  // of the first panel
  int64_t n_panels, panel_scales;
  GroupCursor group;
};

// Multiplies n_tokens tokens by one block of n_k columns and adds each of its steps to totals
// [n_tokens][n_panels][kPanel].
template <int kStep, typename Scale>
void add_block(float* totals, ScaledPanels<Scale> panels, const float* w_block,
               const float* x_block, int64_t n_tokens, int64_t n_k, const float* x_sums,
               int64_t n_steps) {
  alignas(64) float sums[kTileTokens * kTilePanels * kPanel];
  const int64_t n_panels = panels.n_panels;
  for (int64_t k = 0; k < n_k; k += kStep, panels.group.next_step(), ++x_sums) {
    multiply(n_tokens, n_panels, sums, w_block + k * kPanel, kKBlock * kPanel, x_block + k, kStep,
             Sums::Replace);
    for (int64_t p = 0; p < n_panels; ++p) {
      const int64_t at = p * panels.panel_scales + panels.group.offset;
      for (int64_t t = 0; t < n_tokens; ++t) {
        const int64_t i = (t * n_panels + p) * kPanel;
        store(totals + i,
              add_step(load(totals + i), load(sums + i), panels.scales + at,
                       panels.mins == nullptr ? nullptr : panels.mins + at, x_sums + t * n_steps));
      }
    }
  }
}

template <CodeForm kCodes, typename Scale, int kStep>
void matmul_panels(const MatmulPiece& piece, const PackedCodes& w, const FloatInput& input) {
  constexpr int kBits = bits_of(kCodes);
  const int64_t n_tokens = piece.token_end - piece.token_begin, cols = w.n_steps * kStep;
  const int64_t panel_bytes = packed_panel_bytes(piece.in_dim, kBits);
  float* const x_block = piece.scratch;                            // [n_tokens, kKBlock]
  float* const w_block = x_block + kMaxMatmulTokens * kKBlock;     // [kTilePanels, kKBlock, kPanel]
  float* const totals = w_block + kTilePanels * kKBlock * kPanel;  // as write_totals reads them
  const int64_t n_totals = (piece.panel_end - piece.panel_begin) * n_tokens * kPanel;
  for (int64_t i = 0; i < n_totals; i += kPanel) store(totals + i, splat(0));
  for (int64_t k0 = 0; k0 < cols; k0 += kKBlock) {
    const int64_t n_k = smaller(kKBlock, cols - k0);
    pack_tokens(x_block, input.x + piece.token_begin * input.stride + k0, input.stride, n_tokens,
                n_k);
    for (int64_t panel = piece.panel_begin, n; panel < piece.panel_end; panel += n) {
      n = group_size(piece.panel_end - panel);
      unpack_codes<kCodes>(w_block, w, w.codes + panel * panel_bytes + k0 * kPanel * kBits / 8,
                           panel_bytes, n, n_k);
      const int64_t panel_scales = w.n_groups * kPanel;
      const ScaledPanels<Scale> panels{
          .scales = static_cast<const Scale*>(w.scales) + panel * panel_scales,
          .mins = w.mins == nullptr ? nullptr
                                    : static_cast<const Scale*>(w.mins) + panel * panel_scales,
          .n_panels = n,
          .panel_scales = panel_scales,
          .group = GroupCursor(w, k0 / kStep)};
      float* const group = totals + (panel - piece.panel_begin) * n_tokens * kPanel;
      for (int64_t t = 0; t < n_tokens; t += kTileTokens) {
        add_block<kStep>(group + t * n * kPanel, panels, w_block, x_block + t * kKBlock,
                         smaller(kTileTokens, n_tokens - t), n_k,
                         input.sums + (piece.token_begin + t) * w.n_steps + k0 / kStep, w.n_steps);
      }
    }
  }
  write_totals(piece, totals);
}

void matmul_codes(const MatmulPiece& piece, const PackedCodes& w, const FloatInput& input) {
  visit_codes(w, [&]<CodeForm kCodes, typename Scale, int kStep>() {
    if (piece.token_end - piece.token_begin > 1) {
      return matmul_panels<kCodes, Scale, kStep>(piece, w, input);
    }
    int64_t panel = piece.panel_begin;
    for (; panel + kCodePanels <= piece.panel_end; panel += kCodePanels) {
      gemv_panels<kCodes, Scale, kStep, kCodePanels>(piece, w, input, panel);
    }
    for (; panel < piece.panel_end; ++panel) {
      gemv_panels<kCodes, Scale, kStep, 1>(piece, w, input, panel);
    }
  });
}

}  // namespace
}  // namespace minfer::cpu
