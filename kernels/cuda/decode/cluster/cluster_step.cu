#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <vector>

#include "kernels/cuda/decode/cluster/cluster_step.h"
#include "kernels/cuda/decode/cluster/cluster_weights.cuh"
#include "kernels/cuda/decode/graph/decode_layers.h"
#include "kernels/cuda/decode/persistent/step_gemvs.h"
#include "kernels/cuda/decode/plain_blocks.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

// What one instance of the kernel takes.
struct ScaleKind {
  bool has_half_pieces, has_mins;
  bool operator==(const ScaleKind&) const = default;
};
std::optional<ScaleKind> scale_kind_of(const Matrix& w) {
  if (!is_packed(w) || code_form_of(w) != CodeForm::U4 || w.scales.view().dtype != DType::F16) {
    return std::nullopt;
  }
  const PackedLayout layout = layout_of(w);
  if (layout.unit < kTileColumns / 2) return std::nullopt;  // or a scale of the whole row: 0
  return ScaleKind{layout.unit == kTileColumns / 2, bool(w.mins)};
}

// The scales of all matrices of all layers, if the kernel has an instance for them.
std::optional<ScaleKind> scale_kind_of(const DecodeModel& model) {
  const auto of_first = linears_of(*model.layers.front().weights);
  const auto first = scale_kind_of(of_first.front()->weight);
  const auto is_alike = [&](const DecodeLayer& layer) {
    const auto linears = linears_of(*layer.weights);
    return std::equal(
        linears.begin(), linears.end(), of_first.begin(), [&](const Linear* a, const Linear* b) {
          return scale_kind_of(a->weight) == first && same_format(a->weight, b->weight);
        });
  };
  return first && std::ranges::all_of(model.layers, is_alike) ? first : std::nullopt;
}

// The linear phase of matrices whose tiles follow one another, or are paired (gate and up). Null if
// the kernel has no code for it.
std::optional<ClusterGemv> gemv_of(std::initializer_list<const Linear*> linears, bool in_pairs,
                                   int n_blocks, bool is_down = false) {
  ClusterGemv gemv{};
  const Matrix& w = (*linears.begin())->weight;
  const PackedLayout layout = layout_of(w);
  int i = 0;
  for (const Linear* linear : linears) {
    const Matrix& m = linear->weight;
    if (!same_format(w, m) || m.out_dim % kTileRows != 0) return std::nullopt;
    const int n = narrow<int>(m.out_dim / kTileRows);
    gemv.n_tiles = in_pairs ? n : gemv.n_tiles + n;
    if (i < int(std::size(gemv.ends))) gemv.ends[i++] = gemv.n_tiles;
  }
  gemv.in_dim = narrow<int>(w.in_dim);
  gemv.n_pieces = gemv.in_dim / kTileColumns;
  gemv.per_column = 1 / float(w.in_dim);
  gemv.code_bytes = narrow<int>(layout.row_tile_bytes());
  gemv.scale_bytes = narrow<int>(layout.n_units) * kTileRows * 2;
  gemv.min_bytes = w.mins ? narrow<int>(layout.n_units) * kTileRows * 4 : 0;
  gemv.pieces_shift = std::max(unit_shift_of(layout.unit) - unit_shift_of(kTileColumns), 0);
  const int most = in_pairs ? kMostClusterTiles / 2 : kMostClusterTiles;
  if (gemv.in_dim % kTileColumns != 0 || gemv.n_pieces > most_cluster_pieces(is_down) ||
      gemv.n_tiles < n_blocks || ceil_div(gemv.n_tiles, n_blocks) > most) {
    return std::nullopt;
  }
  return gemv;
}

// Lays out the shared memory.
ClusterShared lay_out(ClusterParams& p, int n_queries) {
  ClusterShared at{};
  int end = 0;
  const auto place = [&](int n_bytes) {
    const int begin = end;
    end = narrow<int>(align_up(end + n_bytes, 128));
    return begin;
  };
  constexpr int kFloat = sizeof(float);
  // Tiles behind the last one are read (ClusterMultiplier): not behind the memory.
  int reach = 0;
  for (int phase = 0; phase < kClusterPhases; ++phase) {
    ClusterGemv& gemv = p.gemvs[phase];
    const int most = narrow<int>(ceil_div(gemv.n_tiles, p.n_blocks));
    if (has_norm_in_cluster(phase)) gemv.norm_at = place(2 * gemv.in_dim);
    const int n_tiles = (phase == kClusterGateUp ? 2 : 1) * most;
    gemv.codes_at = place(n_tiles * gemv.code_bytes);
    gemv.scales_at = place(n_tiles * gemv.scale_bytes);
    gemv.mins_at = place(n_tiles * gemv.min_bytes);
    const int n_read = n_tiles + kMostTilesAtOnce - 1;
    reach = std::max({reach, gemv.codes_at + n_read * gemv.code_bytes,
                      gemv.scales_at + n_read * gemv.scale_bytes,
                      gemv.mins_at + n_read * gemv.min_bytes});
  }
  at.barriers = place(kClusterBarriers * int{sizeof(uint64_t)});
  at.layers = place(p.n_layers * int{sizeof(ClusterLayer)});
  at.angles = place(2 * kClusterHeadDim * kFloat);
  at.squares = place(kClusterWarps * kFloat);
  at.digits = place(kDigits * kClusterDigits);
  at.sums = place((kMostClusterTiles + kMostTilesAtOnce - 1) * kTileRows * kClusterWarps * kFloat);
  at.heads = place(kClusterWarps * n_queries * kClusterQueryStride * kFloat);
  for (int i = 0; i < kClusterVectors; ++i) at.vectors[i] = place(p.vector_bytes[i]);
  at.total = std::max(end, reach);
  return at;
}

// The parameters for a cluster of n_blocks, which attend with n_queries query heads each, without
// pointers. Null if the kernel has no code for the model.
std::optional<ClusterParams> params_of(const DecodeModel& model, int n_blocks, int n_queries) {
  const LayerSpec& spec = model.layers.front().spec;
  ClusterParams p{};
  p.n_blocks = n_blocks;
  p.n_layers = narrow<int>(std::ssize(model.layers));
  p.dim = narrow<int>(model.embedding->in_dim);
  p.n_heads = narrow<int>(spec.n_heads);
  p.n_kv_heads = narrow<int>(spec.n_kv_heads);
  p.groups_per_kv = p.n_heads / p.n_kv_heads / n_queries;
  const int n_groups = p.n_heads / n_queries;
  p.n_parts = std::min(n_blocks / n_groups, kMostClusterParts);
  constexpr float kLog2E = 1.44269504088896341f;
  p.scale_log2 = spec.score_scale() * kLog2E;
  p.eps = spec.norm_eps;
  if (p.n_parts == 0 || spec.head_dim != kClusterHeadDim) {
    return std::nullopt;
  }
  const auto linears = linears_of(*model.layers.front().weights);
  const auto of = [&](int i) { return linears[size_t(i)]; };
  const std::array gemvs = {
      gemv_of({of(0), of(1), of(2)}, false, n_blocks), gemv_of({of(3)}, false, n_blocks),
      gemv_of({of(4), of(5)}, true, n_blocks), gemv_of({of(6)}, false, n_blocks, true)};
  for (size_t i = 0; i < gemvs.size(); ++i) {
    if (!gemvs[i]) return std::nullopt;
    p.gemvs[i] = *gemvs[i];
  }
  constexpr int kFloat = sizeof(float);
  p.vector_bytes[kVectorQkv] = p.gemvs[kClusterQkv].n_tiles * kTileRows * kFloat;
  p.vector_bytes[kVectorAttnParts] = p.n_heads * p.n_parts * kClusterQueryStride * kFloat;
  p.vector_bytes[kVectorAfterAttention] = p.vector_bytes[kVectorAfterFfn] = p.dim * kFloat;
  p.vector_bytes[kVectorHidden] = p.gemvs[kClusterDown].in_dim * kFloat;
  p.shared = lay_out(p, n_queries);
  return p;
}

}  // namespace

std::optional<ClusterStep::Variant> ClusterStep::variant_of(DType compute_type,
                                                            const DecodeModel& model,
                                                            int64_t n_queries) {
  const auto kind = scale_kind_of(model);
  if (!kind || n_queries > kMostClusterQueries) return std::nullopt;
  const ClusterKernel kernel =
      cluster_kernel_of({kind->has_half_pieces, kind->has_mins, narrow<int>(n_queries)});
  if (!runs_hopper_code(reinterpret_cast<const void*>(kernel))) return std::nullopt;
  const int room = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  for (int n_blocks = kMostClusterBlocks; n_blocks >= 4; n_blocks /= 2) {
    auto p = params_of(model, n_blocks, narrow<int>(n_queries));
    if (!p || p->shared.total > room) continue;
    p->vectors_are_bf16 = compute_type == DType::BF16;
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    // A limit of the function, which steps of other models have, too.
    MINFER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    ClusterLaunch launch(n_blocks, kClusterThreads, size_t(p->shared.total), n_blocks, nullptr);
    int n_clusters = 0;
    MINFER_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&n_clusters, kernel, launch.config()));
    if (n_clusters > 0) return Variant{*p, kernel};
  }
  return std::nullopt;
}

std::unique_ptr<ClusterStep> ClusterStep::make(cudaStream_t stream, DType compute_type,
                                               const DecodeModel& model, int64_t few_positions) {
  const LayerSpec& spec = model.layers.front().spec;
  const Tensor rope = model.rope_of(spec);
  if (!are_plain_blocks(model) || !rope || rope.shape[1] * 2 != kClusterHeadDim ||
      model.layers.front().cache->dtype != DType::F16 ||
      model.output->out_dim != model.vocab_size) {
    return nullptr;
  }
  const int64_t n_shared = spec.n_heads / spec.n_kv_heads;
  std::vector<Variant> variants;
  const auto add = [&](int64_t n_queries) {
    if (const auto variant = variant_of(compute_type, model, n_queries)) {
      variants.push_back(*variant);
    }
  };
  if (few_positions > 0) add(1);
  if (variants.empty() || model.max_seq_len > few_positions) {
    if (n_shared > 1 || variants.empty()) add(n_shared);
    // Fewer blocks would read the rows of a head for too long.
    constexpr int kLeastParts = 3;
    const bool has_many = !variants.empty() && variants.back().params.groups_per_kv == 1 &&
                          variants.back().params.n_parts >= kLeastParts;
    if (!has_many) return nullptr;
  }
  return std::unique_ptr<ClusterStep>(
      new ClusterStep(stream, model, std::move(variants), few_positions));
}

ClusterStep::ClusterStep(cudaStream_t stream, const DecodeModel& model,
                         std::vector<Variant> variants, int64_t few_positions)
    : CapturedStep(stream, model, 0),
      variants_(std::move(variants)),
      few_positions_(few_positions) {
  make_layers();
  for (Variant& variant : variants_) {
    ClusterParams& p = variant.params;
    p.layers = static_cast<const ClusterLayer*>(layers_.view().data);
    p.x = data_of<float>(x());
    p.rope = data_of<const float2>(model.rope_of(model.layers.front().spec));
    p.pages = pages();
    p.input = input();
  }
}

void ClusterStep::make_layers() {
  std::vector<ClusterLayer> layers;
  for (const DecodeLayer& l : model().layers) {
    ClusterLayer to{};
    const auto linears = linears_of(*l.weights);
    for (size_t i = 0; i < linears.size(); ++i) {
      const Matrix& w = linears[i]->weight;
      to.matrices[i] = {data_of<const uint8_t>(w.storage), data_of<const uint8_t>(w.scales),
                        data_of<const uint8_t>(w.mins)};
    }
    to.attn_norm = l.weights->attn_norm.weight.view().data;
    to.ffn_norm = l.weights->ffn_norm.weight.view().data;
    to.keys = static_cast<uint16_t*>(l.cache->keys.view().data);
    to.values = static_cast<uint16_t*>(l.cache->values.view().data);
    layers.push_back(to);
  }
  layers_ = on_card(std::as_bytes(std::span(layers)));
}

void ClusterStep::launch_layers(int variant) {
  const auto& [p, kernel] = variants_.at(size_t(variant));
  ClusterLaunch launch(p.n_blocks, kClusterThreads, size_t(p.shared.total), p.n_blocks, stream());
  MINFER_CUDA_CHECK(cudaLaunchKernelEx(launch.config(), kernel, p));
  DecodeLayers::launch_output(stream(), model(), x(), logits(), /*behind_experts=*/false);
}

}  // namespace minfer::cuda
