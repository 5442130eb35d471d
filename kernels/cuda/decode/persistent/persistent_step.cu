#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "kernels/cuda/decode/persistent/step_codes.cuh"
#include "kernels/cuda/decode/persistent/step_slice.cuh"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

std::optional<StepFormat> format_of(const Matrix& w) {
  if (w.dtype == DType::F16) return StepFormat::F16;
  if (w.dtype == DType::BF16) return StepFormat::BF16;
  if (!is_packed(w) || w.table != CodeTable::None) return std::nullopt;
  return w.dtype == DType::U4 ? StepFormat::U4 : StepFormat::U8;
}

// Of packed codes, with `piece_columns` in a piece. Null if the kernel has no code for them.
std::optional<StepScales> scales_of(const Matrix& w, const PackedLayout& layout,
                                    int piece_columns) {
  const DType dtype = w.scales.view().dtype;
  if (dtype == DType::U8) {
    if (layout.unit != (w.mins ? 32 : 16)) return std::nullopt;
    return w.mins ? StepScales::ProductsMins : StepScales::Products;
  }
  if (dtype != DType::F16 || w.mins) return std::nullopt;
  if (layout.unit == 0) {
    if (w.in_dim > 65536) return std::nullopt;  // an int32 sum could overflow: multiply_codes
    return StepScales::OfRow;
  }
  if (layout.unit < 32) return std::nullopt;
  return layout.unit < piece_columns ? StepScales::OfHalfPiece : StepScales::OfPiece;
}

// Deals the tiles to the blocks. Left-over gate/up tile pairs of quantized weights are split along
// K over two or more blocks each, if there are enough blocks, so that no block gets an extra pair.
void slice_tiles(StepGemv& p, int n_tiles, bool in_pairs, int n_blocks, int& shift) {
  const int n_left = n_tiles % n_blocks;
  if (in_pairs && p.format >= StepFormat::U4 && n_left != 0) {
    const int n_k_splits = std::min({n_blocks / n_left, p.n_stages, kStepMaxKSplits});
    if (n_k_splits >= 2) {
      p.n_left = n_left;
      p.n_k_splits = n_k_splits;
    }
  }
  const int n_longer = n_left - p.n_left;
  p.slice = {n_tiles - p.n_left, n_tiles / n_blocks, n_longer, shift, n_blocks, 0, 0, n_blocks};
  shift = (shift + n_longer) % n_blocks;
}

int most_tiles(const StepGemv& p) { return p.slice.rounds + int(p.slice.n_longer != 0); }

// Most tiles, or gate/up pairs, of a round: all if shared memory has room for the sums of their
// rows and those of a K split. Else whole groups of four streams, which the ring does not cut.
int round_tiles_of(const StepGemv& p, bool in_pairs) {
  const int most = kStepMaxRows / p.tile_rows() / (in_pairs ? 2 : 1);
  const int with_k_split = most - (p.n_left != 0 ? 1 : 0);
  return most_tiles(p) <= with_k_split ? with_k_split : with_k_split & ~1;
}

// The linear phase of matrices whose tiles follow one another, or are paired (gate and up). Null if
// the kernel has no code for it.
std::optional<StepGemv> gemv_of(std::initializer_list<const Matrix*> matrices, bool in_pairs,
                                int n_blocks, int& shift) {
  const Matrix& w = **matrices.begin();
  const std::optional<StepFormat> format = format_of(w);
  if (!format) return std::nullopt;
  StepGemv p{};
  p.format = *format;
  p.in_dim = narrow<int>(w.in_dim);
  p.per_column = 1 / float(w.in_dim);
  const bool is_float = *format <= StepFormat::BF16;
  p.rows_log = is_float ? kFloatRowsLog : 4;
  const int tile_rows = p.tile_rows();
  std::fill(std::begin(p.ends), std::end(p.ends), std::numeric_limits<int>::max());
  int n_tiles = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& m = **(matrices.begin() + i);
    if (!same_format(w, m)) return std::nullopt;
    const bool is_last = i + 1 == matrices.size();
    if (!is_last && m.out_dim % tile_rows != 0) return std::nullopt;
    const int tiles = narrow<int>(ceil_div(m.out_dim, tile_rows));
    n_tiles = in_pairs ? tiles : n_tiles + tiles;
    if (!is_last && !in_pairs) p.ends[i] = n_tiles;
    p.out_dim = std::max(p.out_dim, narrow<int>(m.out_dim));
  }
  if (is_float) {
    if (w.in_dim % 8 != 0) return std::nullopt;
    p.code_bytes = 2 * p.in_dim;
    p.n_stages = narrow<int>(ceil_div(w.in_dim, kStageColumns));
  } else {
    const PackedLayout layout = layout_of(w);
    const int piece_columns = *format == StepFormat::U4 ? 64 : 32;
    p.code_bytes = narrow<int>(layout.row_tile_bytes());
    p.n_pieces = p.code_bytes / kPieceBytes;
    p.n_stages = narrow<int>(ceil_div(p.n_pieces, kStagePieces));
    const std::optional<StepScales> scales = scales_of(w, layout, piece_columns);
    if (!scales) return std::nullopt;
    p.scales = *scales;
    p.unit_shift = unit_shift_of(layout.unit);
    if (layout.products) {
      p.tile_scale_bytes = narrow<int>(layout.n_chunks) * layout.record_bytes();
      p.stage_scale_bytes = kStageBytes / kChunkBytes * layout.record_bytes();
    } else if (layout.unit != 0) {
      p.tile_scale_bytes = narrow<int>(layout.n_units) * kTileRows * 2;
      p.stage_scale_bytes = kStagePieces * piece_columns / layout.unit * kTileRows * 2;
    }
  }
  slice_tiles(p, n_tiles, in_pairs, n_blocks, shift);
  p.round_tiles = round_tiles_of(p, in_pairs);
  return p;
}

bool has_whole_tiles(const StepGemv& p) { return p.out_dim % p.tile_rows() == 0; }

// Whether a block computes all its rows in one round: a thread keeps the row of the residual stream
// that it adds to.
bool is_one_round(const StepGemv& p) { return most_tiles(p) <= p.round_tiles; }

// Whether the registers of the consumer threads hold the input while they stage it.
bool can_stage(const StepGemv& p, bool has_norm) {
  return p.format <= StepFormat::BF16 || p.in_dim <= most_code_columns(has_norm);
}

// The linear layers of a block in the order of StepLayer::matrices.
std::array<const Linear*, 7> linears_of(const LayerWeights& w) {
  return {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down};
}

// Sets the kinds of layers: one or two windows and RoPE tables, whose heads rotate alike. False if
// there are more.
bool set_kinds(StepAttention& a, const DecodeModel& model) {
  if (std::ssize(model.layers) > kStepMostLayers) return false;
  int n_kinds = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& spec = model.layers[i].spec;
    const Tensor table = model.rope_of(spec);
    const StepAttentionKind kind{narrow<int>(spec.window), data_of<const float2>(table)};
    const auto is_kind = [&](const StepAttentionKind& other) {
      return other.window == kind.window && other.rope == kind.rope;
    };
    const auto found = std::find_if(a.kinds, a.kinds + n_kinds, is_kind);
    const auto index = int(found - a.kinds);
    if (index == int(std::size(a.kinds))) return false;
    if (index == n_kinds) {
      a.kinds[n_kinds++] = kind;
      const int n_pairs = table ? narrow<int>(table.shape[1]) : 0;
      if (n_pairs != 0 && a.n_pairs != 0 && n_pairs != a.n_pairs) return false;
      a.n_pairs = std::max(a.n_pairs, n_pairs);
    }
    a.second_kind[i / 32] |= uint32_t(index) << i % 32;
  }
  return true;
}

// Attention of the blocks with up to most_heads query heads each. Null if the kernel cannot do it.
std::optional<StepAttention> attention_of(const DecodeModel& model, int n_blocks, int most_heads) {
  const DType cache_dtype = model.layers.front().cache->dtype;
  const LayerSpec& spec = model.layers.front().spec;
  const int64_t heads_per_kv = spec.n_heads / spec.n_kv_heads;
  StepAttention a{};
  a.n_heads = narrow<int>(spec.n_heads);
  a.head_dim = narrow<int>(spec.head_dim);
  a.n_kv_heads = narrow<int>(spec.n_kv_heads);
  a.qk_norm = spec.qk_norm;
  if (!set_kinds(a, model)) return std::nullopt;
  for (int n = 1; n <= most_heads; ++n) {
    if (heads_per_kv % n == 0) a.heads_per_block = n;
  }
  a.blocks_per_kv = narrow<int>(heads_per_kv) / a.heads_per_block;
  a.n_groups = a.n_heads / a.heads_per_block;
  a.lanes = a.head_dim <= 64 ? 8 : a.head_dim <= 128 ? 16 : 32;
  a.is_u8 = cache_dtype == DType::U8;
  const int row_bytes = a.row_bytes(), n_teams = kStepConsumers / a.lanes;
  a.stage_rows = std::min(kStageBytes / row_bytes, 4 * n_teams) / n_teams * n_teams;
  a.multiplies_codes = a.is_u8 && a.head_dim % 64 == 0;
  constexpr float kLog2E = 1.44269504088896341f;
  a.scale_log2 = spec.score_scale() * kLog2E;
  if (spec.attn_softcap != 0) {
    a.scale_log2 = spec.score_scale() / spec.attn_softcap;
    a.cap_log2 = spec.attn_softcap * kLog2E;
  }
  const int n_elements = a.heads_per_block * a.head_dim;
  a.group_words = n_elements / 4;
  // As many splits as there are blocks, and as the memory has room for that merges them.
  const auto split_words = [&] { return narrow<int>(ceil_div(a.group_words, a.n_splits)); };
  a.n_splits = n_blocks / a.n_groups;
  const auto merged = [&] { return a.n_splits * (a.heads_per_block + split_words()) * 4; };
  while (a.n_splits > 1 && merged() > kScratchFloats) --a.n_splits;
  const int64_t n_qkv = spec.q_dim() + 2 * spec.kv_dim();
  if (a.n_splits == 0 || n_qkv > 65536 || a.head_dim > kStepMostHeadDim || a.head_dim % 8 != 0 ||
      row_bytes % 16 != 0 || cache_dtype == DType::F32) {
    return std::nullopt;
  }
  if (a.qk_norm != QkNorm::None && a.head_dim % 64 != 0) return std::nullopt;  // norm_heads
  a.split_words = split_words();
  // Measured: with 256 and 512 a step of INT4 at 128 to 256 positions took 4 % longer.
  a.most_alone = a.n_splits == 1 ? narrow<int>(model.max_seq_len) : 128;
  return a;
}

// The variants of attention: for few positions and for many, or one for all.
std::vector<StepAttention> attentions_of(const DecodeModel& model, int n_blocks,
                                         int64_t few_positions) {
  const int head_dim = narrow<int>(model.layers.front().spec.head_dim);
  const auto few = few_positions > 0 ? attention_of(model, n_blocks, 1) : std::nullopt;
  const auto many = attention_of(model, n_blocks, step_most_heads(head_dim));
  std::vector<StepAttention> variants;
  if (few) variants.push_back(*few);
  const bool needs_many = !few || (model.max_seq_len > few_positions && many->heads_per_block > 1);
  if (needs_many && many) variants.push_back(*many);
  return variants;
}

bool are_alike(const LayerWeights& a, const LayerWeights& b) {
  return std::ranges::equal(linears_of(a), linears_of(b), [](const Linear* x, const Linear* y) {
    return same_format(x->weight, y->weight);
  });
}

// The linear phases of a mix, and v if it is apart: else without tiles.
struct StepGemvs {
  std::array<StepGemv, kStepPhases> phases;
  StepGemv values;
};

// Deals q and k to the first blocks and v, of another format, to the last ones, so that the longest
// block has as few bytes as possible.
bool share_blocks(StepGemv& qk, StepGemv& v, int n_blocks) {
  const auto tile_bytes = [](const StepGemv& p) { return p.code_bytes + p.tile_scale_bytes; };
  const int n_tiles = qk.slice.n_tiles;
  const auto longest = [&](int n_of_v) {
    return std::max(ceil_div(n_tiles, n_blocks - n_of_v) * tile_bytes(qk),
                    ceil_div(v.slice.n_tiles, n_of_v) * tile_bytes(v));
  };
  if (n_blocks < 2) return false;
  int best = 1;
  for (int n = 2; n < n_blocks; ++n) {
    if (longest(n) < longest(best)) best = n;
  }
  const auto share = [&](StepGemv& p, int first_tile, int first, int n) {
    const int tiles = p.slice.n_tiles;
    p.slice = {tiles, tiles / n, tiles % n, p.slice.shift, n_blocks, first_tile, first, n};
    p.round_tiles = round_tiles_of(p, false);
  };
  share(qk, 0, 0, n_blocks - best);
  share(v, n_tiles, n_blocks - best, best);
  v.ends[0] = qk.ends[0];
  v.ends[1] = n_tiles;
  return true;
}

// q, k and v, with v apart if its format is another one. False if the kernel has no code for them.
bool set_qkv(StepGemvs& gemvs, const LayerWeights& w, int n_blocks, int& shift) {
  const Matrix &q = w.wq.weight, &k = w.wk.weight, &v = w.wv.weight;
  if (same_format(q, v)) {
    const auto qkv = gemv_of({&q, &k, &v}, false, n_blocks, shift);
    if (qkv) gemvs.phases[kQkv] = *qkv;
    return qkv.has_value();
  }
  int shift_of_v = shift;
  const auto of_qk = gemv_of({&q, &k}, false, n_blocks, shift);
  const auto of_v = gemv_of({&v}, false, n_blocks, shift_of_v);
  if (!of_qk || !of_v || of_qk->rows_log != of_v->rows_log || !has_whole_tiles(*of_v)) return false;
  gemvs.phases[kQkv] = *of_qk;
  gemvs.values = *of_v;
  return can_stage(*of_v, true) && share_blocks(gemvs.phases[kQkv], gemvs.values, n_blocks);
}

// The linear phases of a layer and the output matrix, with their tiles dealt to the blocks. Null if
// the kernel has no code or no room for one of them.
std::optional<StepGemvs> gemvs_of(const DecodeModel& model, const LayerWeights& w, int n_blocks) {
  StepGemvs gemvs{};
  int shift = 0;
  if (!set_qkv(gemvs, w, n_blocks, shift)) return std::nullopt;
  const StepGemv& qkv = gemvs.phases[kQkv];
  const auto wo = gemv_of({&w.wo.weight}, false, n_blocks, shift);
  const auto gate_up = gemv_of({&w.w_gate.weight, &w.w_up.weight}, true, n_blocks, shift);
  auto down = gemv_of({&w.w_down.weight}, false, n_blocks, shift);
  const auto head = gemv_of({model.output}, false, n_blocks, shift);
  if (!wo || !gate_up || !down || !head) return std::nullopt;
  if (wo->rows_log != down->rows_log) return std::nullopt;
  down->slice = wo->slice;  // a block adds to the same rows of the residual stream in both
  down->round_tiles = wo->round_tiles;
  for (const StepGemv& gemv : {qkv, *wo, *gate_up, *down}) {
    if (!has_whole_tiles(gemv)) return std::nullopt;
  }
  if (!is_one_round(*wo) || !can_stage(qkv, true) || !can_stage(*gate_up, true) ||
      !can_stage(*head, true)) {
    return std::nullopt;
  }
  gemvs.phases = {qkv, *wo, *gate_up, *down, *head};
  return gemvs;
}

// The gemvs of each mix, and the mix of each layer. A block adds to the same rows of the residual
// stream in all layers. Null if there are too many mixes, or the kernel cannot do one.
struct StepMixed {
  std::vector<StepGemvs> mixes;
  std::vector<uint8_t> of_layer;
};
std::optional<StepMixed> mixes_of(const DecodeModel& model, int n_blocks) {
  StepMixed mixed;
  std::vector<const LayerWeights*> firsts;  // of each mix
  for (const DecodeLayer& layer : model.layers) {
    const auto same = std::ranges::find_if(
        firsts, [&](const LayerWeights* w) { return are_alike(*w, *layer.weights); });
    mixed.of_layer.push_back(uint8_t(same - firsts.begin()));
    if (same != firsts.end()) continue;
    auto gemvs = gemvs_of(model, *layer.weights, n_blocks);
    if (!gemvs || firsts.size() == kStepMixes) return std::nullopt;
    if (!firsts.empty()) {
      const StepGemv& wo = mixed.mixes.front().phases[kWo];
      for (const StepPhase phase : {kWo, kDown}) {
        StepGemv& own = gemvs->phases[phase];
        if (own.rows_log != wo.rows_log) return std::nullopt;
        own.slice = wo.slice;
        own.round_tiles = wo.round_tiles;
      }
    }
    firsts.push_back(layer.weights);
    mixed.mixes.push_back(*gemvs);
  }
  mixed.of_layer.push_back(0);  // the output
  return mixed;
}

// Lays out the `room` bytes of shared memory that a block has: staged activations, in memory that
// attention uses too, and the ring in the rest. False if that is too little.
bool lay_out(StepParams& p, int kernel_heads, int room) {
  StepAttention& a = p.attention;
  int scale_bytes = a.is_u8 ? CacheStages::scale_bytes(3, a.stage_rows) : 0;
  const auto make_room = [&](const StepGemv& gemv) {
    scale_bytes = std::max(scale_bytes, gemv.stage_scale_bytes);
    const bool is_float = gemv.format <= StepFormat::BF16;
    p.input_bytes = std::max(p.input_bytes, staged_bytes(gemv.in_dim, is_float));
  };
  for (int mix = 0; mix < p.n_mixes; ++mix) {
    for (const StepGemv& gemv : p.gemvs[mix]) make_room(gemv);
    make_room(p.values[mix]);
  }
  a.query_at = kStepWarps * a.heads_per_block * a.head_dim * int{sizeof(float)};
  const int query_bytes = a.multiplies_codes ? QueryCodes::bytes(kernel_heads, a.head_dim) : 0;
  p.input_bytes = std::max(p.input_bytes, a.query_at + query_bytes);
  p.input_bytes = narrow<int>(align_up(p.input_bytes, 128));
  if (p.block.has_post_norms()) p.residual_bytes = narrow<int>(align_up(p.dim * 4, 128));
  p.slot_bytes = kStageBytes + scale_bytes;
  p.n_slots = std::min((room - step_shared(p).total) / p.slot_bytes, kStepMaxSlots);
  return p.n_slots >= 2 * kStepProducers;
}

StepBlock block_of(const LayerSpec& spec, const EdgeSpec& edges) {
  return {.activation = spec.activation,
          .norm_places = spec.norm_places,
          .residual_scale = spec.residual_scale,
          .embedding_scale = edges.embedding_scale,
          .logit_scale = edges.logit_scale,
          .logit_softcap = edges.logit_softcap,
          .has_biases = spec.qkv_bias || spec.attn_out_bias || spec.ffn_bias};
}

// Whether the blocks are those of Llama, all alike, so that the instances for these suffice.
bool is_plain(const DecodeModel& model, const StepMixed& mixed) {
  const LayerSpec& s = model.layers.front().spec;
  const LayerSpec llama = {.n_heads = s.n_heads,
                           .n_kv_heads = s.n_kv_heads,
                           .head_dim = s.head_dim,
                           .ffn_dim = s.ffn_dim,
                           .norm_eps = s.norm_eps,
                           .rope = s.rope,
                           .attn_scale = s.attn_scale};
  return std::ranges::all_of(model.layers, [&](const DecodeLayer& l) { return l.spec == llama; }) &&
         model.edges == EdgeSpec{.output_norm_eps = s.norm_eps} &&
         std::ranges::all_of(mixed.mixes, [](const StepGemvs& mix) {
           return can_stage(mix.phases[kWo], false) && can_stage(mix.phases[kDown], false);
         });
}

// Copies in flight delay the exchange. Measured on Llama-2-7B, tokens/s by the number of stages in
// flight while a block multiplies: INT4 with 4, 5, 6, 8 and no limit 807, 815, 805, 770, 740; INT8
// with 6, 8, 10 and no limit 526, 517, 507, 493; F16 with 6, 8 and 12, the same while it waits,
// 307, 304, 303.
void tune(StepParams& p) {
  const StepFormat format = p.gemvs[0][kWo].format;
  p.copies_of_exchange = format <= StepFormat::BF16 ? 6 : 4;
  p.copies_of_gemv = format == StepFormat::U4 ? 5 : 6;
}

}  // namespace

bool PersistentStep::can_compute(const DecodeModel& model) {
  const LayerSpec& s = model.layers.front().spec;
  // The neutral spec with the fields that are handled here: a layer differs if it sets any other.
  // All layers have those of the first one, except for their window and rotation.
  LayerSpec handled = {.n_heads = s.n_heads,
                       .n_kv_heads = s.n_kv_heads,
                       .head_dim = s.head_dim,
                       .ffn_dim = s.ffn_dim,
                       .norm_eps = s.norm_eps,
                       .norm_places = s.norm_places,
                       .residual_scale = s.residual_scale,
                       .qkv_bias = s.qkv_bias,
                       .attn_out_bias = s.attn_out_bias,
                       .ffn_bias = s.ffn_bias,
                       .qk_norm = s.qk_norm,
                       .attn_scale = s.attn_scale,
                       .attn_softcap = s.attn_softcap,
                       .activation = s.activation};
  const EdgeSpec& e = model.edges;
  return std::all_of(model.layers.begin(), model.layers.end(),
                     [&](const DecodeLayer& l) {
                       handled.rope = l.spec.rope;
                       handled.window = l.spec.window;
                       return l.spec == handled && s.qk_norm != QkNorm::LayerOfEachHead;
                     }) &&
         e == EdgeSpec{.embedding_scale = e.embedding_scale,
                       .output_norm_eps = s.norm_eps,
                       .logit_scale = e.logit_scale,
                       .logit_softcap = e.logit_softcap};
}

std::unique_ptr<PersistentStep> PersistentStep::make(cudaStream_t stream, DType compute_type,
                                                     const DecodeModel& model,
                                                     int64_t few_positions) {
  if (!can_compute(model)) return nullptr;
  int device = 0, n_blocks = 0, shared_limit = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&n_blocks, cudaDevAttrMultiProcessorCount, device));
  MINFER_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto mixed = mixes_of(model, n_blocks);
  if (!mixed) return nullptr;
  const LayerSpec& spec = model.layers.front().spec;
  const StepBlock block = block_of(spec, model.edges);
  // Blocks that keep a residual stream of their own all have rows of `hidden`: step_exchange.cuh.
  if (block.has_post_norms() && std::ranges::any_of(mixed->mixes, [](const StepGemvs& mix) {
        return mix.phases[kGateUp].slice.rounds == 0;
      })) {
    return nullptr;
  }

  std::vector<Variant> variants;
  for (const StepAttention& attention : attentions_of(model, n_blocks, few_positions)) {
    const StepKernel kernel =
        step_kernel_of(attention.heads_per_block, attention.head_dim, is_plain(model, *mixed));
    if (!kernel.is_plain && model.embedding->in_dim > most_code_columns(true)) return nullptr;
    if (!runs_hopper_code(reinterpret_cast<const void*>(kernel.run))) return nullptr;
    StepParams p{};
    p.n_layers = narrow<int>(std::ssize(model.layers));
    p.dim = narrow<int>(model.embedding->in_dim);
    p.n_mixes = narrow<int>(std::ssize(mixed->mixes));
    for (int mix = 0; mix < p.n_mixes; ++mix) {
      std::ranges::copy(mixed->mixes[size_t(mix)].phases, p.gemvs[mix]);
      p.values[mix] = mixed->mixes[size_t(mix)].values;
    }
    std::ranges::copy(mixed->of_layer, p.mix_of_layer);
    p.attention = attention;
    p.eps = spec.norm_eps;
    p.block = block;
    p.vectors_are_bf16 = compute_type == DType::BF16;
    cudaFuncAttributes attributes{};
    MINFER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel.run));
    if (!lay_out(p, kernel.heads, shared_limit - int(attributes.sharedSizeBytes))) return nullptr;
    tune(p);
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           step_shared(p).total));
    variants.push_back({p, kernel});
  }
  if (variants.empty()) return nullptr;
  return std::unique_ptr<PersistentStep>(
      new PersistentStep(stream, model, std::move(variants), few_positions));
}

void PersistentStep::connect(std::span<const std::unique_ptr<PersistentStep>> ranks) {
  const int n_ranks = narrow<int>(std::ssize(ranks));
  MINFER_CHECK(n_ranks <= kStepMostRanks, "a step of ", n_ranks, " ranks");
  StepPeers peers{};
  peers.n_ranks = n_ranks;
  CardChange change;
  for (int rank = 0; rank < n_ranks; ++rank) {
    PersistentStep& step = *ranks[size_t(rank)];
    const StepParams &own = step.params(), &first = ranks[0]->params();
    // Blocks of a rank are counted by the others.
    MINFER_CHECK(own.dim == first.dim && own.n_layers == first.n_layers &&
                     own.n_blocks() == first.n_blocks(),
                 "ranks of different models or cards");
    change.to(step.card());
    step.allocate_mailboxes(n_ranks);
    peers.mailboxes[rank] = static_cast<uint4*>(step.mailboxes_.view().data);
    peers.arrivals[rank] = static_cast<uint32_t*>(step.arrivals_.view().data);
    peers.logits[rank] = data_of<float>(step.logits());
  }
  for (int rank = 0; rank < n_ranks; ++rank) {
    const StepPeers& own = ranks[size_t(rank)]->params().peers;
    peers.rank = rank;
    peers.mailbox_words = own.mailbox_words;
    peers.logits_begin = own.logits_begin;
    peers.failed = own.failed;
    for (Variant& variant : ranks[size_t(rank)]->variants_) variant.params.peers = peers;
  }
}

PersistentStep::PersistentStep(cudaStream_t stream, const DecodeModel& model,
                               std::vector<Variant> variants, int64_t few_positions)
    : CapturedStep(stream, model, uint32_t(variants.front().params.n_layers)),
      variants_(std::move(variants)),
      few_positions_(few_positions) {
  allocate_words();
  make_layers();
  for (Variant& variant : variants_) {
    StepParams& p = variant.params;
    p.x = data_of<const float>(x());
    p.peers.n_ranks = 1;
    p.peers.mailbox_words = p.dim / 4;
    p.peers.logits[0] = data_of<float>(logits());
    p.peers.logits_begin = narrow<int>(model.logits_begin);
    p.peers.failed = failed_peer();
    p.input = input();
    p.pages = pages();
  }
}

void PersistentStep::launch_layers(int variant) {
  const auto& [p, kernel] = variants_.at(size_t(variant));
  cudaLaunchAttribute cooperative{};  // all blocks are resident at once, or the launch fails
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(p.n_blocks()));
  config.blockDim = dim3(kStepThreads);
  config.dynamicSmemBytes = size_t(step_shared(p).total);
  config.stream = stream();
  config.attrs = &cooperative;
  config.numAttrs = 1;
  const auto run = p.clocks != nullptr ? kernel.run_and_count : kernel.run;
  MINFER_CUDA_CHECK(cudaLaunchKernelEx(&config, run, p));
}

void PersistentStep::set_clocks(StepClocks* clocks) {
  for (auto& [params, kernel] : variants_) {
    params.clocks = clocks;
    if (clocks == nullptr) continue;
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel.run_and_count,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           step_shared(params).total));
  }
  drop_graphs();
}

void PersistentStep::clear_epochs() {
  for (const DeviceTensor* memory : {&words_, &mailboxes_, &arrivals_}) {
    if (!*memory) continue;
    MINFER_CUDA_CHECK(cudaMemsetAsync(memory->view().data, 0,
                                      static_cast<size_t>(memory->view().n_bytes()), stream()));
  }
}

void PersistentStep::allocate_mailboxes(int n_ranks) {
  const int64_t n_words = int64_t{2} * n_ranks * params().peers.mailbox_words;
  mailboxes_ = allocate_device(DType::U8, {n_words * int64_t{sizeof(uint4)}});
  arrivals_ = allocate_device(DType::U8, {n_ranks * int64_t{sizeof(uint32_t)}});
}

void PersistentStep::allocate_words() {
  const StepParams& p = params();
  const LayerSpec& spec = model().layers.front().spec;
  const int64_t n_qkv = (spec.q_dim() + 2 * spec.kv_dim()) / 4, n_x = p.dim / 4;
  int64_t n_split_results = 0;
  for (const Variant& variant : variants_) {
    const StepAttention& a = variant.params.attention;
    n_split_results = std::max(
        n_split_results, int64_t{a.n_groups} * a.n_splits * (a.heads_per_block + a.group_words));
  }
  const int64_t n_attended = spec.q_dim() / 4;
  const int64_t n_hidden = p.gemvs[0][kDown].in_dim / 4;
  int64_t n_gate_up_splits = 0;
  for (int mix = 0; mix < p.n_mixes; ++mix) {
    const StepGemv& gate_up = p.gemvs[mix][kGateUp];
    const int64_t n = int64_t{gate_up.n_left} * std::max(gate_up.n_k_splits - 1, 0) * kKSplitWords;
    n_gate_up_splits = std::max(n_gate_up_splits, n);
  }
  words_ = allocate_device(
      DType::U8, {(n_qkv + n_split_results + n_attended + 2 * n_x + n_hidden + n_gate_up_splits) *
                  int64_t{sizeof(uint4)}});
  StepWords words{};
  words.qkv = static_cast<uint4*>(words_.view().data);
  words.split_results = words.qkv + n_qkv;
  words.attended = words.split_results + n_split_results;
  words.after_attention = words.attended + n_attended;
  words.after_ffn = words.after_attention + n_x;
  words.hidden = words.after_ffn + n_x;
  words.gate_up_splits = words.hidden + n_hidden;
  for (Variant& variant : variants_) variant.params.words = words;
}

void PersistentStep::make_layers() {
  const auto matrix = [](const Matrix& w) {
    return StepMatrix{data_of<const uint8_t>(w.storage), data_of<const uint8_t>(w.scales)};
  };
  const auto vector = [](const DeviceTensor& v) -> const void* { return v.view().data; };
  std::vector<StepLayer> layers;
  const void* post_norm_of_last = nullptr;
  for (const DecodeLayer& l : model().layers) {
    StepLayer to{};
    const LayerWeights& w = *l.weights;
    const auto linears = linears_of(w);
    for (size_t i = 0; i < linears.size(); ++i) {
      to.matrices[i] = matrix(linears[i]->weight);
      to.biases[i] = vector(linears[i]->bias);
    }
    to.attn_norm = vector(w.attn_norm.weight);
    to.ffn_norm = vector(w.ffn_norm.weight);
    to.post_norms[0] = post_norm_of_last;
    to.post_norms[1] = vector(w.attn_post_norm.weight);
    post_norm_of_last = vector(w.ffn_post_norm.weight);
    to.q_norm = vector(w.q_norm.weight);
    to.k_norm = vector(w.k_norm.weight);
    to.keys = l.cache->keys.view().data;
    to.values = l.cache->values.view().data;
    to.key_scales = data_of<float>(l.cache->key_scales);
    to.value_scales = data_of<float>(l.cache->value_scales);
    layers.push_back(to);
  }
  StepLayer output{};
  output.matrices[0] = matrix(*model().output);
  output.attn_norm = vector(model().output_norm->weight);
  output.post_norms[0] = post_norm_of_last;
  layers.push_back(output);
  const auto n_bytes = layers.size() * sizeof(StepLayer);
  layers_ = allocate_device(DType::U8, {narrow<int64_t>(n_bytes)});
  MINFER_CUDA_CHECK(cudaMemcpyAsync(layers_.view().data, layers.data(), n_bytes,
                                    cudaMemcpyHostToDevice, stream()));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream()));  // `layers` is freed on return
  for (Variant& variant : variants_) {
    variant.params.layers = static_cast<const StepLayer*>(layers_.view().data);
  }
}

}  // namespace minfer::cuda
