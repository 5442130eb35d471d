#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// GPT-NeoX and Pythia: parallel halves behind a norm each, biases everywhere, a rotation of a part
// of each head, and queries, keys and values as one tensor.
ModelSpec read_gpt_neox_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.trained_seq_len = 2048,
                                               .norm_eps = 1e-5,
                                               .rope = {.partial = true,
                                                        .partial_factor = 0.25,
                                                        .partial_key = "rotary_pct",
                                                        .theta_key = "rotary_emb_base"},
                                               .norm_eps_key = "layer_norm_eps",
                                               .own_activation = true});
  set_layer_norms(spec);
  set_plain_ffn(spec, read_gelu(config, "hidden_act", "gelu"));
  const bool attention_bias = config.boolean_or("attention_bias", true);
  set_biases(spec, attention_bias, attention_bias, true);
  if (config.boolean_or("use_parallel_residual", true)) set_parallel(spec, false);
  return spec;
}

// The kind of GELU has no key; it is that of most models.
ModelSpec read_gpt_neox_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "gptneox", GgufWindow::None,
                                        {"use_parallel_residual"}, NormKind::Layer);
  set_layer_norms(spec);
  set_plain_ffn(spec, Activation::GeluErf);
  set_biases(spec, true, true, true);
  if (keys.boolean_or("gptneox.use_parallel_residual", true)) set_parallel(spec, false);
  return spec;
}

void add_gpt_neox_hf_keys(Metadata& config, const ModelSpec& spec) {
  const LayerSpec& layer = spec.layer(0);
  const RopeSpec& rope = spec.ropes.front();
  config.set("layer_norm_eps", double{layer.norm_eps});
  config.set("rotary_pct",
             static_cast<double>(rope.rotary_dim) / static_cast<double>(layer.head_dim));
  config.set("rotary_emb_base", rope.theta);
  config.set("use_parallel_residual", layer.parallel_residual);
}

void add_gpt_neox_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  keys.set(prefix + "use_parallel_residual", spec.layer(0).parallel_residual);
}

WeightNames gpt_neox_hf_names() {
  return {.prefix = "gpt_neox.",
          .layers = "layers.",
          .modules = {{WeightRole::Embedding, "embed_in"},
                      {WeightRole::AttnNorm, "input_layernorm"},
                      {WeightRole::Wq, "attention.query_key_value"},
                      {WeightRole::Wk, "attention.query_key_value"},
                      {WeightRole::Wv, "attention.query_key_value"},
                      {WeightRole::Wo, "attention.dense"},
                      {WeightRole::FfnNorm, "post_attention_layernorm"},
                      {WeightRole::WUp, "mlp.dense_h_to_4h"},
                      {WeightRole::WDown, "mlp.dense_4h_to_h"},
                      {WeightRole::OutputNorm, "final_layer_norm"},
                      {WeightRole::Output, "embed_out"}}};
}

}  // namespace

const Family& gpt_neox() {
  static const Family family = {.name = "gpt_neox",
                                .hf_class = "GPTNeoXForCausalLM",
                                .hf_model_type = "gpt_neox",
                                .gguf_architecture = "gptneox",
                                .read_hf = read_gpt_neox_hf,
                                .read_gguf = read_gpt_neox_gguf,
                                .hf_names = gpt_neox_hf_names(),
                                .gguf_names = llama_gguf_names({{WeightRole::Wq, "attn_qkv"},
                                                                {WeightRole::Wk, "attn_qkv"},
                                                                {WeightRole::Wv, "attn_qkv"}}),
                                .add_hf_keys = add_gpt_neox_hf_keys,
                                .add_gguf_keys = add_gpt_neox_gguf_keys,
                                .hf_qkv_by_head = true};
  return family;
}

}  // namespace minfer
