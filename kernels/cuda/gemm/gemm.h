#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda/launchers.h"

// What the files of gemm/ have in common.
namespace minfer::cuda {

constexpr int kMaxGemmParts = 3;

constexpr int kBoxRows = 64;  // rows of out in one TMA store

// A checked call of gemm(), as the kernels see it. A tile is a block of rows of x times a block of
// columns of one part's out; with a gate, only part 0 has tiles.
struct GemmArgs {
  const void* x = nullptr;          // [m, k]
  int m = 0, k = 0;                 // for int8 codes, k counts pairs of codes
  const float* x_scales = nullptr;  // [m], for int8 codes; else null
  int n_parts = 0;
  DType dtype = DType::F16;  // of x, w, biases and out; with codes, of biases and out only
  bool out_is_f32 = false;
  Epilogue epilogue = Epilogue::Store;
  // If not null (Store only), the parts are q, k and v with heads of kFusedHeadDim, and the kernel
  // norms heads by norm_weight and rotates q and k by the cosines and sines [m, kFusedHeadDim / 2]
  // of their rows. It rounds wherever add_bias, rms_norm and rope_append would round, so that the
  // bits are the same.
  const float2* angles = nullptr;
  float norm_eps = 0;
  struct Part {
    const void* w = nullptr;  // [n, k]
    void* out = nullptr;      // [m, n], or a cache's keys or values
    const void* bias = nullptr;
    int n = 0;
    int n_tiles = 0;  // along n
    // If out is a cache, with heads of kFusedHeadDim: the page table of the sequence, the position
    // of row 0 (a multiple of kBoxRows), and the number of pages of the whole cache. Else null.
    const int32_t* pages = nullptr;
    int pos = 0, n_pages = 0;
    const float* w_scales = nullptr;    // [n], for int8 codes
    const void* norm_weight = nullptr;  // [kFusedHeadDim], of the heads of q or k; null: no norm
  } part[kMaxGemmParts];

  bool has_gate() const { return is_gated(epilogue); }
  bool has_codes() const { return x_scales != nullptr; }
  int n_tiled_parts() const { return has_gate() ? 1 : n_parts; }
};

// Sets n_tiles of each part, for tiles of `columns` columns of out, and returns their sum.
int64_t set_tiles(GemmArgs& args, int columns);

// The tile sizes of hgemm: rows of x times weight rows, which are the columns of out (with a gate,
// two weight rows per column). Tiles whose rows of x are not a multiple of 64 are transposed; see
// hgemm_transposed.cuh.
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
// Whether hgemm has a kernel with tiles of m x n. Widths 176 and 224 cut 22016 weight rows into
// nearly whole waves; 64 x 96 is for few tokens. A transposed tile with a gate has two blocks of
// 128 weight rows: one of gate, one of up.
constexpr bool has_tile(int m, int n, Epilogue epilogue) {
  const bool is_for_all = !is_transposed(m) && (n % 96 == 0 || n % 128 == 0);
  switch (epilogue) {
    case Epilogue::Store:
    case Epilogue::Accumulate:
      return n != 176;
    case Epilogue::SwiGlu:
    case Epilogue::GeGluErf:
    case Epilogue::GeGluTanh:
      return is_transposed(m) ? n == 256 : n >= 128;
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      return is_transposed(m) ? n == 256 : is_for_all && m * n > 64 * 96;
  }
  return false;
}
// The same for int8 codes: only tiles that are not made for certain numbers of tokens or columns.
constexpr bool has_tile_of_codes(int m, int n, Epilogue epilogue) {
  return !is_transposed(m) && n % 64 == 0 && has_tile(m, n, epilogue) &&
         epilogue != Epilogue::GeluErf && epilogue != Epilogue::GeluTanh;
}
// Whether hgemm can run the tile with the blocks of a cluster paired (GemmPlan). Pairs gain only
// with many rows, for which smaller tiles are not used.
constexpr bool can_pair(int m, int n) { return m * n >= 128 * 128; }
// Whether the second warpgroup of a tile with GELU is some steps behind the first, so that each
// multiplies while the other applies GELU.
constexpr bool gelu_lags(int m, int n) { return m * n >= 128 * 256; }
// How a GEMM is cut. With split-K, the `split` blocks of a cluster compute one tile, each over its
// slice of k. If paired, the two blocks of a cluster use the same weights, and each copies half of
// them to both by TMA multicast.
struct GemmPlan {
  GemmTile tile = GemmTile::k128x256;
  int split = 1;
  bool is_paired = false;

  int blocks_of_cluster() const { return is_paired ? 2 : split; }
  bool operator==(const GemmPlan&) const = default;
};
constexpr GemmPlan kCuts[] = {{.split = 1}, {.split = 2}, {.split = 4}, {.is_paired = true}};
// How many blocks, clusters of 2 blocks and clusters of 4 run at once, with one block per SM.
struct GemmCard {
  int blocks = 0;
  int clusters_of_2 = 0, clusters_of_4 = 0;

  // 0 means that the card cannot run clusters of that size.
  int clusters_at_once(int n_blocks) const {
    return n_blocks == 1 ? blocks : n_blocks == 2 ? clusters_of_2 : clusters_of_4;
  }
};
// Whether there is a kernel for the plan; fitting_plans returns all plans that have one.
bool plan_fits(const GemmArgs& args, const GemmPlan& plan);
std::vector<GemmPlan> fitting_plans(const GemmArgs& args);
// Expected clock cycles of a plan, or none if the card cannot run it; gemm.cpp has the model.
std::optional<double> plan_clocks(const GemmArgs& args, const GemmCard& card, const GemmPlan& plan);
// The plan with the fewest expected clocks. With many rows it is paired where possible.
GemmPlan plan_gemm(const GemmArgs& args, const GemmCard& card);

const GemmCard& gemm_card();                // the current card; a process uses cards of one kind
GemmPlan hgemm_plan(const GemmArgs& args);  // plan_gemm on gemm_card()

// Whether hgemm's kernels are in this binary and run on this card.
bool has_hgemm();
// Whether hgemm can compute this GEMM: has_hgemm(), and rows of x and w are 16-byte aligned.
bool hgemm_takes(const GemmArgs& args);
void hgemm(cudaStream_t stream, GemmArgs args);
// The same with a given plan.
void hgemm_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan);
// The same for int8 codes (GemmArgs::x_scales).
void hgemm_of_codes_as(cudaStream_t stream, GemmArgs args, const GemmPlan& plan);

// Whether gemm_append can compute q, k and v of such a GEMM.
bool gemm_can_append(const GemmArgs& gemm, const KvLayer& cache, Tensor cos_sin);
// How gemm_append cuts a GEMM, in tiles of whole heads, and its expected clock cycles.
struct AppendPlan {
  GemmPlan plan;
  double clocks;
};
AppendPlan append_plan(const GemmArgs& args, const GemmCard& card, bool has_norm);
// gemm_append with a plan of the caller's.
void gemm_append_as(cudaStream_t stream, KvLayer& cache, const CachePlace& place, Tensor x,
                    std::span<const GemmPart, 3> qkv, Tensor cos_sin, const QkNormArgs& norm,
                    const GemmPlan& plan);
// Whether hgemm has HgemmKind::Heads in tiles of m x n.
constexpr bool has_tile_of_heads(int m, int n) { return m == 128 && (n == 128 || n == 256); }

// Computes any shape, on sm_80 and later.
void gemm_mma(cudaStream_t stream, GemmArgs args);

// Check a call of gemm(), or of multiply_codes(). They throw Internal.
GemmArgs check_gemm(Tensor x, std::span<const GemmPart> parts, Epilogue epilogue);
GemmArgs check_codes(const CodeRows& x, std::span<const CodesPart> parts, Epilogue epilogue);

}  // namespace minfer::cuda
