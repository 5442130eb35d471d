#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda/launchers.h"

// What the files of gemm/ share.
namespace minfer::cuda {

constexpr int kMaxGemmParts = 3;

// A checked call of gemm(), as the kernels see it. A tile is a block of rows of x times a block of
// columns of one part's out; SwiGlu has tiles of part 0 alone.
constexpr int kBoxRows = 64;  // of out, that a thread sends at once

struct GemmArgs {
  const void* x = nullptr;          // [m, k]
  int m = 0, k = 0;                 // of codes k counts pairs
  const float* x_scales = nullptr;  // of codes: [m]
  int n_parts = 0;
  DType dtype = DType::F16;  // of x, w, biases and out; of codes the latter two alone
  bool out_is_f32 = false;
  Epilogue epilogue = Epilogue::Store;
  // Of Store where not null: the parts are q, k and v of heads of kFusedHeadDim, of which q and k
  // rotate by the cosines and sines [m, kFusedHeadDim / 2] of their rows; for each rounding that
  // add_bias and rope_append would make there is one.
  const float2* angles = nullptr;
  struct Part {
    const void* w = nullptr;  // [n, k]
    void* out = nullptr;      // [m, n], or a cache's keys or values
    const void* bias = nullptr;
    int n = 0;
    int n_tiles = 0;  // along n
    // Of a cache, whose heads are of kFusedHeadDim: the table of a sequence, the position of row 0,
    // a multiple of kBoxRows, and the pages of the whole cache. Else null.
    const int32_t* pages = nullptr;
    int pos = 0, n_pages = 0;
    const float* w_scales = nullptr;  // of codes: [n]
  } part[kMaxGemmParts];

  bool is_swiglu() const { return epilogue == Epilogue::SwiGlu; }
  bool has_codes() const { return x_scales != nullptr; }
  int n_tiled_parts() const { return is_swiglu() ? 1 : n_parts; }
};

// Sets the tiles of each part, `columns` of out wide, and returns their number along n.
int64_t set_tiles(GemmArgs& args, int columns);

// Rows of x and weight rows (columns of out; with SwiGlu twice those) of a tile of hgemm. Those
// whose rows of x are no multiple of 64 are transposed; see hgemm_transposed.cuh.
enum class GemmTile {
  k64x96,
  k64x128,
  k64x176,
  k128x96,
  k128x128,
  k128x192,
  k128x224,
  k128x256,
  k256x192,
  k104x256,
  k136x256,
  k152x128,
  k152x192,
  k200x128
};
constexpr int kGemmTiles = 14;
constexpr bool is_transposed(int m) { return m % 64 != 0; }
// Whether hgemm has a kernel of tiles of m x n: 176 and 224 cut 22016 weight rows into whole waves,
// 64 x 96 few tokens' products. Transposed, gates and ups lie in two blocks of 128 rows.
constexpr bool has_tile(int m, int n, Epilogue epilogue) {
  const bool is_for_all = !is_transposed(m) && (n % 96 == 0 || n % 128 == 0);
  switch (epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      return n != 176;
    case Epilogue::SwiGlu:
      return is_transposed(m) ? n == 256 : n >= 128;
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      return is_for_all && m <= 128 && m * n > 64 * 96;
  }
  return false;
}
// The same of codes: what serves any number of tokens.
constexpr bool has_tile_of_codes(int m, int n, Epilogue epilogue) {
  return !is_transposed(m) && n % 64 == 0 && has_tile(m, n, epilogue) &&
         epilogue != Epilogue::GeluErf && epilogue != Epilogue::GeluTanh;
}
// Whether hgemm has it for pairs of blocks, of a cluster, with the same weights: smaller tiles are
// not for the many rows that pairs gain with.
constexpr bool can_pair(int m, int n, Epilogue epilogue) {
  return m * n >= 128 * 128 && epilogue != Epilogue::GeluErf && epilogue != Epilogue::GeluTanh;
}
// How a product is cut: `split` blocks of a cluster share a tile, each a part of k; or two blocks
// of a cluster, paired, have the same weights and each brings half of these to both.
struct GemmPlan {
  GemmTile tile = GemmTile::k128x256;
  int split = 1;
  bool is_paired = false;

  int blocks_of_cluster() const { return is_paired ? 2 : split; }
  bool operator==(const GemmPlan&) const = default;
};
constexpr GemmPlan kCuts[] = {{.split = 1}, {.split = 2}, {.split = 4}, {.is_paired = true}};
// Blocks that run at once, one an SM, alone or in clusters of 2 and 4.
struct GemmCard {
  int blocks = 0;
  int clusters_of_2 = 0, clusters_of_4 = 0;

  // 0: the card has none of as many blocks.
  int clusters_at_once(int n_blocks) const {
    return n_blocks == 1 ? blocks : n_blocks == 2 ? clusters_of_2 : clusters_of_4;
  }
};
// Whether there is a kernel for it; all for which there is one.
bool plan_fits(const GemmArgs& args, const GemmPlan& plan);
std::vector<GemmPlan> fitting_plans(const GemmArgs& args);
// Expected clocks of a plan, where the card can run it; see gemm.cpp for the model.
std::optional<double> plan_clocks(const GemmArgs& args, const GemmCard& card, const GemmPlan& plan);
// The plan with the fewest of them; of many rows in pairs where it can be.
GemmPlan plan_gemm(const GemmArgs& args, const GemmCard& card);

const GemmCard& gemm_card();                // the current one; cards of one process are of one kind
GemmPlan hgemm_plan(const GemmArgs& args);  // on it

// Whether its kernels are in this binary and run on this card.
bool has_hgemm();
// Whether hgemm can take it: it is there, and rows of x and w are whole 16 bytes.
bool hgemm_takes(const GemmArgs& args);
void hgemm(cudaStream_t stream, GemmArgs args);
// The same for one given plan, for tests and benchmarks.
void hgemm_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan);
// Of codes (GemmArgs::x_scales), for one plan.
void hgemm_of_codes_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan);

// Whether gemm_append can take such a product of q, k and v.
bool gemm_can_append(const GemmArgs& product, const KvLayer& cache, Tensor cos_sin);

// Any shape, from sm_80 on.
void gemm_mma(cudaStream_t stream, GemmArgs args);

// Checks a call of gemm(), or of multiply_codes(). Throws Internal.
GemmArgs check_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);
GemmArgs check_codes(const CodeRows& x, std::span<const CodesPart> parts, Epilogue epilogue);

}  // namespace minfer::cuda
