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
  if (!is_packed(w) || w.mins || w.scales.view().dtype != DType::F16 ||
      w.table != CodeTable::None) {
    return std::nullopt;
  }
  return w.dtype == DType::U4 ? StepFormat::U4 : StepFormat::U8;
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
  p.slice = {n_tiles - p.n_left, n_tiles / n_blocks, n_longer, shift, n_blocks};
  shift = (shift + n_longer) % n_blocks;
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
    if (layout.unit == 0) {
      if (w.in_dim > 65536) return std::nullopt;  // an int32 sum could overflow: multiply_codes
    } else {
      if (layout.unit < 32) return std::nullopt;
      p.scales_per_piece = layout.unit < piece_columns ? 2 : 1;
      p.unit_shift = std::countr_zero(unsigned(layout.unit));
      p.tile_scale_bytes = narrow<int>(layout.n_units) * kTileRows * 2;
      p.stage_scale_bytes = kStagePieces * piece_columns / layout.unit * kTileRows * 2;
    }
  }
  slice_tiles(p, n_tiles, in_pairs, n_blocks, shift);
  return p;
}

// Whether shared memory has room for the sums of all rows that a block computes in this phase, and
// the rows are whole tiles. `halves`: 2 for gate and up, else 1.
bool has_room(const StepGemv& p, int halves) {
  return (p.slice.rounds + 1) * p.tile_rows() * halves <= kStepMaxRows &&
         p.out_dim % p.tile_rows() == 0;
}

// Whether the registers of the consumer threads hold the input while they stage it.
bool can_stage(const StepGemv& p, bool has_norm) {
  return p.format <= StepFormat::BF16 || p.in_dim <= most_code_columns(has_norm);
}

// The matrices of a layer in the order of StepLayer::matrices.
std::array<const Matrix*, 7> matrices_of(const LayerWeights& w) {
  return {&w.wq.weight,     &w.wk.weight,   &w.wv.weight,    &w.wo.weight,
          &w.w_gate.weight, &w.w_up.weight, &w.w_down.weight};
}

std::optional<StepAttention> attention_of(const DecodeModel& model, int n_blocks) {
  const DType cache_dtype = model.layers.front().cache->dtype;
  const LayerSpec& spec = model.layers.front().spec;
  const int64_t heads_per_kv = spec.n_heads / spec.n_kv_heads;
  StepAttention a{};
  a.n_heads = narrow<int>(spec.n_heads);
  a.head_dim = narrow<int>(spec.head_dim);
  a.n_kv_heads = narrow<int>(spec.n_kv_heads);
  if (const Tensor table = model.rope_of(spec)) a.n_pairs = narrow<int>(table.shape[1]);
  for (int64_t n = 1; n <= kStepMaxHeads; ++n) {
    if (heads_per_kv % n == 0) a.heads_per_block = int(n);
  }
  a.blocks_per_kv = narrow<int>(heads_per_kv) / a.heads_per_block;
  a.n_groups = a.n_heads / a.heads_per_block;
  a.lanes = a.head_dim <= 64 ? 8 : 16;
  a.is_u8 = cache_dtype == DType::U8;
  const int row_bytes = a.row_bytes(), n_teams = kStepConsumers / a.lanes;
  a.stage_rows = std::min(kStageBytes / row_bytes, 4 * n_teams) / n_teams * n_teams;
  a.multiplies_codes = a.is_u8 && a.head_dim % 64 == 0;
  a.scale_log2 = spec.score_scale() * 1.44269504088896341f;
  const int n_elements = a.heads_per_block * a.head_dim;
  a.group_words = n_elements / 4;
  // As many splits as there are blocks, and as the memory has room for that merges them.
  const auto split_words = [&] { return narrow<int>(ceil_div(a.group_words, a.n_splits)); };
  a.n_splits = n_blocks / a.n_groups;
  const auto merged = [&] { return a.n_splits * (a.heads_per_block + split_words()) * 4; };
  while (a.n_splits > 1 && merged() > kScratchFloats) --a.n_splits;
  const int64_t n_qkv = spec.q_dim() + 2 * spec.kv_dim();
  if (a.n_splits == 0 || n_qkv > 65536 || a.head_dim > kStepMaxHeadDim || a.head_dim % 8 != 0 ||
      row_bytes % 16 != 0 || cache_dtype == DType::F32) {
    return std::nullopt;
  }
  a.split_words = split_words();
  // Measured: with 256 and 512 a step of INT4 at 128 to 256 positions took 4 % longer.
  a.most_alone = a.n_splits == 1 ? narrow<int>(model.max_seq_len) : 128;
  return a;
}

// Whether the weights of all layers have the formats of the first layer: the kernel runs the same
// code for each.
bool layers_are_alike(const DecodeModel& model) {
  const auto of_first = matrices_of(*model.layers.front().weights);
  return std::all_of(model.layers.begin(), model.layers.end(), [&](const DecodeLayer& layer) {
    return std::ranges::equal(matrices_of(*layer.weights), of_first,
                              [](const Matrix* a, const Matrix* b) { return same_format(*a, *b); });
  });
}

using StepGemvs = std::array<StepGemv, kStepPhases>;

// The linear phases of a layer and the output matrix, with their tiles dealt to the blocks. Null if
// the kernel has no code or no room for one of them.
std::optional<StepGemvs> gemvs_of(const DecodeModel& model, int n_blocks) {
  const LayerWeights& w = *model.layers.front().weights;
  int shift = 0;
  const auto qkv = gemv_of({&w.wq.weight, &w.wk.weight, &w.wv.weight}, false, n_blocks, shift);
  const auto wo = gemv_of({&w.wo.weight}, false, n_blocks, shift);
  const auto gate_up = gemv_of({&w.w_gate.weight, &w.w_up.weight}, true, n_blocks, shift);
  auto down = gemv_of({&w.w_down.weight}, false, n_blocks, shift);
  const auto head = gemv_of({model.output}, false, n_blocks, shift);
  if (!qkv || !wo || !gate_up || !down || !head) return std::nullopt;
  if (wo->rows_log != down->rows_log) return std::nullopt;
  down->slice = wo->slice;  // a block adds to the same rows of the residual stream in both
  if (!has_room(*qkv, 1) || !has_room(*wo, 1) || !has_room(*gate_up, 2) || !has_room(*down, 1) ||
      !can_stage(*qkv, true) || !can_stage(*wo, false) || !can_stage(*gate_up, true) ||
      !can_stage(*down, false) || !can_stage(*head, true)) {
    return std::nullopt;
  }
  return StepGemvs{*qkv, *wo, *gate_up, *down, *head};
}

// Lays out the `room` bytes of shared memory that a block has: staged activations, in memory that
// attention uses too, and the ring in the rest. False if that is too little.
bool lay_out(StepParams& p, int room) {
  StepAttention& a = p.attention;
  int scale_bytes = a.is_u8 ? CacheStages::scale_bytes(3, a.stage_rows) : 0;
  for (const StepGemv& gemv : p.gemvs) {
    scale_bytes = std::max(scale_bytes, gemv.stage_scale_bytes);
    const bool is_float = gemv.format <= StepFormat::BF16;
    p.input_bytes = std::max(p.input_bytes, staged_bytes(gemv.in_dim, is_float));
  }
  a.query_at = kStepWarps * a.heads_per_block * a.head_dim * int{sizeof(float)};
  const int kernel_heads = a.heads_per_block == 1 ? 1 : kStepMaxHeads;
  const int query_bytes = a.multiplies_codes ? QueryCodes::bytes(kernel_heads, a.head_dim) : 0;
  p.input_bytes = std::max(p.input_bytes, a.query_at + query_bytes);
  p.input_bytes = narrow<int>(align_up(p.input_bytes, 128));
  p.slot_bytes = kStageBytes + scale_bytes;
  p.n_slots = std::min((room - step_shared(p).total) / p.slot_bytes, kStepMaxSlots);
  return p.n_slots >= 2 * kStepProducers;
}

// Copies in flight delay the exchange. Measured on Llama-2-7B, tokens/s by the number of stages in
// flight while a block multiplies: INT4 with 4, 5, 6, 8 and no limit 807, 815, 805, 770, 740; INT8
// with 6, 8, 10 and no limit 526, 517, 507, 493; F16 with 6, 8 and 12, the same while it waits,
// 307, 304, 303.
void tune(StepParams& p) {
  const StepFormat format = p.gemvs[kWo].format;
  p.copies_of_exchange = format <= StepFormat::BF16 ? 6 : 4;
  p.copies_of_gemv = format == StepFormat::U4 ? 5 : 6;
}

}  // namespace

bool PersistentStep::can_compute(const DecodeModel& model) {
  const LayerSpec& s = model.layers.front().spec;
  // The neutral spec with the fields that are handled here: `s` differs if it sets any other.
  const LayerSpec handled = {.n_heads = s.n_heads,
                             .n_kv_heads = s.n_kv_heads,
                             .head_dim = s.head_dim,
                             .ffn_dim = s.ffn_dim,
                             .norm_eps = s.norm_eps,
                             .rope = s.rope,
                             .attn_scale = s.attn_scale};
  return std::all_of(model.layers.begin(), model.layers.end(),
                     [&](const DecodeLayer& l) { return l.spec == handled; }) &&
         model.edges == EdgeSpec{.output_norm_eps = s.norm_eps};
}

std::unique_ptr<PersistentStep> PersistentStep::make(cudaStream_t stream, DType compute_type,
                                                     const DecodeModel& model) {
  if (!can_compute(model) || !layers_are_alike(model)) return nullptr;
  int device = 0, n_blocks = 0, shared_limit = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&n_blocks, cudaDevAttrMultiProcessorCount, device));
  MINFER_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto gemvs = gemvs_of(model, n_blocks);
  const auto attention = attention_of(model, n_blocks);
  if (!gemvs || !attention) return nullptr;
  const auto kernel = step_kernel_of(attention->heads_per_block);
  if (!runs_hopper_code(reinterpret_cast<const void*>(kernel))) return nullptr;

  const LayerSpec& spec = model.layers.front().spec;
  StepParams p{};
  p.n_layers = narrow<int>(std::ssize(model.layers));
  p.dim = narrow<int>(model.embedding->in_dim);
  std::ranges::copy(*gemvs, p.gemvs);
  p.attention = *attention;
  p.eps = spec.norm_eps;
  p.norm_is_bf16 = compute_type == DType::BF16;
  p.rope = data_of<const float2>(model.rope_of(spec));
  cudaFuncAttributes attributes{};
  MINFER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  if (!lay_out(p, shared_limit - int(attributes.sharedSizeBytes))) return nullptr;
  tune(p);
  MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         step_shared(p).total));
  return std::unique_ptr<PersistentStep>(new PersistentStep(stream, model, p));
}

void PersistentStep::connect(std::span<const std::unique_ptr<PersistentStep>> ranks) {
  const int n_ranks = narrow<int>(std::ssize(ranks));
  MINFER_CHECK(n_ranks <= kStepMostRanks, "a step of ", n_ranks, " ranks");
  StepPeers peers{};
  peers.n_ranks = n_ranks;
  CardChange change;
  for (int rank = 0; rank < n_ranks; ++rank) {
    PersistentStep& step = *ranks[size_t(rank)];
    const StepParams &own = step.params_, &first = ranks[0]->params_;
    // Blocks of a rank are counted by the others.
    MINFER_CHECK(own.dim == first.dim && own.n_layers == first.n_layers &&
                     own.gemvs[kHead].slice.n_blocks == first.gemvs[kHead].slice.n_blocks,
                 "ranks of different models or cards");
    change.to(step.card());
    step.allocate_mailboxes(n_ranks);
    peers.mailboxes[rank] = static_cast<uint4*>(step.mailboxes_.view().data);
    peers.arrivals[rank] = static_cast<uint32_t*>(step.arrivals_.view().data);
    peers.logits[rank] = data_of<float>(step.logits());
  }
  for (int rank = 0; rank < n_ranks; ++rank) {
    StepPeers& own = ranks[size_t(rank)]->params_.peers;
    peers.rank = rank;
    peers.mailbox_words = own.mailbox_words;
    peers.logits_begin = own.logits_begin;
    peers.failed = own.failed;
    own = peers;
  }
}

PersistentStep::PersistentStep(cudaStream_t stream, const DecodeModel& model,
                               const StepParams& params)
    : CapturedStep(stream, model, uint32_t(params.n_layers)), params_(params) {
  allocate_words();
  make_layers();
  params_.x = data_of<const float>(x());
  params_.peers.n_ranks = 1;
  params_.peers.mailbox_words = params_.dim / 4;
  params_.peers.logits[0] = data_of<float>(logits());
  params_.peers.logits_begin = narrow<int>(model.logits_begin);
  params_.peers.failed = failed_peer();
  params_.input = input();
  params_.pages = pages();
}

void PersistentStep::launch_layers() {
  cudaLaunchAttribute cooperative{};  // all blocks are resident at once, or the launch fails
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(params_.gemvs[kHead].slice.n_blocks));
  config.blockDim = dim3(kStepThreads);
  config.dynamicSmemBytes = size_t(step_shared(params_).total);
  config.stream = stream();
  config.attrs = &cooperative;
  config.numAttrs = 1;
  MINFER_CUDA_CHECK(
      cudaLaunchKernelEx(&config, step_kernel_of(params_.attention.heads_per_block), params_));
}

void PersistentStep::clear_epochs() {
  for (const DeviceTensor* memory : {&words_, &mailboxes_, &arrivals_}) {
    if (!*memory) continue;
    MINFER_CUDA_CHECK(cudaMemsetAsync(memory->view().data, 0,
                                      static_cast<size_t>(memory->view().n_bytes()), stream()));
  }
}

void PersistentStep::allocate_mailboxes(int n_ranks) {
  const int64_t n_words = int64_t{2} * n_ranks * params_.peers.mailbox_words;
  mailboxes_ = allocate_device(DType::U8, {n_words * int64_t{sizeof(uint4)}});
  arrivals_ = allocate_device(DType::U8, {n_ranks * int64_t{sizeof(uint32_t)}});
}

void PersistentStep::allocate_words() {
  StepParams& p = params_;
  const StepAttention& a = p.attention;
  const LayerSpec& spec = model().layers.front().spec;
  const int64_t n_qkv = (spec.q_dim() + 2 * spec.kv_dim()) / 4, n_x = p.dim / 4;
  const int64_t n_split_results =
      int64_t{a.n_groups} * a.n_splits * (a.heads_per_block + a.group_words);
  const int64_t n_attended = int64_t{a.n_groups} * a.group_words;
  const int64_t n_hidden = p.gemvs[kDown].in_dim / 4;
  const StepGemv& gate_up = p.gemvs[kGateUp];
  const int64_t n_gate_up_splits =
      int64_t{gate_up.n_left} * std::max(gate_up.n_k_splits - 1, 0) * kKSplitWords;
  words_ = allocate_device(
      DType::U8, {(n_qkv + n_split_results + n_attended + 2 * n_x + n_hidden + n_gate_up_splits) *
                  int64_t{sizeof(uint4)}});
  p.words.qkv = static_cast<uint4*>(words_.view().data);
  p.words.split_results = p.words.qkv + n_qkv;
  p.words.attended = p.words.split_results + n_split_results;
  p.words.after_attention = p.words.attended + n_attended;
  p.words.after_ffn = p.words.after_attention + n_x;
  p.words.hidden = p.words.after_ffn + n_x;
  p.words.gate_up_splits = p.words.hidden + n_hidden;
}

void PersistentStep::make_layers() {
  StepParams& p = params_;
  const auto matrix = [](const Matrix& w) {
    return StepMatrix{data_of<const uint8_t>(w.storage), data_of<const uint8_t>(w.scales)};
  };
  std::vector<StepLayer> layers;
  for (const DecodeLayer& l : model().layers) {
    StepLayer to{};
    const auto matrices = matrices_of(*l.weights);
    for (size_t i = 0; i < matrices.size(); ++i) to.matrices[i] = matrix(*matrices[i]);
    to.attn_norm = l.weights->attn_norm.weight.view().data;
    to.ffn_norm = l.weights->ffn_norm.weight.view().data;
    to.keys = l.cache->keys.view().data;
    to.values = l.cache->values.view().data;
    to.key_scales = data_of<float>(l.cache->key_scales);
    to.value_scales = data_of<float>(l.cache->value_scales);
    layers.push_back(to);
  }
  StepLayer output{};
  output.matrices[0] = matrix(*model().output);
  output.attn_norm = model().output_norm->weight.view().data;
  layers.push_back(output);
  const auto n_bytes = layers.size() * sizeof(StepLayer);
  layers_ = allocate_device(DType::U8, {narrow<int64_t>(n_bytes)});
  MINFER_CUDA_CHECK(cudaMemcpyAsync(layers_.view().data, layers.data(), n_bytes,
                                    cudaMemcpyHostToDevice, stream()));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream()));  // `layers` is freed on return
  p.layers = static_cast<const StepLayer*>(layers_.view().data);
}

}  // namespace minfer::cuda
