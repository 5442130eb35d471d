#pragma once

// Matmul over panels for one instruction set; see layout.h for the order of every sum.

namespace minfer::cpu {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// sums[t][p][lane] = (resume ? sums : 0) + sum over k of x[t][k] * w[p][k][lane]
//
//   sums   [kTokens][kPanels][kPanel]
//   w      panels, `panel_stride` elements apart
//   x      rows kKBlock apart
//   n_k    at most kKBlock
//   maths  one chain of fused multiply-adds for each lane, k ascending: whoever calls, for however
//          many tokens, gets the same bits
template <typename W, int kTokens, int kPanels>
[[gnu::noinline]] void multiply_tile(float* sums, const W* w, int64_t panel_stride, const float* x,
                                     int64_t n_k, bool resume) {
  F32x16 acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kPanels; ++p) {
      acc[t][p] = resume ? load(sums + (t * kPanels + p) * kPanel) : splat(0);
    }
  }
  for (int64_t k = 0; k < n_k; ++k) {
    if constexpr (kTokens == 1) {
      const F32x16 xv = splat(x[k]);
      for (int p = 0; p < kPanels; ++p) {
        acc[0][p] = fma(xv, load(w + p * panel_stride + k * kPanel), acc[0][p]);
      }
    } else {
      F32x16 wv[kPanels];
      for (int p = 0; p < kPanels; ++p) wv[p] = load(w + p * panel_stride + k * kPanel);
      for (int t = 0; t < kTokens; ++t) {
        const F32x16 xv = splat(x[t * kKBlock + k]);
        for (int p = 0; p < kPanels; ++p) acc[t][p] = fma(xv, wv[p], acc[t][p]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kPanels; ++p) store(sums + (t * kPanels + p) * kPanel, acc[t][p]);
  }
}

// The same for a number of tokens, 1 to kTileTokens, known only now.
template <int kPanels, int kTokens = kTileTokens, typename W>
void multiply_tokens(int64_t n_tokens, float* sums, const W* w, int64_t panel_stride,
                     const float* x, int64_t n_k, bool resume) {
  if constexpr (kTokens > 1) {
    if (n_tokens < kTokens) {
      return multiply_tokens<kPanels, kTokens - 1>(n_tokens, sums, w, panel_stride, x, n_k, resume);
    }
  }
  multiply_tile<W, kTokens, kPanels>(sums, w, panel_stride, x, n_k, resume);
}

// And of 1 to kTilePanels panels; sums [n_tokens][n_panels][kPanel].
template <typename W>
void multiply(int64_t n_tokens, int64_t n_panels, float* sums, const W* w, int64_t panel_stride,
              const float* x, int64_t n_k, bool resume) {
  if (n_panels == kTilePanels) {
    multiply_tokens<kTilePanels>(n_tokens, sums, w, panel_stride, x, n_k, resume);
  } else {
    multiply_tokens<1>(n_tokens, sums, w, panel_stride, x, n_k, resume);
  }
}

// Stores the sixteen outputs of one token and panel, as far as they exist.
inline void write_outputs(const MatmulPiece& piece, int64_t t, int64_t panel, F32x16 total) {
  float* const out = piece.out + t * piece.out_dim + panel * kPanel;
  const int64_t n_lanes = piece.out_dim - panel * kPanel;
  if (n_lanes >= kPanel) {
    store(out, piece.accumulate ? load(out) + total : total);
  } else {
    store_first(out, n_lanes, piece.accumulate ? load_first(out, n_lanes, 0) + total : total);
  }
}

// One token: panels are streamed from memory, kPanels side by side.
template <int kPanels, typename W>
void matvec_panels(const MatmulPiece& piece, const W* w, int64_t panel) {
  const float* const x = piece.x + piece.token_begin * piece.in_dim;
  const int64_t panel_stride = piece.in_dim * kPanel;
  alignas(64) float sums[kPanels * kPanel];
  F32x16 total[kPanels] = {};
  for (int64_t k0 = 0; k0 < piece.in_dim; k0 += kKBlock) {
    multiply_tile<W, 1, kPanels>(sums, w + panel * panel_stride + k0 * kPanel, panel_stride, x + k0,
                                 smaller(kKBlock, piece.in_dim - k0), false);
    for (int p = 0; p < kPanels; ++p) {
      total[p] = k0 == 0 ? load(sums + p * kPanel) : total[p] + load(sums + p * kPanel);
    }
  }
  for (int p = 0; p < kPanels; ++p) write_outputs(piece, piece.token_begin, panel + p, total[p]);
}

template <typename W>
void matvec(const MatmulPiece& piece) {
  const W* const w = static_cast<const W*>(piece.w);
  int64_t panel = piece.panel_begin;
  for (; panel + kMatvecPanels <= piece.panel_end; panel += kMatvecPanels) {
    matvec_panels<kMatvecPanels>(piece, w, panel);
  }
  for (; panel < piece.panel_end; ++panel) matvec_panels<1>(piece, w, panel);
}

// x[0 .. n_tokens), columns k0 ... k0 + n_k, into rows kKBlock apart.
inline void pack_tokens(float* to, const float* x, int64_t in_dim, int64_t n_tokens, int64_t n_k) {
  for (int64_t t = 0; t < n_tokens; ++t, to += kKBlock, x += in_dim) {
    int64_t k = 0;
    for (; k + kPanel <= n_k; k += kPanel) store(to + k, load(x + k));
    if (k < n_k) store_first(to + k, n_k - k, load_first(x + k, n_k - k, 0));
  }
}

template <typename W>
void unpack_weights(float* to, const W* w, int64_t panel_stride, int64_t n_panels, int64_t n_k) {
  for (int64_t p = 0; p < n_panels; ++p, to += kKBlock * kPanel, w += panel_stride) {
    for (int64_t k = 0; k < n_k; ++k) store(to + k * kPanel, load(w + k * kPanel));
  }
}

// total[t][p] (+)= the sums of one block of columns, for all tokens and up to kTilePanels panels.
//   total  rows `total_stride` apart
template <typename W>
void add_block(float* total, int64_t total_stride, bool first, const W* w, int64_t panel_stride,
               int64_t n_panels, const float* x, int64_t n_tokens, int64_t n_k) {
  alignas(64) float sums[kTileTokens * kTilePanels * kPanel];
  const int64_t n_tiles = (n_tokens + kTileTokens - 1) / kTileTokens;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {  // tiles of equal size, give or take one token
    const int64_t begin = n_tokens * tile / n_tiles, end = n_tokens * (tile + 1) / n_tiles;
    multiply(end - begin, n_panels, sums, w, panel_stride, x + begin * kKBlock, n_k, false);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t p = 0; p < n_panels; ++p) {
        float* const to = total + t * total_stride + p * kPanel;
        const F32x16 sum = load(sums + ((t - begin) * n_panels + p) * kPanel);
        store(to, first ? sum : load(to) + sum);
      }
    }
  }
}

// Several tokens: block of columns by block of columns, with the tokens' part of it in cache and,
// for many tokens, the panels' part converted to f32 once.
template <typename W>
void matmul(const MatmulPiece& piece) {
  const int64_t n_tokens = piece.token_end - piece.token_begin;
  if (n_tokens == 1) return matvec<W>(piece);
  const int64_t panels = piece.panel_end - piece.panel_begin, panel_stride = piece.in_dim * kPanel;
  const float* const x = piece.x + piece.token_begin * piece.in_dim;
  float* const x_block = piece.scratch;                            // [n_tokens, kKBlock]
  float* const w_block = x_block + kMaxMatmulTokens * kKBlock;     // [kTilePanels, kKBlock, kPanel]
  float* const totals = w_block + kTilePanels * kKBlock * kPanel;  // [n_tokens, panels, kPanel]

  for (int64_t k0 = 0; k0 < piece.in_dim; k0 += kKBlock) {
    const int64_t n_k = smaller(kKBlock, piece.in_dim - k0);
    pack_tokens(x_block, x + k0, piece.in_dim, n_tokens, n_k);
    for (int64_t p = 0; p < panels; p += kTilePanels) {
      const int64_t n = smaller(kTilePanels, panels - p);
      const W* const w =
          static_cast<const W*>(piece.w) + (piece.panel_begin + p) * panel_stride + k0 * kPanel;
      float* const total = totals + p * kPanel;
      if (sizeof(W) < sizeof(float) && n_tokens >= kManyTokens) {
        unpack_weights(w_block, w, panel_stride, n, n_k);
        add_block(total, panels * kPanel, k0 == 0, w_block, kKBlock * kPanel, n, x_block, n_tokens,
                  n_k);
      } else {
        add_block(total, panels * kPanel, k0 == 0, w, panel_stride, n, x_block, n_tokens, n_k);
      }
    }
  }
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t p = 0; p < panels; ++p) {
      write_outputs(piece, piece.token_begin + t, piece.panel_begin + p,
                    load(totals + (t * panels + p) * kPanel));
    }
  }
}

}  // namespace
}  // namespace minfer::cpu
