#pragma once

// Matmul over panels for one instruction set; layout.h has the order of every sum.

namespace minfer::cpu {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// What a tile does with the sums that are already there.
enum class Sums {
  Replace,   // the tile's sums replace them
  Continue,  // the chain of multiply-adds goes on where it stopped
  Add,       // the tile is summed from zero and then added to them
};

static_assert(kTilePanels <= kMaxTilePanels && kTileTokens <= kManyTokens);

// How far a GEMV prefetches ahead of its loads: the prefetcher of the hardware stops at each page
// of 4 KB. `minfer bench` decodes 6 to 8 % faster with it.
constexpr int64_t kGemvPrefetchBytes = 4096;

// Prefetches codes. They take more instructions per byte than floats, so fewer loads are in flight.
// The second-level cache is filled from far ahead, the first-level cache from near.
inline void prefetch_codes(const uint8_t* from, int64_t ahead = kGemvPrefetchBytes) {
  __builtin_prefetch(from + 512);
  __builtin_prefetch(from + ahead, 0, 2);
}

alignas(64) constexpr float kZeros[kTileTokens * kMaxTilePanels * kPanel] = {};

// sums[t][p][lane] = sum over k of x[t][k] * w[p][k][lane], combined with what is there (Sums)
//
//   sums   [kTokens][kPanels][kPanel]
//   w      panels, `panel_stride` elements apart
//   x      rows kKBlock apart
//   n_k    at most kKBlock
//   maths  one chain of fused multiply-adds for each lane, k ascending, so that the bits do not
//          depend on the caller or on the number of tokens
template <typename W, int kTokens, int kPanels>
[[gnu::noinline]] void multiply_tile(float* sums, const W* w, int64_t panel_stride, const float* x,
                                     int64_t n_k, Sums mode) {
  // It loads from memory in each case: with a branch GCC 12 sends the registers through the stack.
  const float* const start = mode == Sums::Continue ? sums : kZeros;
  F32x16 acc[kTokens][kPanels];
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kPanels; ++p) acc[t][p] = load(start + (t * kPanels + p) * kPanel);
  }
  for (int64_t k = 0; k < n_k; ++k) {
    if constexpr (kTokens == 1) {
      const F32x16 xv = splat(x[k]);
      for (int p = 0; p < kPanels; ++p) {
        const W* const from = w + p * panel_stride + k * kPanel;
        __builtin_prefetch(reinterpret_cast<const char*>(from) + kGemvPrefetchBytes);
        acc[0][p] = fma(xv, load(from), acc[0][p]);
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
    for (int p = 0; p < kPanels; ++p) {
      float* const to = sums + (t * kPanels + p) * kPanel;
      store(to, mode == Sums::Add ? load(to) + acc[t][p] : acc[t][p]);
    }
  }
}

// The same for a number of tokens, 1 to kTileTokens, that is known at run time only.
template <int kPanels, int kTokens = kTileTokens, typename W>
void multiply_tokens(int64_t n_tokens, float* sums, const W* w, int64_t panel_stride,
                     const float* x, int64_t n_k, Sums mode) {
  if constexpr (kTokens > 1) {
    if (n_tokens < kTokens) {
      return multiply_tokens<kPanels, kTokens - 1>(n_tokens, sums, w, panel_stride, x, n_k, mode);
    }
  }
  multiply_tile<W, kTokens, kPanels>(sums, w, panel_stride, x, n_k, mode);
}

// Panels of the next tile if so many are left: as many as a tile has, or one.
inline int64_t group_size(int64_t panels_left) {
  return panels_left >= kTilePanels ? kTilePanels : 1;
}

// The same for a group of panels; sums [n_tokens][n_panels][kPanel].
template <typename W>
void multiply(int64_t n_tokens, int64_t n_panels, float* sums, const W* w, int64_t panel_stride,
              const float* x, int64_t n_k, Sums mode) {
  if (n_panels == kTilePanels) {
    multiply_tokens<kTilePanels>(n_tokens, sums, w, panel_stride, x, n_k, mode);
  } else {
    multiply_tokens<1>(n_tokens, sums, w, panel_stride, x, n_k, mode);
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

// Writes all outputs of a piece.
//   totals  by groups of panels: [n_tokens][panels of the group][kPanel]
inline void write_totals(const MatmulPiece& piece, const float* totals) {
  for (int64_t panel = piece.panel_begin, n; panel < piece.panel_end; panel += n) {
    n = group_size(piece.panel_end - panel);
    for (int64_t t = piece.token_begin; t < piece.token_end; ++t) {
      for (int64_t i = 0; i < n; ++i, totals += kPanel) {
        write_outputs(piece, t, panel + i, load(totals));
      }
    }
  }
}

// One token: panels are streamed from memory, kPanels side by side.
template <int kPanels, typename W>
void gemv_panels(const MatmulPiece& piece, const W* w, int64_t panel) {
  const float* const x = piece.x + piece.token_begin * piece.in_dim;
  const int64_t panel_stride = piece.in_dim * kPanel;
  alignas(64) float totals[kPanels * kPanel];
  for (int64_t k0 = 0; k0 < piece.in_dim; k0 += kKBlock) {
    multiply_tile<W, 1, kPanels>(totals, w + panel * panel_stride + k0 * kPanel, panel_stride,
                                 x + k0, smaller(kKBlock, piece.in_dim - k0),
                                 k0 == 0 ? Sums::Replace : Sums::Add);
  }
  for (int p = 0; p < kPanels; ++p) {
    write_outputs(piece, piece.token_begin, panel + p, load(totals + p * kPanel));
  }
}

template <typename W>
void gemv(const MatmulPiece& piece) {
  const W* const w = static_cast<const W*>(piece.w);
  int64_t panel = piece.panel_begin;
  for (; panel + kMaxTilePanels <= piece.panel_end; panel += kMaxTilePanels) {
    gemv_panels<kMaxTilePanels>(piece, w, panel);
  }
  for (; panel < piece.panel_end; ++panel) gemv_panels<1>(piece, w, panel);
}

// Copies columns k0 ... k0 + n_k of tokens x[0 .. n_tokens) to rows kKBlock apart; x points to k0.
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

// The data of the next block, prefetched during the current one, a few lines with each tile: a
// column of cache lines of the tokens, and panels.
struct Ahead {
  static constexpr int64_t kLine = 64;  // bytes

  const float* x = nullptr;  // rows x_stride apart
  int64_t x_stride = 0;
  const char* w = nullptr;  // n_panels times panel_lines, panel_stride bytes apart
  int64_t n_panels = 0, panel_lines = 0, panel_stride = 0;

  // Prefetches lines of tokens [begin, end) of n, and the same fraction of the lines of the panels.
  // It does not divide, because it runs once for each tile.
  void prefetch(int64_t begin, int64_t end, int64_t n) {
    if (x != nullptr) {
      for (int64_t t = begin; t < end; ++t) __builtin_prefetch(x + t * x_stride, 0, 2);
    }
    for (credit_ += (end - begin) * n_panels * panel_lines; credit_ > 0; credit_ -= n) {
      __builtin_prefetch(w + line_ * kLine, 0, 2);
      if (++line_ == panel_lines) {
        line_ = 0;
        w += panel_stride;
      }
    }
  }

 private:
  int64_t line_ = 0, credit_ = 0;  // lines prefetched in this panel; lines due, times n
};

// One block of columns for all tokens of a piece and one group of panels.
//   totals  [n_tokens][n_panels][kPanel]
template <typename W>
void multiply_block(float* totals, const W* w, int64_t panel_stride, int64_t n_panels,
                    const float* x, int64_t n_tokens, int64_t n_k, Sums mode, Ahead ahead) {
  const int64_t n_tiles = (n_tokens + kTileTokens - 1) / kTileTokens;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {  // tiles of equal size, give or take one token
    const int64_t begin = n_tokens * tile / n_tiles, end = n_tokens * (tile + 1) / n_tiles;
    ahead.prefetch(begin, end, n_tokens);
    multiply(end - begin, n_panels, totals + begin * n_panels * kPanel, w, panel_stride,
             x + begin * kKBlock, n_k, mode);
  }
}

// Several tokens, one block of columns after another. The block of the tokens stays in cache; for
// many tokens, the block of the panels is converted to f32 once.
template <typename W>
void matmul(const MatmulPiece& piece) {
  const int64_t n_tokens = piece.token_end - piece.token_begin;
  if (n_tokens == 1) return gemv<W>(piece);
  const int64_t panels = piece.panel_end - piece.panel_begin, panel_stride = piece.in_dim * kPanel;
  const float* const x = piece.x + piece.token_begin * piece.in_dim;
  const W* const w = static_cast<const W*>(piece.w) + piece.panel_begin * panel_stride;
  float* const x_block = piece.scratch;                         // [n_tokens, kKBlock]
  float* const w_block = x_block + kMaxMatmulTokens * kKBlock;  // [kTilePanels, kKBlock, kPanel]
  // Laid out by groups of panels: [n_tokens][panels of the group][kPanel].
  float* const totals = w_block + kTilePanels * kKBlock * kPanel;

  for (int64_t k0 = 0; k0 < piece.in_dim; k0 += kKBlock) {
    const int64_t n_k = smaller(kKBlock, piece.in_dim - k0);
    const Sums mode = k0 == 0 ? Sums::Replace : Sums::Add;
    pack_tokens(x_block, x + k0, piece.in_dim, n_tokens, n_k);
    for (int64_t p = 0; p < panels; p += group_size(panels - p)) {
      const int64_t n = group_size(panels - p);
      const W* const w_group = w + p * panel_stride + k0 * kPanel;
      float* const group = totals + p * n_tokens * kPanel;
      Ahead ahead;
      const int64_t column = k0 + kKBlock + p / kTilePanels * kPanel;
      if (column < piece.in_dim && column < k0 + 2 * kKBlock) {
        ahead.x = x + column;
        ahead.x_stride = piece.in_dim;
      }
      const bool last_group = p + n == panels;
      if (!last_group || k0 + n_k < piece.in_dim) {
        const int64_t next_k0 = last_group ? k0 + kKBlock : k0, next_p = last_group ? 0 : p + n;
        ahead.w = reinterpret_cast<const char*>(w + next_p * panel_stride + next_k0 * kPanel);
        ahead.n_panels = group_size(panels - next_p);
        ahead.panel_lines =
            smaller(kKBlock, piece.in_dim - next_k0) * kPanel * int64_t{sizeof(W)} / Ahead::kLine;
        ahead.panel_stride = panel_stride * int64_t{sizeof(W)};
      }
      if (sizeof(W) < sizeof(float) && n_tokens >= kManyTokens) {
        unpack_weights(w_block, w_group, panel_stride, n, n_k);
        multiply_block(group, w_block, kKBlock * kPanel, n, x_block, n_tokens, n_k, mode, ahead);
      } else {
        multiply_block(group, w_group, panel_stride, n, x_block, n_tokens, n_k, mode, ahead);
      }
    }
  }
  write_totals(piece, totals);
}

}  // namespace
}  // namespace minfer::cpu
