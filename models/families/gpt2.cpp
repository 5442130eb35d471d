#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// LayerNorm, learned positions, biases everywhere, and a feed-forward network without a gate.
void set_blocks(ModelSpec& spec, Activation activation) {
  spec.edges.learned_positions = true;
  spec.edges.output_norm = NormKind::Layer;
  set_biases(spec, true, true, true);
  for (LayerSpec& layer : spec.layers) {
    layer.norm = NormKind::Layer;
    layer.gated = false;
    layer.activation = activation;
  }
}

ModelSpec read_gpt2_hf(const Metadata& config) {
  const SizeKeys keys = {"n_embd", "n_inner", "n_layer",     "n_head",
                         "",       "",        "n_positions", "layer_norm_epsilon"};
  const int64_t dim = config.integer("n_embd", 1, 1 << 20);
  ModelSpec spec =
      read_sizes(config, keys, {.ffn_dim = 4 * dim, .trained_seq_len = 1024, .norm_eps = 1e-5});
  spec.tied_output = config.boolean_or("tie_word_embeddings", true);
  const std::string key = "activation_function", gelu = config.text_or(key, "gelu_new");
  require_supported(key, gelu, {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"});
  set_blocks(spec, gelu == "gelu" ? Activation::GeluErf : Activation::GeluTanh);
  refuse_unless_neutral(config, "",
                        {{"scale_attn_weights", 1},
                         {"scale_attn_by_inverse_layer_idx", 0},
                         {"add_cross_attention", 0}});
  return spec;
}

ModelSpec read_gpt2_gguf(const TensorSource&, const Metadata& keys) {
  ModelSpec spec = read_gguf_sizes(keys, "gpt2", "attention.layer_norm_epsilon");
  refuse_sliding_window(keys, "gpt2.attention.sliding_window", spec.trained_seq_len);
  set_blocks(spec, Activation::GeluTanh);
  return spec;
}

}  // namespace

const Family& gpt2() {
  static const Family family = {.name = "gpt2",
                                .hf_class = "GPT2LMHeadModel",
                                .hf_model_type = "gpt2",
                                .gguf_architecture = "gpt2",
                                .read_hf = read_gpt2_hf,
                                .read_gguf = read_gpt2_gguf,
                                .hf_names = {.prefix = "transformer.",
                                             .layers = "h.",
                                             .modules = {{WeightRole::Embedding, "wte"},
                                                         {WeightRole::Positions, "wpe"},
                                                         {WeightRole::AttnNorm, "ln_1"},
                                                         {WeightRole::Wq, "attn.c_attn"},
                                                         {WeightRole::Wk, "attn.c_attn"},
                                                         {WeightRole::Wv, "attn.c_attn"},
                                                         {WeightRole::Wo, "attn.c_proj"},
                                                         {WeightRole::FfnNorm, "ln_2"},
                                                         {WeightRole::WUp, "mlp.c_fc"},
                                                         {WeightRole::WDown, "mlp.c_proj"},
                                                         {WeightRole::OutputNorm, "ln_f"},
                                                         {WeightRole::Output, "lm_head"}},
                                             .transposed = true},
                                .gguf_names = {.prefix = "",
                                               .layers = "blk.",
                                               .modules = {{WeightRole::Embedding, "token_embd"},
                                                           {WeightRole::Positions, "position_embd"},
                                                           {WeightRole::AttnNorm, "attn_norm"},
                                                           {WeightRole::Wq, "attn_qkv"},
                                                           {WeightRole::Wk, "attn_qkv"},
                                                           {WeightRole::Wv, "attn_qkv"},
                                                           {WeightRole::Wo, "attn_output"},
                                                           {WeightRole::FfnNorm, "ffn_norm"},
                                                           {WeightRole::WUp, "ffn_up"},
                                                           {WeightRole::WDown, "ffn_down"},
                                                           {WeightRole::OutputNorm, "output_norm"},
                                                           {WeightRole::Output, "output"}}}};
  return family;
}

}  // namespace minfer
