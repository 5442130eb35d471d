#pragma once

// Matmul of int8 inputs with quantized weights for one instruction set. quantized_layout.h has the
// order of every sum. Integer sums are exact, so every instruction set has the same ones.

namespace minfer::cpu {
namespace {

// Of many tokens, columns of one pass over them: their inputs stay in the second-level cache, the
// codes of a tile's panels in the first-level cache.
constexpr int64_t kDotColumns = 1024;

// Up to so many tokens the codes of a tile of panels are taken apart anew for each tile of tokens,
// instead of once into memory that every tile then reads: twice as fast for 2 tokens, and 1.1
// to 1.2 times as fast for 32 (docs/benchmarks/cpu.md).
constexpr int64_t kMostStreamedTokens = 32;

// Tokens of a tile, which has a row for each plane of a token.
template <InputForm kForm>
constexpr int kTileTokensOf = kDotRows / n_planes(kForm);

static_assert(kDotRows <= kSpareInputRows);

// The panels of a tile, from a step on: their codes, `panel_bytes` from panel to panel, and scales.
template <typename Scale, int kStep>
struct DotPanels {
  const uint8_t* codes;
  int64_t panel_bytes;
  ScaleCursor<Scale, kStep> scales;

  // Where fewer panels than a tile has are left, which is one: it is multiplied several times.
  void repeat_first() {
    static_assert(kDotPanels <= 2);
    panel_bytes = scales.stride = 0;
  }
};

inline I32x16 splat_columns(const int8_t* codes) {  // the same four columns in each lane
  int32_t word;
  __builtin_memcpy(&word, codes, sizeof word);
  return splat_int(word);
}

// totals[t][p][lane] += scaled dot products of steps [step_begin, step_end), for kTokens rows of
// input blocks `input_stride` apart. The tile has a row of sums for each plane of a token.
//   kStreams  the panels come from memory, in order, so that they are prefetched
template <CodeForm kCodes, typename Scale, int kStep, InputForm kForm, int kTokens, bool kStreams>
[[gnu::noinline]] void dot_tile(float* totals, DotPanels<Scale, kStep> panels, const PackedCodes& w,
                                const InputBlock* input, int64_t input_stride, int64_t step_begin,
                                int64_t step_end) {
  constexpr int kBits = bits_of(kCodes), kColumns = 32 / kBits, kWordBytes = 4 * kPanel;
  constexpr int kPlanes = n_planes(kForm), kRows = kTokens * kPlanes, kPanels = kDotPanels;
  constexpr bool kAsymmetric = kForm == InputForm::Asymmetric;
  constexpr int64_t kStepsAhead = kGemvPrefetchBytes / (kStep * kPanel * kBits / 8);
  F32x16 total[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kPanels; ++p) total[t][p] = load(totals + (t * kPanels + p) * kPanel);
  }
  const ByteCodes<kCodes> bytes(w);
  ScaleCursor<Scale, kStep>& scales = panels.scales;
  for (int64_t step = step_begin; step < step_end; ++step, scales.next_step()) {
    const InputBlock* const blocks = input + step * kStep / kBrick * kPlanes;
    const auto block_of = [&](int row) -> const InputBlock& {
      return blocks[row / kPlanes * input_stride + row % kPlanes];
    };
    const int half = half_of<kStep>(step);
    // Past the end of these panels, it prefetches the next ones.
    const int64_t ahead = kGemvPrefetchBytes +
                          (step < step_end - kStepsAhead ? 0 : (kPanels - 1) * panels.panel_bytes);
    I32x16 sum[kRows][kPanels], code_sum[kPanels];
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) sum[r][p] = splat_int(block_of(r).start[half]);
    }
    for (int p = 0; p < kPanels; ++p) code_sum[p] = splat_int(0);
    const auto add_columns = [&](const U32x16(&codes)[kPanels], int column) {
      for (int r = 0; r < kRows; ++r) {
        const I32x16 x = splat_columns(block_of(r).codes + half * kStep + column);
        for (int p = 0; p < kPanels; ++p) sum[r][p] = add_dot(sum[r][p], codes[p], x);
      }
      if constexpr (kAsymmetric) {
        const I32x16 ones = splat_int(0x01010101);
        for (int p = 0; p < kPanels; ++p) code_sum[p] = add_dot(code_sum[p], codes[p], ones);
      }
    };
    if constexpr (is_plain(kCodes)) {
      for (int c = 0; c < kStep; c += kColumns, panels.codes += kWordBytes) {
        U32x16 words[kPanels], codes[kPanels];
        for (int p = 0; p < kPanels; ++p) {
          const uint8_t* const from = panels.codes + p * panels.panel_bytes;
          if constexpr (kStreams) prefetch_codes(from, ahead);
          words[p] = load_codes(from);
        }
        if constexpr (kBits == 8) {
          add_columns(words, c);
        } else {
          for (int p = 0; p < kPanels; ++p) codes[p] = bytes.low(words[p]);
          add_columns(codes, c);
          for (int p = 0; p < kPanels; ++p) codes[p] = bytes.high(words[p]);
          add_columns(codes, c + 4);
        }
      }
    } else {
      const uint8_t* const brick = panels.codes + brick_bytes<kStep>(step - step_begin, kBits);
      for (int p = 0; kStreams && p < kPanels; ++p) {
        prefetch_step<kCodes, kStep>(brick + p * panels.panel_bytes, half, ahead);
      }
      unrolled<kStep / 4>([&]<int kFour>() {
        U32x16 codes[kPanels];
        for (int p = 0; p < kPanels; ++p) {
          const PlaneStep<kCodes, kStep> of_step(brick + p * panels.panel_bytes, half);
          codes[p] = of_step.template bytes<kFour>();
        }
        add_columns(codes, 4 * kFour);
      });
    }
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kStreams) scales.prefetch(p + kPanels);  // those of the next panels
      const F32x16 scale = scales.scale(p);
      for (int r = 0; r < kRows; ++r) {
        F32x16& to = total[r / kPlanes][p];
        if constexpr (kAsymmetric) {
          sum[r][p] = add_dot(sum[r][p], code_sum[p], splat_int(block_of(r).minus_zero));
        }
        to = fma(to_float(sum[r][p]), scale * splat(block_of(r).scale), to);
      }
      if (scales.has_mins()) {
        const F32x16 min = scales.min(p);
        for (int r = 0; r < kRows; ++r) {
          F32x16& to = total[r / kPlanes][p];
          to = fma(min, splat(block_of(r).sum[half]), to);
        }
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kPanels; ++p) store(totals + (t * kPanels + p) * kPanel, total[t][p]);
  }
}

// The panels from `panel` on, at a step that begins a brick.
template <typename Scale, int kStep>
inline DotPanels<Scale, kStep> panels_at(const MatmulPiece& piece, const PackedCodes& w,
                                         int64_t panel, int64_t step) {
  const int64_t panel_bytes = packed_panel_bytes(piece.in_dim, w.bits);
  return {.codes = w.codes + panel * panel_bytes + brick_bytes<kStep>(step, w.bits),
          .panel_bytes = panel_bytes,
          .scales = ScaleCursor<Scale, kStep>(w, panel, step)};
}

// Up to kTokens tokens of a piece, from `token` on, times `n` panels of a tile.
//   rows  their input, `stride` blocks a token; of kTokens tokens
template <CodeForm kCodes, typename Scale, int kStep, InputForm kForm, int kTokens>
void dot_streamed_tile(const MatmulPiece& piece, const PackedCodes& w, const InputBlock* rows,
                       int64_t stride, int64_t token, int64_t panel, int64_t n) {
  alignas(64) float totals[kTokens * kDotPanels * kPanel] = {};
  auto panels = panels_at<Scale, kStep>(piece, w, panel, 0);
  if (n < kDotPanels) panels.repeat_first();
  dot_tile<kCodes, Scale, kStep, kForm, kTokens, true>(totals, panels, w, rows, stride, 0,
                                                       w.n_steps);
  for (int64_t t = 0; t < smaller(kTokens, piece.token_end - token); ++t) {
    for (int64_t p = 0; p < n; ++p) {
      write_outputs(piece, token + t, panel + p, load(totals + (t * kDotPanels + p) * kPanel));
    }
  }
}

// One token or a few: panels are streamed from memory. The last tile of tokens may read rows of
// input that are not the piece's.
template <CodeForm kCodes, typename Scale, int kStep, InputForm kForm>
void dot_streamed(const MatmulPiece& piece, const PackedCodes& w, const InputBlock* input) {
  constexpr int kTokens = kTileTokensOf<kForm>;
  const int64_t stride = n_input_blocks(piece.in_dim) * n_planes(kForm);
  for (int64_t panel = piece.panel_begin; panel < piece.panel_end; panel += kDotPanels) {
    const int64_t n = smaller(kDotPanels, piece.panel_end - panel);
    for (int64_t t = piece.token_begin; t < piece.token_end; t += kTokens) {
      const InputBlock* const rows = input + t * stride;
      if (piece.token_end - t == 1) {
        dot_streamed_tile<kCodes, Scale, kStep, kForm, 1>(piece, w, rows, stride, t, panel, n);
      } else {
        dot_streamed_tile<kCodes, Scale, kStep, kForm, kTokens>(piece, w, rows, stride, t, panel,
                                                                n);
      }
    }
  }
}

// Codes as 8-bit ones.
template <CodeForm kCodes>
void widen_codes(uint8_t* to, const PackedCodes& w, const uint8_t* codes, int64_t n_columns) {
  constexpr int64_t kWordBytes = 4 * kPanel;
  if constexpr (is_plain(kCodes)) {
    const ByteCodes<kCodes> bytes(w);
    for (int64_t k = 0; k < n_columns; k += 8, codes += kWordBytes, to += 2 * kWordBytes) {
      const U32x16 words = load_codes(codes);
      store_codes(to, bytes.low(words));
      store_codes(to + kWordBytes, bytes.high(words));
    }
  } else {
    for (int64_t k = 0; k < n_columns; k += kBrick, codes += bits_of(kCodes) * kWordBytes) {
      const PlaneStep<kCodes, kBrick> brick(codes, 0);
      unrolled<kBrick / 4>([&]<int kFour>() {
        store_codes(to, brick.template bytes<kFour>());
        to += kWordBytes;
      });
    }
  }
}

// Many tokens, one block of columns after another. The last tile of tokens may read rows of input
// that are not the piece's.
template <CodeForm kCodes, typename Scale, int kStep, InputForm kForm>
void dot_matmul(const MatmulPiece& piece, const PackedCodes& w, const InputBlock* input) {
  const int64_t n_tokens = piece.token_end - piece.token_begin;
  constexpr int kTokens = kTileTokensOf<kForm>;
  const int64_t panels = piece.panel_end - piece.panel_begin;
  const int64_t stride = n_input_blocks(piece.in_dim) * n_planes(kForm);
  const InputBlock* const rows = input + piece.token_begin * stride;
  uint8_t* const widened = reinterpret_cast<uint8_t*>(piece.scratch);  // [kDotPanels][kDotColumns]
  // Laid out by tiles of panels: [n_tokens, rounded up to whole tiles][kDotPanels][kPanel].
  float* const totals = piece.scratch + kDotPanels * kDotColumns * kPanel / 4;
  const int64_t tile_totals = (n_tokens + kTokens - 1) / kTokens * kTokens * kDotPanels * kPanel;
  const int64_t n_tiles = (panels + kDotPanels - 1) / kDotPanels;
  for (int64_t i = 0; i < n_tiles * tile_totals; i += kPanel) store(totals + i, splat(0));

  for (int64_t begin = 0; begin < w.n_steps; begin += kDotColumns / kStep) {
    const int64_t end = smaller(w.n_steps, begin + kDotColumns / kStep);
    for (int64_t tile = 0; tile < n_tiles; ++tile) {
      const int64_t panel = tile * kDotPanels, n = smaller(kDotPanels, panels - panel);
      auto at = panels_at<Scale, kStep>(piece, w, piece.panel_begin + panel, begin);
      if constexpr (kCodes != CodeForm::U8) {
        constexpr int64_t kWidenedBytes = kDotColumns * kPanel;
        for (int64_t p = 0; p < n; ++p) {
          widen_codes<kCodes>(widened + p * kWidenedBytes, w, at.codes + p * at.panel_bytes,
                              (end - begin) * kStep);
        }
        at.codes = widened;
        at.panel_bytes = kWidenedBytes;
      }
      if (n < kDotPanels) at.repeat_first();
      for (int64_t t = 0; t < n_tokens; t += kTokens) {
        dot_tile<CodeForm::U8, Scale, kStep, kForm, kTokens, false>(
            totals + tile * tile_totals + t * kDotPanels * kPanel, at, w, rows + t * stride, stride,
            begin, end);
      }
    }
  }
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t tile = 0; tile < n_tiles; ++tile) {
      const float* const from = totals + tile * tile_totals + t * kDotPanels * kPanel;
      const int64_t panel = tile * kDotPanels;
      for (int64_t p = 0; p < smaller(kDotPanels, panels - panel); ++p) {
        write_outputs(piece, piece.token_begin + t, piece.panel_begin + panel + p,
                      load(from + p * kPanel));
      }
    }
  }
}

template <InputForm kForm>
void matmul_bytes(const MatmulPiece& piece, const PackedCodes& w, const InputBlock* input) {
  visit_codes(w, [&]<CodeForm kCodes, typename Scale, int kStep>() {
    const int64_t n_tokens = piece.token_end - piece.token_begin;
    if (n_tokens <= kMostStreamedTokens) {
      dot_streamed<kCodes, Scale, kStep, kForm>(piece, w, input);
    } else {
      dot_matmul<kCodes, Scale, kStep, kForm>(piece, w, input);
    }
  });
}

}  // namespace
}  // namespace minfer::cpu
