#pragma once

// The matmul of f32 inputs with quantized weights for one instruction set. quantized_layout.h says
// in which order a dot product is summed.

namespace minfer::cpu {
namespace {

// How the f32 matmul reads words: those of plain codes as they lie, four columns of others as
// bytes.
template <CodeForm kCodes>
constexpr CodeForm kWordForm = is_plain(kCodes) ? kCodes : CodeForm::U8;

// Calls f.operator()<i>() for each column i of a word of kBits-bit codes.
template <int kBits, typename F>
inline void for_columns(F&& f) {
  unrolled<32 / kBits>(f);
}

// Calls f(words, column) for the words of a step of kPanels panels.
template <CodeForm kCodes, int kStep, int kPanels, typename F>
inline void for_words(const uint8_t* brick, int64_t panel_bytes, int half, F&& f) {
  U32x16 words[kPanels];
  if constexpr (is_plain(kCodes)) {
    constexpr int kColumns = 32 / bits_of(kCodes), kWordBytes = 4 * kPanel;
    brick += half * kStep / kColumns * kWordBytes;
    for (int c = 0; c < kStep; c += kColumns, brick += kWordBytes) {
      for (int p = 0; p < kPanels; ++p) {
        prefetch_codes(brick + p * panel_bytes);
        words[p] = load_codes(brick + p * panel_bytes);
      }
      f(words, c);
    }
  } else {
    for (int p = 0; p < kPanels; ++p) prefetch_step<kCodes, kStep>(brick + p * panel_bytes, half);
    unrolled<kStep / 4>([&]<int kFour>() {
      for (int p = 0; p < kPanels; ++p) {
        words[p] = PlaneStep<kCodes, kStep>(brick + p * panel_bytes, half).template bytes<kFour>();
      }
      f(words, 4 * kFour);
    });
  }
}

// A GEMV of one row takes this many panels at once: the multiply-adds of independent sums hide each
// other's latency.
constexpr int kCodePanels = 2;

// Returns total + scale * sum (+ min * x_sum) for panel p.
template <typename Scales>
inline F32x16 add_step(F32x16 total, F32x16 sum, const Scales& scales, int64_t p,
                       const float* x_sum) {
  total = fma(scales.scale(p), sum, total);
  return scales.has_mins() ? fma(scales.min(p), splat(*x_sum), total) : total;
}

template <CodeForm kCodes, typename Scale, int kStep, int kPanels>
void gemv_panels(const MatmulPiece& piece, const PackedCodes& w, const FloatInput& input,
                 int64_t panel) {
  constexpr int kBits = bits_of(kCodes), kWordBits = bits_of(kWordForm<kCodes>);
  const CodeValues<kWordForm<kCodes>> values(w);
  const int64_t panel_bytes = packed_panel_bytes(piece.in_dim, kBits);
  const uint8_t* const codes = w.codes + panel * panel_bytes;
  const float* x = input.x + piece.token_begin * input.stride;
  const float* x_sum = input.sums + piece.token_begin * w.n_steps;
  F32x16 totals[kPanels];
  for (F32x16& total : totals) total = splat(0);
  ScaleCursor<Scale, kStep> scales(w, panel, 0);
  for (int64_t step = 0; step < w.n_steps; ++step, scales.next_step(), x += kStep, ++x_sum) {
    F32x16 sums[kPanels];
    for (F32x16& sum : sums) sum = splat(0);
    for_words<kCodes, kStep, kPanels>(
        codes + brick_bytes<kStep>(step, kBits), panel_bytes, half_of<kStep>(step),
        [&](const U32x16(&words)[kPanels], int c) {
          for_columns<kWordBits>([&]<int kColumn>() {
            const F32x16 xv = splat(x[c + kColumn]);
            for (int p = 0; p < kPanels; ++p) {
              const F32x16 wv = values.template at<word_shift(kWordBits, kColumn)>(words[p]);
              sums[p] = fma(xv, wv, sums[p]);
            }
          });
        });
    for (int p = 0; p < kPanels; ++p) totals[p] = add_step(totals[p], sums[p], scales, p, x_sum);
  }
  for (int p = 0; p < kPanels; ++p) {
    write_outputs(piece, piece.token_begin, panel + p, totals[p]);
  }
}

// Writes the values of codes as f32 for columns [0, n_k) of n_panels panels; the panels in `to` are
// kKBlock columns apart.
template <CodeForm kCodes, int kStep>
void unpack_codes(float* to, const PackedCodes& w, const uint8_t* codes, int64_t panel_bytes,
                  int64_t n_panels, int64_t n_k) {
  constexpr int kBits = bits_of(kCodes), kWordBits = bits_of(kWordForm<kCodes>);
  const CodeValues<kWordForm<kCodes>> values(w);
  for (int64_t p = 0; p < n_panels; ++p, to += kKBlock * kPanel, codes += panel_bytes) {
    for (int64_t step = 0; step < n_k / kStep; ++step) {
      float* const of_step = to + step * kStep * kPanel;
      for_words<kCodes, kStep, 1>(
          codes + brick_bytes<kStep>(step, kBits), 0, half_of<kStep>(step),
          [&](const U32x16(&words)[1], int c) {
            for_columns<kWordBits>([&]<int kColumn>() {
              store(of_step + (c + kColumn) * kPanel,
                    values.template at<word_shift(kWordBits, kColumn)>(words[0]));
            });
          });
    }
  }
}

// Multiplies n_tokens tokens by one block of n_k columns of n_panels panels and adds each of its
// steps to totals [n_tokens][n_panels][kPanel]; `scales` is at the first one.
template <typename Scale, int kStep>
void add_block(float* totals, ScaleCursor<Scale, kStep> scales, int64_t n_panels,
               const float* w_block, const float* x_block, int64_t n_tokens, int64_t n_k,
               const float* x_sums, int64_t n_steps) {
  alignas(64) float sums[kTileTokens * kTilePanels * kPanel];
  for (int64_t k = 0; k < n_k; k += kStep, scales.next_step(), ++x_sums) {
    multiply(n_tokens, n_panels, sums, w_block + k * kPanel, kKBlock * kPanel, x_block + k, kStep,
             Sums::Replace);
    for (int64_t p = 0; p < n_panels; ++p) {
      for (int64_t t = 0; t < n_tokens; ++t) {
        const int64_t i = (t * n_panels + p) * kPanel;
        store(totals + i,
              add_step(load(totals + i), load(sums + i), scales, p, x_sums + t * n_steps));
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
      unpack_codes<kCodes, kStep>(
          w_block, w, w.codes + panel * panel_bytes + k0 * kPanel * kBits / 8, panel_bytes, n, n_k);
      const ScaleCursor<Scale, kStep> scales(w, panel, k0 / kStep);
      float* const group = totals + (panel - piece.panel_begin) * n_tokens * kPanel;
      for (int64_t t = 0; t < n_tokens; t += kTileTokens) {
        add_block(group + t * n * kPanel, scales, n, w_block, x_block + t * kKBlock,
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
