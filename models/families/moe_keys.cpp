#include "models/families/moe_keys.h"

#include <algorithm>

#include "models/config_reader.h"

namespace minfer {
namespace {

constexpr int64_t kMaxExperts = 4096, kMaxFfnDim = 1 << 22;

// "num_experts" of most families, "num_local_experts" of Mixtral, "n_routed_experts" of GLM; files
// may have several of them.
constexpr std::string_view kHfExpertKeys[] = {"n_routed_experts", "num_local_experts",
                                              "num_experts"};

int64_t read_n_experts(const Metadata& config, int64_t fallback) {
  int64_t n = fallback;
  std::vector<NeutralKey> others;
  for (const std::string_view key : kHfExpertKeys) {
    if (config.has(std::string(key))) n = config.integer(std::string(key), 1, kMaxExperts);
    others.push_back({key, 0});
  }
  for (NeutralKey& other : others) other.neutral = double(n);
  refuse_unless_neutral(config, "", others);
  return n;
}

int64_t read_n_active(const Metadata& config, const std::string& key, int64_t n_experts,
                      int64_t fallback) {
  return fallback > 0 ? config.integer_or(key, fallback, 1, n_experts)
                      : config.integer(key, 1, n_experts);
}

}  // namespace

std::vector<std::string_view> hf_expert_keys(std::vector<std::string_view> more) {
  more.insert(more.end(), std::begin(kHfExpertKeys), std::end(kHfExpertKeys));
  return more;
}

void set_hf_experts(ModelSpec& spec, const Metadata& config, const HfMoeDefaults& defaults) {
  LayerSpec moe;
  moe.n_experts = read_n_experts(config, defaults.n_experts);
  moe.n_active_experts =
      read_n_active(config, "num_experts_per_tok", moe.n_experts, defaults.n_active_experts);
  moe.renormalizes_experts = config.boolean_or("norm_topk_prob", defaults.renormalizes);
  const bool has_own_size = defaults.ffn_dim > 0;
  moe.ffn_dim = has_own_size
                    ? config.integer_or("moe_intermediate_size", defaults.ffn_dim, 1, kMaxFfnDim)
                    : spec.layer(0).ffn_dim;
  if (defaults.shared_ffn_dim > 0) {
    moe.shared_ffn_dim = config.integer_or("shared_expert_intermediate_size",
                                           defaults.shared_ffn_dim, 1, kMaxFfnDim);
    moe.shared_gate = true;
  }
  int64_t step = 1;
  std::vector<int64_t> dense;
  if (has_own_size) {
    step = config.integer_or("decoder_sparse_step", 1, 1, 1 << 20);
    const bool is_null = config.nulls.contains("mlp_only_layers");
    if (config.has("mlp_only_layers") && !is_null) dense = config.integers("mlp_only_layers");
  } else {
    refuse_unless_neutral(config, "", {{"decoder_sparse_step", 1}});
    require_absent(config, "mlp_only_layers");
    refuse_unless_neutral(config, "", {{"moe_intermediate_size", double(moe.ffn_dim)}});
  }
  for (int64_t i = defaults.n_dense; i < spec.n_layers(); ++i) {
    if ((i + 1) % step != 0 || std::ranges::count(dense, i) > 0) continue;
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.n_experts = moe.n_experts;
    layer.n_active_experts = moe.n_active_experts;
    layer.renormalizes_experts = moe.renormalizes_experts;
    layer.ffn_dim = moe.ffn_dim;
    layer.shared_ffn_dim = moe.shared_ffn_dim;
    layer.shared_gate = moe.shared_gate;
  }
}

void set_gguf_experts(ModelSpec& spec, const Metadata& keys, std::string_view architecture,
                      const GgufMoeForm& form) {
  const std::string prefix = cat(architecture, ".");
  refuse_unless_neutral(keys, prefix,
                        {{"expert_gating_func", form.score == RouterScore::Softmax ? 1.0 : 2.0},
                         {"expert_group_count", 1},
                         {"expert_group_used_count", 1}});
  const int64_t n_dense =
      keys.integer_or(prefix + "leading_dense_block_count", 0, 0, spec.n_layers());
  for (int64_t i = n_dense; i < spec.n_layers(); ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.n_experts = keys.integer(cat(prefix, kGgufExpertsKey), 1, kMaxExperts);
    layer.n_active_experts = read_n_active(keys, prefix + "expert_used_count", layer.n_experts, 0);
    layer.router_score = form.score;
    layer.router_correction = form.score == RouterScore::Sigmoid;
    layer.renormalizes_experts = keys.boolean_or(prefix + "expert_weights_norm", form.renormalizes);
    // llama.cpp takes 0 for "not scaled".
    const double scale = keys.number_or(prefix + "expert_weights_scale", 1, 0, 1e6);
    layer.router_scale = scale == 0 ? 1 : static_cast<float>(scale);
    const int64_t dense_dim = layer.ffn_dim;
    layer.ffn_dim =
        keys.integer_or(prefix + "expert_feed_forward_length", dense_dim, 1, kMaxFfnDim);
    const std::string shared_key = prefix + "expert_shared_feed_forward_length";
    if (form.has_gated_shared) {
      layer.shared_ffn_dim = keys.integer_or(shared_key, dense_dim, 1, kMaxFfnDim);
      layer.shared_gate = true;
    } else {
      const int64_t n_shared = keys.integer_or(prefix + "expert_shared_count", 0, 0, kMaxExperts);
      layer.shared_ffn_dim =
          n_shared == 0 ? 0 : keys.integer_or(shared_key, n_shared * layer.ffn_dim, 1, kMaxFfnDim);
    }
  }
}

WeightNames moe_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  using enum WeightRole;
  const std::vector<std::pair<WeightRole, std::string_view>> own = {
      {Router, "mlp.gate"},
      {ExpertGate, "mlp.experts.*.gate_proj"},
      {ExpertUp, "mlp.experts.*.up_proj"},
      {ExpertDown, "mlp.experts.*.down_proj"}};
  more.insert(more.end(), own.begin(), own.end());
  WeightNames names = llama_hf_names(std::move(more));
  names.stacked = {{{Router, "mlp.gate.weight"},
                    {ExpertGate, "mlp.experts.gate_up_proj"},
                    {ExpertUp, "mlp.experts.gate_up_proj"},
                    {ExpertDown, "mlp.experts.down_proj"}}};
  return names;
}

WeightNames moe_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  using enum WeightRole;
  const std::vector<std::pair<WeightRole, std::string_view>> own = {{Router, "ffn_gate_inp"},
                                                                    {ExpertGate, "ffn_gate.*"},
                                                                    {ExpertUp, "ffn_up.*"},
                                                                    {ExpertDown, "ffn_down.*"}};
  more.insert(more.end(), own.begin(), own.end());
  WeightNames names = llama_gguf_names(std::move(more));
  names.stacked = {{{ExpertGate, "ffn_gate_exps.weight"},
                    {ExpertUp, "ffn_up_exps.weight"},
                    {ExpertDown, "ffn_down_exps.weight"}},
                   {{ExpertGate, "ffn_gate_up_exps.weight"},
                    {ExpertUp, "ffn_gate_up_exps.weight"},
                    {ExpertDown, "ffn_down_exps.weight"}}};
  return names;
}

}  // namespace minfer
