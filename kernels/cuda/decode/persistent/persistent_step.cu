#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/cuda/attention/softmax_state.cuh"
#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "kernels/cuda/decode/persistent/step_codes.cuh"
#include "kernels/cuda/decode/persistent/step_gemvs.h"
#include "kernels/cuda/decode/persistent/step_slice.cuh"
#include "kernels/cuda/decode/plain_blocks.h"

namespace minfer::cuda {
namespace {

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
std::optional<StepAttention> attention_of(const DecodeModel& model, int n_blocks, int most_heads,
                                          int64_t elements_alone) {
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
  a.lanes_log = a.head_dim <= 64 ? 3 : a.head_dim <= 128 ? 4 : 5;
  a.is_u8 = cache_dtype == DType::U8;
  const int row_bytes = a.row_bytes(), n_teams = kStepConsumers / a.lanes();
  a.stage_rows = std::min(kStageBytes / row_bytes, 4 * n_teams) / n_teams * n_teams;
  a.multiplies_codes = a.is_u8 && a.head_dim % 64 == 0;
  constexpr float kLog2E = 1.44269504088896341f;
  a.scale_log2 = spec.score_scale() * kLog2E;
  const auto softcap = attention::SoftCap::of(spec.attn_softcap, kLog2E);
  a.cap_log2 = softcap.c;
  a.cap_factor = softcap.factor;
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
  a.most_alone = narrow<int>(
      a.n_splits == 1 ? model.max_seq_len : std::min<int64_t>(elements_alone / spec.head_dim, 256));
  return a;
}

// The variants of attention: for few positions and for many, or one for all.
std::vector<StepAttention> attentions_of(const DecodeModel& model, int n_blocks,
                                         const PersistentStep::Tuning& tuning) {
  const int head_dim = narrow<int>(model.layers.front().spec.head_dim);
  const auto with = [&](int most_heads) {
    return attention_of(model, n_blocks, most_heads, tuning.elements_alone);
  };
  const int64_t few_positions = tuning.few_positions;
  const auto few = few_positions > 0 ? with(1) : std::nullopt;
  const auto many = with(step_most_heads(head_dim, tuning.n_tokens));
  std::vector<StepAttention> variants;
  if (few) variants.push_back(*few);
  const bool needs_many = !few || (model.max_seq_len > few_positions && many->heads_per_block > 1);
  if (needs_many && many) variants.push_back(*many);
  return variants;
}

// Lays out the `room` bytes of shared memory that a block has: staged activations, in memory that
// attention uses too, and the ring in the rest. False if that is too little. kernel_queries: of the
// instance.
bool lay_out(StepParams& p, int kernel_queries, int room) {
  StepAttention& a = p.attention;
  p.slot_bytes = kStageBytes + (a.is_u8 ? CacheStages::scale_bytes(3, a.stage_rows) : 0);
  const auto make_room = [&](const StepGemv& gemv, bool in_parts = false) {
    p.slot_bytes = std::max(
        p.slot_bytes, stage_bytes(gemv.format) + gemv.stage_scale_bytes + gemv.stage_min_bytes());
    const bool is_float = !are_codes(gemv.format);
    const int columns = in_parts ? std::min(gemv.in_dim, kPartColumns) : gemv.in_dim;
    p.input_bytes = std::max(p.input_bytes, staged_bytes(columns, is_float));
  };
  for (int mix = 0; mix < p.n_mixes; ++mix) {
    for (const int phase : {kQkv, kWo, kGateUp, kDown, kHead}) {
      make_room(p.gemvs[mix][phase], is_in_parts(p.n_tokens, phase));
    }
    make_room(p.qkv_rest[mix]);
  }
  // 16 banks more than a multiple of 32: lanes that read the same digits of two tokens then meet in
  // no bank.
  p.token_stride = narrow<int>(align_up(p.input_bytes, 128)) + 64;
  if (p.n_tokens > 1) p.input_bytes = p.n_tokens * p.token_stride;
  const int n_queries = p.n_tokens * a.heads_per_block;
  a.query_at = kStepWarps * n_queries * a.head_dim * int{sizeof(float)};
  const int query_bytes = a.multiplies_codes ? QueryCodes::bytes(kernel_queries, a.head_dim) : 0;
  p.input_bytes = std::max(p.input_bytes, a.query_at + query_bytes);
  p.input_bytes = narrow<int>(align_up(p.input_bytes, 128));
  if (p.block.has_post_norms()) p.residual_bytes = narrow<int>(align_up(p.dim * 4, 128));
  p.n_slots = std::min((room - step_shared(p).total) / p.slot_bytes, kStepMaxSlots);
  return p.n_slots >= 2 * kStepProducers;
}

// The router of all layers, or none. Null if the kernel cannot do it.
std::optional<StepRouter> step_router_of(const DecodeModel& model, int n_blocks) {
  const LayerSpec& spec = model.layers.front().spec;
  if (!spec.has_experts()) return StepRouter{};
  StepRouter router{router_of(spec, {}, {}), false};
  const DType dtype = model.layers.front().weights->moe.router.dtype;
  router.is_bf16 = dtype == DType::BF16;
  const bool are_halves = std::ranges::all_of(model.layers, [&](const DecodeLayer& l) {
    const Matrix& w = l.weights->moe.router;
    return w.dtype == dtype && (dtype == DType::F16 || dtype == DType::BF16);
  });
  const bool keeps_order =
      spec.router_score == RouterScore::Sigmoid || !spec.router_correction;  // choose_in_block
  if (!are_halves || !keeps_order || spec.n_active_experts > kStepMostExperts ||
      spec.n_experts > kStepConsumers ||
      ceil_div(spec.n_experts, int64_t{n_blocks}) > kStepMostRouterRows) {
    return std::nullopt;
  }
  return router;
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

// Whether the instances for Llama's blocks suffice.
bool is_plain(const DecodeModel& model, const StepMixes& mixed) {
  return are_plain_blocks(model) && std::ranges::all_of(mixed.mixes, [](const StepGemvs& mix) {
           return can_stage(mix.phases[kWo], false) && can_stage(mix.phases[kDown], false);
         });
}

// Copies in flight delay the exchange. Measured on Llama-2-7B, tokens/s by the number of stages in
// flight while a block multiplies: INT4 with 4, 5, 6, 8 and no limit 807, 815, 805, 770, 740; INT8
// with 6, 8, 10 and no limit 526, 517, 507, 493; F16 with 6, 8 and 12, the same while it waits,
// 307, 304, 303. Two more far from the end of a phase: INT4 930 to 950, INT8 588 to 597
// (docs/benchmarks/cuda_copies_far.csv); Q4_1 loses 2 % by these two
// (docs/benchmarks/cuda_copies_of_mixes.csv), and Q4_K, asking ahead, 0.5 %
// (docs/benchmarks/cuda_words_steps.csv). Stages of several rows are smaller than those, and as
// many more are in flight: not measured apart from such stages themselves.
void tune(StepParams& p) {
  const StepGemv& gemv = p.gemvs[0][kGateUp];
  const StepFormat format = p.gemvs[0][kWo].format;
  p.copies_of_exchange = format <= StepFormat::BF16 ? 6 : 4;
  p.copies_near = format == StepFormat::U4 ? 5 : 6;
  if (gemv.has_several_rows()) {
    const int copies = p.copies_near * kStageBytes / gemv.code_bytes;
    p.copies_of_exchange = p.copies_near = std::min(copies, p.n_slots);
  }
  p.copies_far = std::min(p.copies_near + 2, p.n_slots);
  p.near_stages = format == StepFormat::U8 ? 12 : 8;
}

// Whether all matrices are codes that the instances for two tokens have.
bool are_codes_alone(const StepMixes& mixed) {
  return has_two_tokens(mixed.weights) &&
         std::ranges::all_of(mixed.mixes.front().phases,
                             [](const StepGemv& gemv) { return are_codes(gemv.format); });
}

StepKernel kernel_for(StepWeights weights, const StepAttention& a, bool is_plain) {
  switch (weights) {
    case StepWeights::Floats:
      return step_kernel_of<StepWeights::Floats>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::Int4:
      return step_kernel_of<StepWeights::Int4>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::ShortInt4:
      return step_kernel_of<StepWeights::ShortInt4>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::Int8:
      return step_kernel_of<StepWeights::Int8>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::Codes:
      return step_kernel_of<StepWeights::Codes>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::Products:
      return step_kernel_of<StepWeights::Products>(a.heads_per_block, a.head_dim, is_plain);
    case StepWeights::Mixed:
      return step_kernel_of<StepWeights::Mixed>(a.heads_per_block, a.head_dim, is_plain);
  }
  throw Error(ErrorKind::Internal, "weights of an unknown kind");
}

}  // namespace

bool PersistentStep::can_compute(const DecodeModel& model) {
  const LayerSpec& s = model.layers.front().spec;
  if (s.has_experts() && (s.n_active_experts < 1 || s.ffn_bias || s.shared_ffn_dim > 0 ||
                          !s.has_norm_before() || s.activation == Activation::ClampedSwiGlu)) {
    return false;
  }
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
  handled.take_experts_of(s);
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

std::vector<PersistentStep::Variant> PersistentStep::variants_of(DType compute_type,
                                                                 const DecodeModel& model,
                                                                 const Tuning& tuning,
                                                                 StageLength stages) {
  int device = 0, n_blocks = 0, shared_limit = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&device));
  MINFER_CUDA_CHECK(cudaDeviceGetAttribute(&n_blocks, cudaDevAttrMultiProcessorCount, device));
  MINFER_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto mixed = mixes_of(model, {n_blocks, stages, tuning.has_several_rows, tuning.n_tokens});
  if (!mixed) return {};
  const auto router = step_router_of(model, n_blocks);
  if (!router || (router->exists() && !gives_stages_to_all_producers(*mixed))) return {};
  const LayerSpec& spec = model.layers.front().spec;
  const StepBlock block = block_of(spec, model.edges);
  // Blocks that keep a residual stream of their own all have rows of `hidden`: step_exchange.cuh.
  if (block.has_post_norms() && std::ranges::any_of(mixed->mixes, [](const StepGemvs& mix) {
        return mix.phases[kGateUp].slice.rounds == 0;
      })) {
    return {};
  }

  const bool has_two = tuning.n_tokens == 2;
  if (has_two && (!are_plain_blocks(model) || !are_codes_alone(*mixed) || spec.head_dim > 128 ||
                  model.output->out_dim != model.vocab_size)) {
    return {};
  }
  std::vector<Variant> variants;
  for (const StepAttention& attention : attentions_of(model, n_blocks, tuning)) {
    const StepKernel kernel = has_two
                                  ? two_token_kernel_of(mixed->weights, attention.heads_per_block)
                                  : kernel_for(mixed->weights, attention, is_plain(model, *mixed));
    if (!kernel.is_plain && model.embedding->in_dim > most_code_columns(true)) return {};
    if (!runs_hopper_code(reinterpret_cast<const void*>(kernel.run))) return {};
    StepParams p{};
    p.n_tokens = tuning.n_tokens;
    p.n_layers = narrow<int>(std::ssize(model.layers));
    p.dim = narrow<int>(model.embedding->in_dim);
    p.n_mixes = narrow<int>(std::ssize(mixed->mixes));
    for (int mix = 0; mix < p.n_mixes; ++mix) {
      std::ranges::copy(mixed->mixes[size_t(mix)].phases, p.gemvs[mix]);
      p.qkv_rest[mix] = mixed->mixes[size_t(mix)].qkv_rest;
    }
    std::ranges::copy(mixed->of_layer, p.mix_of_layer);
    p.attention = attention;
    p.router = *router;
    p.eps = spec.norm_eps;
    p.block = block;
    p.vectors_are_bf16 = compute_type == DType::BF16;
    cudaFuncAttributes attributes{};
    MINFER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel.run));
    if (!lay_out(p, kernel.queries, shared_limit - int(attributes.sharedSizeBytes))) return {};
    tune(p);
    MINFER_CUDA_CHECK(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           step_shared(p).total));
    variants.push_back({p, kernel});
  }
  return variants;
}

std::unique_ptr<PersistentStep> PersistentStep::make(cudaStream_t stream, DType compute_type,
                                                     const DecodeModel& model,
                                                     const Tuning& tuning) {
  MINFER_CHECK(tuning.n_tokens >= 1 && tuning.n_tokens <= kMostStepTokens, "a step of ",
               tuning.n_tokens, " tokens");
  if (!can_compute(model)) return nullptr;
  for (const StageLength stages : {StageLength::Whole, StageLength::Short}) {
    auto variants = variants_of(compute_type, model, tuning, stages);
    if (variants.empty()) continue;
    return std::unique_ptr<PersistentStep>(
        new PersistentStep(stream, model, std::move(variants), tuning));
  }
  return nullptr;
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
                     own.n_blocks() == first.n_blocks() && own.n_tokens == 1,
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
                               std::vector<Variant> variants, const Tuning& tuning)
    : CapturedStep(stream, model, uint32_t(variants.front().params.n_layers), tuning.n_tokens),
      variants_(std::move(variants)),
      few_positions_(tuning.few_positions) {
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
  const int64_t n_logits = p.router.choice.n_experts;
  const int64_t n_words =
      n_qkv + n_split_results + n_attended + 2 * n_x + n_hidden + n_gate_up_splits + n_logits;
  words_ = allocate_device(DType::U8, {p.n_tokens * n_words * int64_t{sizeof(uint4)}});
  StepWords words{};
  words.of_token = n_words;
  words.qkv = static_cast<uint4*>(words_.view().data);
  words.split_results = words.qkv + n_qkv;
  words.attended = words.split_results + n_split_results;
  words.after_attention = words.attended + n_attended;
  words.after_ffn = words.after_attention + n_x;
  words.hidden = words.after_ffn + n_x;
  words.gate_up_splits = words.hidden + n_hidden;
  words.router_logits = words.gate_up_splits + n_gate_up_splits;
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
      to.mins[i] = data_of<const uint8_t>(linears[i]->weight.mins);
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
    if (l.spec.has_experts()) {
      to.router = w.moe.router.storage.view().data;
      to.experts = matrices_of(w.moe, ExpertPart::Gate).places;
      to.router_bias = data_of<const float>(w.moe.router_bias);
      to.router_correction = data_of<const float>(w.moe.router_correction);
    }
    layers.push_back(to);
  }
  StepLayer output{};
  output.matrices[0] = matrix(*model().output);
  output.mins[0] = data_of<const uint8_t>(model().output->mins);
  output.attn_norm = vector(model().output_norm->weight);
  output.post_norms[0] = post_norm_of_last;
  layers.push_back(output);
  layers_ = on_card(std::as_bytes(std::span(layers)));
  for (Variant& variant : variants_) {
    variant.params.layers = static_cast<const StepLayer*>(layers_.view().data);
  }
}

}  // namespace minfer::cuda
