#include "models/hf_config_text.h"

#include <nlohmann/json.hpp>

#include "models/families/family.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

// Of a GGUF file: what its keys can say.
Json rope_scaling(const RopeSpec& rope) {
  if (rope.scaling == RopeScaling::None) return nullptr;
  Json scaling = {{"rope_type", scaling_name(rope.scaling)}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::Linear) return scaling;
  scaling["original_max_position_embeddings"] = rope.original_seq_len;
  if (rope.scaling == RopeScaling::Llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  } else {
    MINFER_CHECK(rope.scaling == RopeScaling::Yarn, "scaling ", scaling_name(rope.scaling));
    scaling["attention_factor"] = rope.table_scale;
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
  }
  return scaling;
}

// Sets what `keys` has, which are those of the top level.
void add_keys(Json& config, const Metadata& keys) {
  for (const auto& [key, value] : keys.all()) {
    std::visit([&](const auto& v) { config[key] = v; }, value);
  }
  for (const std::string& key : keys.nulls) config[key] = nullptr;
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::GeluErf:
      return "gelu";
    case Activation::GeluTanh:
      return "gelu_pytorch_tanh";
    default:
      return "silu";
  }
}

const char* torch_name(DType dtype) {
  return dtype == DType::BF16 ? "bfloat16" : dtype == DType::F16 ? "float16" : "float32";
}

}  // namespace

std::string hf_config_text(const ModelSpec& spec, DType dtype) {
  const Family& family = family_of(spec);
  const LayerSpec& layer = spec.layer(0);
  const auto moe = std::ranges::find_if(spec.layers, &LayerSpec::has_experts);
  const RopeSpec& rope = spec.ropes.front();
  Json config = {{"architectures", {family.hf_class}},
                 {"model_type", family.hf_model_type},
                 {"hidden_size", spec.dim},
                 {"intermediate_size", layer.ffn_dim},
                 {"num_hidden_layers", spec.n_layers()},
                 {"num_attention_heads", layer.n_heads},
                 {"num_key_value_heads", layer.n_kv_heads},
                 {"head_dim", layer.head_dim},
                 {"vocab_size", spec.vocab_size},
                 {"max_position_embeddings", spec.trained_seq_len},
                 {"rms_norm_eps", layer.norm_eps},
                 {"rope_theta", rope.theta},
                 {"rope_scaling", rope_scaling(rope)},
                 {"tie_word_embeddings", spec.tied_output},
                 {"attention_bias", layer.qkv_bias},
                 {"mlp_bias", layer.ffn_bias},
                 {"hidden_act", activation_name(layer.activation)},
                 {"torch_dtype", torch_name(dtype)}};
  if (moe != spec.layers.end()) {
    config[std::string(family.hf_experts_key)] = moe->n_experts;
    config["num_experts_per_tok"] = moe->n_active_experts;
    config["moe_intermediate_size"] = moe->ffn_dim;
    config["norm_topk_prob"] = moe->renormalizes_experts;
    if (moe->shared_ffn_dim > 0) config["shared_expert_intermediate_size"] = moe->shared_ffn_dim;
    Json dense = Json::array();
    for (int64_t i = 0; i < spec.n_layers(); ++i) {
      if (spec.layer(i).has_experts()) continue;
      dense.push_back(i);
      config["intermediate_size"] = spec.layer(i).ffn_dim;
    }
    if (!dense.empty()) config["mlp_only_layers"] = dense;
  }
  if (layer.window > 0) config["sliding_window"] = layer.window;
  if (family.add_hf_keys != nullptr) {
    Metadata more;
    family.add_hf_keys(more, spec);
    add_keys(config, more);
  }
  return config.dump(2) + '\n';
}

}  // namespace minfer
