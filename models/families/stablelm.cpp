#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// A Llama with LayerNorms and a rotation of a part of each head; in some models, parallel halves
// behind one norm.
ModelSpec read_stablelm_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(
      config, {.n_kv_heads = 32,
               .trained_seq_len = 4096,
               .norm_eps = 1e-5,
               .rope = {.partial = true, .partial_factor = 0.25},
               .norm_eps_key = config.has("layer_norm_eps") ? "layer_norm_eps" : "norm_eps"});
  set_layer_norms(spec);
  if (config.boolean_or("use_parallel_residual", false)) set_parallel(spec, true);
  set_biases(spec, config.boolean_or("use_qkv_bias", false), false, false);
  refuse_unless_neutral(config, "", {{"qk_layernorm", 0}});
  return spec;
}

// Some converters say use_parallel_residual of models that have none: the tensors tell. Norms of
// each head are one tensor.
ModelSpec read_stablelm_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "stablelm", GgufWindow::None,
                                        {"use_parallel_residual"}, NormKind::Layer);
  set_layer_norms(spec);
  if (source.find("blk.0.ffn_norm.weight") == nullptr) set_parallel(spec, true);
  const bool has_qkv_bias = source.find("blk.0.attn_q.bias") != nullptr;
  set_biases(spec, has_qkv_bias, false, false);
  if (source.find("blk.0.attn_q_norm.weight") != nullptr) {
    for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::LayerOfEachHead;
  }
  return spec;
}

void add_stablelm_hf_keys(Metadata& config, const ModelSpec& spec) {
  MINFER_REQUIRE(Input, spec.layer(0).qk_norm == QkNorm::None,
                 "norms of each head: Hugging Face's files have them as tensors of one head, which "
                 "are not written");
  set_layer_norm_keys(config, spec);
  config.set("use_qkv_bias", spec.layer(0).qkv_bias);
  config.set("use_parallel_residual", spec.layer(0).parallel_residual);
}

void add_stablelm_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  keys.set(prefix + "use_parallel_residual", spec.layer(0).parallel_residual);
}

}  // namespace

const Family& stablelm() {
  static const Family family = {
      .name = "stablelm",
      .hf_class = "StableLmForCausalLM",
      .hf_model_type = "stablelm",
      .gguf_architecture = "stablelm",
      .read_hf = read_stablelm_hf,
      .read_gguf = read_stablelm_gguf,
      .hf_names = llama_hf_names(
          {{WeightRole::QNorm, "self_attn.q_norm"}, {WeightRole::KNorm, "self_attn.k_norm"}}),
      .gguf_names = llama_gguf_names(
          {{WeightRole::QNorm, "attn_q_norm"}, {WeightRole::KNorm, "attn_k_norm"}}),
      .add_hf_keys = add_stablelm_hf_keys,
      .add_gguf_keys = add_stablelm_gguf_keys,
      .hf_partial_rotation = true};
  return family;
}

}  // namespace minfer
