#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// Falcon-7B: parallel halves behind one norm, one key/value head, no biases but those of norms, and
// queries, keys and values as one tensor.
ModelSpec read_falcon_hf(const Metadata& config) {
  refuse_unless_neutral(config, "",
                        {{"multi_query", 1},
                         {"new_decoder_architecture", 0},
                         {"parallel_attn", 1},
                         {"bias", 0},
                         {"apply_residual_connection_post_layernorm", 0}});
  const int64_t dim = config.integer("hidden_size", 1, 1 << 20);
  Metadata sizes = config;  // what other families say by other keys
  sizes.set("intermediate_size", config.integer_or("ffn_hidden_size", 4 * dim, 1, 1 << 22));
  sizes.set("num_key_value_heads", int64_t{1});  // whatever num_kv_heads says
  ModelSpec spec = read_hf_llama_like(sizes, {.trained_seq_len = 2048,
                                              .norm_eps = 1e-5,
                                              .tied_output = true,
                                              .norm_eps_key = "layer_norm_epsilon",
                                              .own_activation = true});
  set_layer_norms(spec);
  set_parallel(spec, true);
  set_plain_ffn(spec, read_gelu(config, "activation", "gelu"));
  return spec;
}

// The kind of GELU has no key; it is that of the published models.
ModelSpec read_falcon_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "falcon", GgufWindow::None, {}, NormKind::Layer);
  set_layer_norms(spec);
  set_parallel(spec, true);
  set_plain_ffn(spec, Activation::GeluErf);
  return spec;
}

void add_falcon_hf_keys(Metadata& config, const ModelSpec& spec) {
  config.set("layer_norm_epsilon", double{spec.layer(0).norm_eps});
  config.set("ffn_hidden_size", spec.layer(0).ffn_dim);
  config.set("activation", std::string("gelu"));
  config.set("multi_query", true);
  config.set("parallel_attn", true);
}

WeightNames falcon_hf_names() {
  return {.prefix = "transformer.",
          .layers = "h.",
          .modules = {{WeightRole::Embedding, "word_embeddings"},
                      {WeightRole::AttnNorm, "input_layernorm"},
                      {WeightRole::Wq, "self_attention.query_key_value"},
                      {WeightRole::Wk, "self_attention.query_key_value"},
                      {WeightRole::Wv, "self_attention.query_key_value"},
                      {WeightRole::Wo, "self_attention.dense"},
                      {WeightRole::WUp, "mlp.dense_h_to_4h"},
                      {WeightRole::WDown, "mlp.dense_4h_to_h"},
                      {WeightRole::OutputNorm, "ln_f"},
                      {WeightRole::Output, "lm_head"}}};
}

}  // namespace

const Family& falcon() {
  static const Family family = {.name = "falcon",
                                .hf_class = "FalconForCausalLM",
                                .hf_model_type = "falcon",
                                .gguf_architecture = "falcon",
                                .read_hf = read_falcon_hf,
                                .read_gguf = read_falcon_gguf,
                                .hf_names = falcon_hf_names(),
                                .gguf_names = llama_gguf_names({{WeightRole::Wq, "attn_qkv"},
                                                                {WeightRole::Wk, "attn_qkv"},
                                                                {WeightRole::Wv, "attn_qkv"}}),
                                .add_hf_keys = add_falcon_hf_keys};
  return family;
}

}  // namespace minfer
