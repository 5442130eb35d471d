#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// A Llama with LayerNorms, biases, and a feed-forward network without a gate; a window, where there
// is one, is that of all layers. GGUF files have none.
ModelSpec read_starcoder2_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 2,
                                               .trained_seq_len = 4096,
                                               .norm_eps = 1e-5,
                                               .tied_output = true,
                                               .norm_eps_key = "norm_epsilon",
                                               .own_activation = true});
  set_layer_norms(spec);
  set_plain_ffn(spec, read_gelu(config, "hidden_act", "gelu_pytorch_tanh"));
  const bool use_bias = config.boolean_or("use_bias", true);
  set_biases(spec, use_bias, use_bias, use_bias);
  const int64_t window = read_window(config, "sliding_window", spec.trained_seq_len);
  for (LayerSpec& layer : spec.layers) layer.window = window;
  require_layer_types(config, window > 0 ? "sliding_attention" : "full_attention");
  return spec;
}

ModelSpec read_starcoder2_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "starcoder2", GgufWindow::None, {}, NormKind::Layer);
  set_layer_norms(spec);
  set_plain_ffn(spec, Activation::GeluTanh);
  const bool has_bias = source.find("blk.0.attn_q.bias") != nullptr;
  set_biases(spec, has_bias, has_bias, has_bias);
  return spec;
}

void add_starcoder2_hf_keys(Metadata& config, const ModelSpec& spec) {
  config.set("norm_epsilon", double{spec.layer(0).norm_eps});
  config.set("use_bias", spec.layer(0).qkv_bias);
}

}  // namespace

const Family& starcoder2() {
  static const Family family = {.name = "starcoder2",
                                .hf_class = "Starcoder2ForCausalLM",
                                .hf_model_type = "starcoder2",
                                .gguf_architecture = "starcoder2",
                                .read_hf = read_starcoder2_hf,
                                .read_gguf = read_starcoder2_gguf,
                                .hf_names = llama_hf_names({{WeightRole::WUp, "mlp.c_fc"},
                                                            {WeightRole::WDown, "mlp.c_proj"}}),
                                .gguf_names = llama_gguf_names(),
                                .add_hf_keys = add_starcoder2_hf_keys};
  return family;
}

}  // namespace minfer
