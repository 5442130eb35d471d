#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/decode/persistent/step_gemvs.h"
#include "kernels/cuda/quant/matrix_view.cuh"

namespace minfer::cuda {
namespace {

std::optional<StepFormat> format_of(const Matrix& w, StageLength length) {
  if (w.dtype == DType::F16) return StepFormat::F16;
  if (w.dtype == DType::BF16) return StepFormat::BF16;
  if (!is_packed(w)) return std::nullopt;
  switch (code_form_of(w)) {
    case CodeForm::U2:
      return StepFormat::U2;
    case CodeForm::U3:
      return StepFormat::U3;
    case CodeForm::U4:
      return StepFormat::U4;
    case CodeForm::U5:
      return length == StageLength::Short ? StepFormat::U5Short : StepFormat::U5;
    case CodeForm::U6:
      return StepFormat::U6;
    case CodeForm::U8:
      return StepFormat::U8;
    case CodeForm::Table:
      return StepFormat::Table;
  }
  throw Error(ErrorKind::Internal, "codes of an unknown form");
}

// Of packed codes. Null if the kernel has no code for them.
std::optional<StepScales> scales_of(const Matrix& w, const PackedLayout& layout,
                                    StepFormat format) {
  const DType dtype = w.scales.view().dtype;
  if (dtype == DType::U8) {
    if (!has_known_products(w)) return std::nullopt;
    return w.mins ? StepScales::ProductsMins : StepScales::Products;
  }
  if (dtype != DType::F16) return std::nullopt;
  if (layout.unit == 0) {
    // An int32 sum of more columns could overflow: multiply_codes.
    if (w.in_dim > 65536 || w.mins || w.table != CodeTable::None) return std::nullopt;
    return StepScales::OfRow;
  }
  if (layout.unit < 32) return std::nullopt;
  const bool is_half = layout.unit < piece_columns(format);
  if (w.table != CodeTable::None && (!is_half || w.mins)) return std::nullopt;  // of no file
  if (w.mins) return is_half ? StepScales::OfHalfPieceMins : StepScales::OfPieceMins;
  return is_half ? StepScales::OfHalfPiece : StepScales::OfPiece;
}

// Deals the tiles to the blocks. Left-over gate/up tile pairs of quantized weights are split along
// K over two or more blocks each, if there are enough blocks, so that no block gets an extra pair.
void slice_tiles(StepGemv& p, int n_tiles, bool in_pairs, int n_blocks, int& shift) {
  const int n_left = n_tiles % n_blocks;
  if (in_pairs && are_codes(p.format) && n_left != 0) {
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
// rows and those of a K split, and there is a thread to publish each row of a token, beside a warp
// that adds K splits. Else whole groups of four streams, which the ring does not cut.
int round_tiles_of(const StepGemv& p, bool in_pairs, int n_tokens) {
  const int most = kStepMaxRows / p.tile_rows() / (in_pairs ? 2 : 1);
  const int n_threads = kStepConsumers / n_tokens - (p.n_left != 0 ? 32 : 0);
  const int with_k_split = std::min(most - (p.n_left != 0 ? 1 : 0), n_threads / p.tile_rows());
  return most_tiles(p) <= with_k_split ? with_k_split : with_k_split & ~1;
}

// Whether no stage has columns of more than two experts: expert_copy.
bool stages_fit(const StepGemv& p, int n_active) {
  const int n_bytes = stage_bytes(p.format), all = n_active * p.code_bytes;
  for (int begin = 0; begin < all; begin += n_bytes) {
    const int last = std::min(begin + n_bytes, all) - 1;
    if (last / p.code_bytes - begin / p.code_bytes > 1) return false;
  }
  return true;
}

// The linear phase of matrices whose tiles follow one another, or are paired (gate and up). Null if
// the kernel has no code for it. n_active: of so many chosen experts with matrices like these,
// whose pairs, or whose columns, follow one another; 0: of no experts.
std::optional<StepGemv> gemv_of(std::initializer_list<const Matrix*> matrices, bool in_pairs,
                                const StepGrid& grid, int& shift, int n_active = 0) {
  const int n_blocks = grid.n_blocks;
  const Matrix& w = **matrices.begin();
  const int n_alike = std::max(n_active, 1);
  const std::optional<StepFormat> format = format_of(w, grid.stages);
  if (!format) return std::nullopt;
  StepGemv p{};
  p.format = *format;
  p.in_dim = narrow<int>(w.in_dim);
  p.per_column = 1 / float(w.in_dim);
  const bool is_float = !are_codes(*format);
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
  if (in_pairs) {
    p.expert_pairs = n_tiles;
    n_tiles *= n_alike;
  } else {
    p.in_dim *= n_alike;
  }
  if (is_float) {
    if (w.in_dim % 8 != 0) return std::nullopt;
    p.code_bytes = narrow<int>(2 * w.in_dim);
    p.n_stages = narrow<int>(ceil_div(p.in_dim, kStageColumns));
  } else {
    const PackedLayout layout = layout_of(w);
    p.code_bytes = narrow<int>(layout.row_tile_bytes());
    p.n_pieces = p.code_bytes / kPieceBytes * (in_pairs ? 1 : n_alike);
    p.n_stages = narrow<int>(ceil_div(p.n_pieces, stage_pieces(*format)));
    const std::optional<StepScales> scales = scales_of(w, layout, *format);
    if (!scales) return std::nullopt;
    p.scales = *scales;
    // Scales of rows, and minimums, are fetched by the pointers of a layer, which experts are not
    // among, and the columns of experts follow one another without a gap.
    const bool by_layer = p.has_row_scales() || p.has_mins();
    const bool is_whole = w.in_dim % kTileColumns == 0;
    if (n_active != 0 && (by_layer || !is_whole)) return std::nullopt;
    p.unit_shift = unit_shift_of(layout.unit);
    p.table = table_bytes_of(w);
    if (layout.products) {
      p.tile_scale_bytes = narrow<int>(layout.n_chunks) * layout.record_bytes();
      p.expert_scale_bytes = p.tile_scale_bytes;
      p.stage_scale_bytes = stage_bytes(*format) / layout.chunk_bytes() * layout.record_bytes();
    } else if (layout.unit != 0) {
      p.tile_scale_bytes = narrow<int>(layout.n_units) * kTileRows * 2;
      p.expert_scale_bytes = narrow<int>(w.in_dim) / layout.unit * kTileRows * 2;
      p.stage_scale_bytes = kStagePieces * piece_columns(*format) / layout.unit * kTileRows * 2;
    }
  }
  if (n_active != 0 && !in_pairs && !stages_fit(p, n_active)) return std::nullopt;
  slice_tiles(p, n_tiles, in_pairs, n_blocks, shift);
  p.round_tiles = round_tiles_of(p, in_pairs, grid.n_tokens);
  return p;
}

bool has_whole_tiles(const StepGemv& p) { return p.out_dim % p.tile_rows() == 0; }

// Whether a block computes all its rows in one round: a thread keeps the row of the residual stream
// that it adds to.
bool is_one_round(const StepGemv& p) { return most_tiles(p) <= p.round_tiles; }

bool are_alike(const LayerWeights& a, const LayerWeights& b) {
  return std::ranges::equal(linears_of(a), linears_of(b), [](const Linear* x, const Linear* y) {
    return same_format(x->weight, y->weight);
  });
}

// Deals the first matrices of q, k and v to the first blocks and the rest, of another format, to
// the last ones, so that the longest block has as few bytes as possible.
bool share_blocks(StepGemv& first, StepGemv& rest, const StepGrid& grid) {
  const int n_blocks = grid.n_blocks;
  const auto tile_bytes = [](const StepGemv& p) {
    return p.code_bytes + p.tile_scale_bytes + p.tile_min_bytes();
  };
  const int n_tiles = first.slice.n_tiles;
  const auto longest = [&](int n_of_rest) {
    return std::max(ceil_div(n_tiles, n_blocks - n_of_rest) * tile_bytes(first),
                    ceil_div(rest.slice.n_tiles, n_of_rest) * tile_bytes(rest));
  };
  if (n_blocks < 2) return false;
  int best = 1;
  for (int n = 2; n < n_blocks; ++n) {
    if (longest(n) < longest(best)) best = n;
  }
  const auto share = [&](StepGemv& p, int first_tile, int first_block, int n) {
    const int tiles = p.slice.n_tiles;
    p.slice = {tiles, tiles / n, tiles % n, p.slice.shift, n_blocks, first_tile, first_block, n};
    p.round_tiles = round_tiles_of(p, false, grid.n_tokens);
  };
  share(first, 0, 0, n_blocks - best);
  share(rest, n_tiles, n_blocks - best, best);
  return true;
}

// q, k and v: together, or v apart if its format is another one, or k and v, as in Q4_K_M files of
// Mixtral. False if the kernel has no code for them.
bool set_qkv(StepGemvs& gemvs, const LayerWeights& w, const StepGrid& grid, int& shift) {
  const Matrix &q = w.wq.weight, &k = w.wk.weight, &v = w.wv.weight;
  if (same_format(q, k) && same_format(q, v)) {
    const auto qkv = gemv_of({&q, &k, &v}, false, grid, shift);
    if (qkv) gemvs.phases[kQkv] = *qkv;
    return qkv.has_value();
  }
  const bool k_is_apart = !same_format(q, k);
  int shift_of_rest = shift;
  const auto first =
      k_is_apart ? gemv_of({&q}, false, grid, shift) : gemv_of({&q, &k}, false, grid, shift);
  auto rest = k_is_apart ? gemv_of({&k, &v}, false, grid, shift_of_rest)
                         : gemv_of({&v}, false, grid, shift_of_rest);
  if (!first || !rest || first->rows_log != rest->rows_log || !has_whole_tiles(*rest)) return false;
  // Tiles are counted from the first one of q on.
  const int n_first = first->slice.n_tiles;
  rest->ends[1] = k_is_apart ? n_first + rest->ends[0] : n_first;
  rest->ends[0] = k_is_apart ? n_first : first->ends[0];
  gemvs.phases[kQkv] = *first;
  gemvs.qkv_rest = *rest;
  return can_stage(*rest, true) && share_blocks(gemvs.phases[kQkv], gemvs.qkv_rest, grid);
}

// The linear phases of a layer and the output matrix, with their tiles dealt to the blocks. Null if
// the kernel has no code or no room for one of them.
std::optional<StepGemvs> gemvs_of(const DecodeModel& model, const LayerWeights& w,
                                  const StepGrid& grid) {
  StepGemvs gemvs{};
  const LayerSpec& spec = model.layers.front().spec;
  const int n_active = spec.has_experts() ? narrow<int>(spec.n_active_experts) : 0;
  const auto linears = linears_of(w);
  const auto matrix = [&](int i) { return &linears[size_t(i)]->weight; };
  int shift = 0;
  if (!set_qkv(gemvs, w, grid, shift)) return std::nullopt;
  const StepGemv& qkv = gemvs.phases[kQkv];
  const auto wo = gemv_of({&w.wo.weight}, false, grid, shift);
  const auto gate_up = gemv_of({matrix(4), matrix(5)}, true, grid, shift, n_active);
  auto down = gemv_of({matrix(6)}, false, grid, shift, n_active);
  const auto head = gemv_of({model.output}, false, grid, shift);
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

StepWeights weights_of(const StepMixes& mixed, bool has_experts) {
  const StepGemvs& first = mixed.mixes.front();
  const auto is_mixed = [](const StepGemv& p) {
    return p.scales >= StepScales::OfPieceMins || p.format == StepFormat::Table;
  };
  const auto is_float = [](const StepGemv& p) { return !are_codes(p.format); };
  const auto is_product = [](const StepGemv& p) {
    return (p.format == StepFormat::U4 && p.scales == StepScales::ProductsMins) ||
           p.format == StepFormat::U6;
  };
  const auto are_products = [&](const StepGemvs& mix) {
    return std::ranges::all_of(mix.phases, is_product) &&
           (mix.qkv_rest.slice.n_tiles == 0 || is_product(mix.qkv_rest));
  };
  if (!has_experts && std::ranges::all_of(mixed.mixes, are_products)) return StepWeights::Products;
  if (has_experts || mixed.mixes.size() > 1 || first.qkv_rest.slice.n_tiles != 0 ||
      std::ranges::any_of(first.phases, is_mixed)) {
    return StepWeights::Mixed;
  }
  if (std::ranges::all_of(first.phases, is_float)) return StepWeights::Floats;
  const auto is_int8 = [](const StepGemv& p) { return p.format == StepFormat::U8; };
  if (std::ranges::all_of(first.phases, is_int8)) return StepWeights::Int8;
  const StepGemv &qkv = first.phases[kQkv], &head = first.phases[kHead];
  const auto is_int4 = [&](const StepGemv& p) {
    return p.format == StepFormat::U4 && p.scales == qkv.scales && p.scales != StepScales::OfRow;
  };
  const bool are_int4 = std::all_of(first.phases.begin(), first.phases.begin() + kHead, is_int4) &&
                        (is_int4(head) || head.format == StepFormat::U8);
  if (!are_int4) return StepWeights::Codes;
  return qkv.scales == StepScales::OfPiece ? StepWeights::Int4 : StepWeights::ShortInt4;
}

// Puts four or two whole rows of floats in a stage, if so many fit.
void put_rows_in_stages(StepGemv& p) {
  while (p.stage_rows_log < kFloatRowsLog && 2 * p.code_bytes <= kStageBytes) {
    p.code_bytes *= 2;
    ++p.stage_rows_log;
  }
}

}  // namespace

std::array<const Linear*, 7> linears_of(const LayerWeights& w) {
  if (w.moe.experts.empty()) return {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down};
  const Expert& first = w.moe.experts.front();
  return {&w.wq, &w.wk, &w.wv, &w.wo, &first.w_gate, &first.w_up, &first.w_down};
}

bool gives_stages_to_all_producers(const StepMixes& mixed) {
  const int n_blocks = mixed.mixes.front().phases[kHead].slice.n_blocks;
  for (int block = 0; block < n_blocks; ++block) {
    const auto stages_of = [&](const StepGemv& p, int streams) {
      return p.slice.count(block) * p.n_stages * streams;
    };
    for (const StepGemvs& mix : mixed.mixes) {
      const auto& phases = mix.phases;
      const int n_stages = stages_of(phases[kQkv], 1) + stages_of(mix.qkv_rest, 1) +
                           stages_of(phases[kWo], 1) + stages_of(phases[kGateUp], 2) +
                           stages_of(phases[kDown], 1);
      if (n_stages < kStepProducers) return false;
    }
  }
  return true;
}

std::optional<StepMixes> mixes_of(const DecodeModel& model, const StepGrid& grid) {
  StepMixes mixed;
  std::vector<const LayerWeights*> firsts;  // of each mix
  for (const DecodeLayer& layer : model.layers) {
    const auto same = std::ranges::find_if(
        firsts, [&](const LayerWeights* w) { return are_alike(*w, *layer.weights); });
    mixed.of_layer.push_back(uint8_t(same - firsts.begin()));
    if (same != firsts.end()) continue;
    auto gemvs = gemvs_of(model, *layer.weights, grid);
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
  mixed.weights = weights_of(mixed, model.layers.front().spec.has_experts());
  if (mixed.weights == StepWeights::Floats && grid.has_several_rows) {
    std::ranges::for_each(mixed.mixes.front().phases, put_rows_in_stages);
  }
  return mixed;
}

}  // namespace minfer::cuda
