#include "models/families/olmo_like.h"

namespace minfer {
namespace {

ModelSpec read_olmo2_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.norm_eps = 1e-5});
  set_olmo2_blocks(spec);
  require_layer_types(config, "full_attention");
  return spec;
}

ModelSpec read_olmo2_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "olmo2");
  set_olmo2_blocks(spec);
  return spec;
}

}  // namespace

void set_olmo2_blocks(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    layer.norm_places = NormPlaces::Behind;
    layer.qk_norm = QkNorm::WholeWidth;
  }
}

WeightNames olmo2_hf_names() {
  return llama_hf_names({{WeightRole::QNorm, "self_attn.q_norm"},
                         {WeightRole::KNorm, "self_attn.k_norm"},
                         {WeightRole::AttnPostNorm, "post_attention_layernorm"},
                         {WeightRole::FfnPostNorm, "post_feedforward_layernorm"}});
}

WeightNames olmo2_gguf_names() {
  return llama_gguf_names({{WeightRole::QNorm, "attn_q_norm"},
                           {WeightRole::KNorm, "attn_k_norm"},
                           {WeightRole::AttnPostNorm, "post_attention_norm"},
                           {WeightRole::FfnPostNorm, "post_ffw_norm"}});
}

const Family& olmo2() {
  static const Family family = {.name = "olmo2",
                                .hf_class = "Olmo2ForCausalLM",
                                .hf_model_type = "olmo2",
                                .gguf_architecture = "olmo2",
                                .read_hf = read_olmo2_hf,
                                .read_gguf = read_olmo2_gguf,
                                .hf_names = olmo2_hf_names(),
                                .gguf_names = olmo2_gguf_names()};
  return family;
}

}  // namespace minfer
