#include "models/config_reader.h"
#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

constexpr int64_t kGptOssWindow = 128, kGptOssPeriod = 2;
constexpr double kGptOssTheta = 150000, kGptOssAlpha = 1.702, kGptOssLimit = 7;

// A sink for each head, and mixtures of experts with clamped gates, whose linear layers have
// biases, the router's too.
void set_gpt_oss_blocks(ModelSpec& spec, double alpha, double limit) {
  for (LayerSpec& layer : spec.layers) {
    layer.attn_sinks = true;
    layer.ffn_bias = layer.router_bias = true;
    layer.activation = Activation::ClampedSwiGlu;
    layer.swiglu_alpha = static_cast<float>(alpha);
    layer.swiglu_limit = static_cast<float>(limit);
  }
}

// What transformers takes where config.json has no settings of the rotation.
Metadata with_gpt_oss_rope(Metadata config) {
  for (const char* root : {"rope_scaling", "rope_parameters"}) {
    if (!names_below(config, root).empty()) return config;
  }
  const std::string at = "rope_parameters.";
  config.set(at + "rope_type", std::string("yarn"));
  config.set(at + "factor", 32.0);
  config.set(at + "beta_fast", 32.0);
  config.set(at + "beta_slow", 1.0);
  config.set(at + "truncate", false);
  config.set(at + "original_max_position_embeddings", int64_t{4096});
  return config;
}

// The chosen logits alone are in the softmax: that of all of them, divided by the sum of the chosen
// ones, is the same.
ModelSpec read_gpt_oss_hf(const Metadata& file) {
  const Metadata config = with_gpt_oss_rope(file);
  ModelSpec spec =
      read_hf_llama_like(config, {.n_kv_heads = 8,
                                  .head_dim = 64,
                                  .trained_seq_len = 131072,
                                  .norm_eps = 1e-5,
                                  .attention_bias = true,
                                  .rope = {.theta = kGptOssTheta},
                                  .own_keys = hf_expert_keys({"swiglu_alpha", "swiglu_limit"})});
  refuse_unless_neutral(config, "", {{"norm_topk_prob", 1}});
  set_hf_experts(spec, config, {.n_experts = 128, .n_active_experts = 4, .renormalizes = true});
  const auto n_active = double(spec.layer(0).n_active_experts);
  refuse_unless_neutral(config, "", {{"experts_per_token", n_active}});
  constexpr double kLeast = 1e-6, kMost = 1e6;
  set_gpt_oss_blocks(spec, config.number_or("swiglu_alpha", kGptOssAlpha, -kMost, kMost),
                     config.number_or("swiglu_limit", kGptOssLimit, kLeast, kMost));
  set_windows(spec, config, "sliding_window", kGptOssWindow,
              sliding_layers(spec, config, kGptOssPeriod));
  return spec;
}

// Alpha, limit and the biases have no key, and neither has YaRN's `truncate`: they are those of the
// published models.
ModelSpec read_gpt_oss_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "gpt-oss.";
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "gpt-oss", GgufWindow::SomeLayers, {kGgufExpertsKey});
  set_biases(spec, /*qkv=*/true, /*attn_out=*/true, /*ffn=*/true);
  set_gguf_experts(spec, keys, "gpt-oss", {.renormalizes = true});
  set_gpt_oss_blocks(spec, kGptOssAlpha, kGptOssLimit);
  set_windows(spec, keys, prefix + "attention.sliding_window", kGptOssWindow,
              gguf_sliding_layers(spec, keys, prefix, kGptOssPeriod));
  for (RopeSpec& rope : spec.ropes) rope.truncate = false;
  return spec;
}

bool slides_in_gpt_oss(const LayerSpec& layer) { return layer.window > 0; }

void add_gpt_oss_hf_keys(Metadata& config, const ModelSpec& spec) {
  set_layer_types(config, spec, slides_in_gpt_oss);
  config.set("swiglu_alpha", double{spec.layer(0).swiglu_alpha});
  config.set("swiglu_limit", double{spec.layer(0).swiglu_limit});
}

void add_gpt_oss_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  set_gguf_windows(keys, prefix, spec, slides_in_gpt_oss, kGptOssPeriod);
}

WeightNames gpt_oss_hf_names() {
  using enum WeightRole;
  WeightNames names = moe_hf_names({{Sinks, "self_attn.sinks"}, {Router, "mlp.router"}});
  names.stacked = {{{ExpertGate, "mlp.experts.gate_up_proj"},
                    {ExpertUp, "mlp.experts.gate_up_proj"},
                    {ExpertDown, "mlp.experts.down_proj"}}};
  return names;
}

}  // namespace

// Its experts in Hugging Face files: loaders/gpt_oss_experts.cpp.
const Family& gpt_oss() {
  static const Family family = {
      .name = "gpt_oss",
      .hf_class = "GptOssForCausalLM",
      .hf_model_type = "gpt_oss",
      .gguf_architecture = "gpt-oss",
      .read_hf = read_gpt_oss_hf,
      .read_gguf = read_gpt_oss_gguf,
      .hf_names = gpt_oss_hf_names(),
      // The norm behind the attention half is that in front of the other half.
      .gguf_names = moe_gguf_names(
          {{WeightRole::Sinks, "attn_sinks.weight"}, {WeightRole::FfnNorm, "post_attention_norm"}}),
      .add_hf_keys = add_gpt_oss_hf_keys,
      .add_gguf_keys = add_gpt_oss_gguf_keys,
      .gguf_window = GgufWindow::SomeLayers,
      .gguf_truncates_yarn = false,
      .hf_experts_key = "num_local_experts"};
  return family;
}

}  // namespace minfer
