#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

constexpr double kLeastScale = 1e-9, kMostScale = 1e9;

// A Llama with four factors: for the embedding, for scores in place of 1 / sqrt(head_dim), for what
// is added to the residual stream, and one that logits are divided by.
void set_granite(ModelSpec& spec, double embedding, double scores, double residual,
                 double logits_divisor) {
  spec.edges.embedding_scale = static_cast<float>(embedding);
  spec.edges.logit_scale = static_cast<float>(1 / logits_divisor);
  for (LayerSpec& layer : spec.layers) {
    layer.attn_scale = static_cast<float>(scores);
    layer.residual_scale = static_cast<float>(residual);
  }
}

ModelSpec read_granite_hf(const Metadata& config) {
  ModelSpec spec =
      read_hf_llama_like(config, {.own_keys = {"embedding_multiplier", "attention_multiplier",
                                               "residual_multiplier", "logits_scaling"}});
  const auto factor = [&](const char* key) {
    return config.number_or(key, 1, kLeastScale, kMostScale);
  };
  set_granite(spec, factor("embedding_multiplier"), factor("attention_multiplier"),
              factor("residual_multiplier"), factor("logits_scaling"));
  require_layer_types(config, "full_attention");
  return spec;
}

// 0 for the scale of scores means that there is none.
ModelSpec read_granite_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "granite.";
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "granite", GgufWindow::None,
                           {"embedding_scale", "attention.scale", "residual_scale", "logit_scale"});
  const auto factor = [&](const char* key) {
    return keys.number_or(prefix + key, 1, kLeastScale, kMostScale);
  };
  set_granite(spec, factor("embedding_scale"),
              keys.number_or(prefix + "attention.scale", 0, 0, kMostScale),
              factor("residual_scale"), factor("logit_scale"));
  return spec;
}

void add_granite_hf_keys(Metadata& config, const ModelSpec& spec) {
  config.set("embedding_multiplier", double{spec.edges.embedding_scale});
  config.set("attention_multiplier", double{spec.layer(0).score_scale()});
  config.set("residual_multiplier", double{spec.layer(0).residual_scale});
  config.set("logits_scaling", 1 / double{spec.edges.logit_scale});
}

void add_granite_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  keys.set(prefix + "embedding_scale", double{spec.edges.embedding_scale});
  keys.set(prefix + "attention.scale", double{spec.layer(0).score_scale()});
  keys.set(prefix + "residual_scale", double{spec.layer(0).residual_scale});
  keys.set(prefix + "logit_scale", 1 / double{spec.edges.logit_scale});
}

}  // namespace

const Family& granite() {
  static const Family family = {.name = "granite",
                                .hf_class = "GraniteForCausalLM",
                                .hf_model_type = "granite",
                                .gguf_architecture = "granite",
                                .read_hf = read_granite_hf,
                                .read_gguf = read_granite_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .add_hf_keys = add_granite_hf_keys,
                                .add_gguf_keys = add_granite_gguf_keys,
                                .gguf_rotary_pairs = true,
                                .biases_by_tensors = true};
  return family;
}

}  // namespace minfer
