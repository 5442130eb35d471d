#include "models/config_reader.h"
#include "models/families/cohere_like.h"

namespace minfer {
namespace {

constexpr double kCohereScale = 0.0625;

void set_cohere(ModelSpec& spec, double logit_scale) {
  set_layer_norms(spec, false);
  set_parallel(spec, true);
  spec.edges.logit_scale = static_cast<float>(logit_scale);
}

void set_norms_of_heads(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::LayerOfEachHead;
}

ModelSpec read_cohere1_hf(const Metadata& config) {
  ModelSpec spec = read_hf_cohere(config, 5e5, {"use_qk_norm"});
  if (config.boolean_or("use_qk_norm", false)) set_norms_of_heads(spec);
  require_layer_types(config, "full_attention");
  return spec;
}

ModelSpec read_cohere1_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_cohere(source, keys, "command-r", GgufWindow::None);
  if (source.find("blk.0.attn_q_norm.weight") != nullptr) set_norms_of_heads(spec);
  return spec;
}

void add_cohere1_hf_keys(Metadata& config, const ModelSpec& spec) {
  add_cohere_hf_keys(config, spec);
  config.set("use_qk_norm", spec.layer(0).qk_norm != QkNorm::None);
}

}  // namespace

ModelSpec read_hf_cohere(const Metadata& config, double theta,
                         const std::vector<std::string_view>& own_keys) {
  std::vector<std::string_view> all_keys = own_keys;
  all_keys.push_back("logit_scale");
  ModelSpec spec = read_hf_llama_like(config, {.trained_seq_len = 8192,
                                               .norm_eps = 1e-5,
                                               .tied_output = true,
                                               .rope = {.theta = theta},
                                               .norm_eps_key = "layer_norm_eps",
                                               .own_keys = all_keys});
  set_cohere(spec, config.number_or("logit_scale", kCohereScale, 1e-9, 1e9));
  return spec;
}

ModelSpec read_gguf_cohere(const TensorSource& source, const Metadata& keys,
                           std::string_view architecture, GgufWindow windows) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, architecture, windows, {"logit_scale"}, NormKind::Layer);
  set_cohere(spec, keys.number(cat(architecture, ".logit_scale"), 1e-9, 1e9));
  return spec;
}

void add_cohere_hf_keys(Metadata& config, const ModelSpec& spec) {
  config.set("layer_norm_eps", double{spec.layer(0).norm_eps});
  config.set("logit_scale", double{spec.edges.logit_scale});
}

void add_cohere_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  keys.set(prefix + "logit_scale", double{spec.edges.logit_scale});
}

const Family& cohere() {
  static const Family family = {
      .name = "cohere",
      .hf_class = "CohereForCausalLM",
      .hf_model_type = "cohere",
      .gguf_architecture = "command-r",
      .read_hf = read_cohere1_hf,
      .read_gguf = read_cohere1_gguf,
      .hf_names = llama_hf_names(
          {{WeightRole::QNorm, "self_attn.q_norm"}, {WeightRole::KNorm, "self_attn.k_norm"}}),
      .gguf_names = llama_gguf_names(
          {{WeightRole::QNorm, "attn_q_norm"}, {WeightRole::KNorm, "attn_k_norm"}}),
      .add_hf_keys = add_cohere1_hf_keys,
      .add_gguf_keys = add_cohere_gguf_keys,
      .hf_rotary_pairs = true,
      .gguf_rotary_pairs = true};
  return family;
}

}  // namespace minfer
