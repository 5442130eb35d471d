#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// Phi-1, 1.5 and 2: parallel halves behind one norm, biases everywhere, that of the logits
// included, and a rotation of a part of each head.
void set_phi(ModelSpec& spec, Activation gelu) {
  set_layer_norms(spec);
  set_parallel(spec, true);
  set_plain_ffn(spec, gelu);
  set_biases(spec, true, true, true);
  spec.edges.output_bias = true;
}

ModelSpec read_phi_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.trained_seq_len = 2048,
                                               .norm_eps = 1e-5,
                                               .rope = {.partial = true, .partial_factor = 0.5},
                                               .norm_eps_key = "layer_norm_eps",
                                               .own_activation = true});
  set_phi(spec, read_gelu(config, "hidden_act", "gelu_new"));
  refuse_unless_neutral(config, "", {{"qk_layernorm", 0}});
  return spec;
}

ModelSpec read_phi_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "phi2", GgufWindow::None, {}, NormKind::Layer);
  set_phi(spec, Activation::GeluTanh);
  return spec;
}

void add_phi_hf_keys(Metadata& config, const ModelSpec& spec) { set_layer_norm_keys(config, spec); }

}  // namespace

const Family& phi() {
  static const Family family = {
      .name = "phi",
      .hf_class = "PhiForCausalLM",
      .hf_model_type = "phi",
      .gguf_architecture = "phi2",
      .read_hf = read_phi_hf,
      .read_gguf = read_phi_gguf,
      .hf_names = llama_hf_names({{WeightRole::Wo, "self_attn.dense"},
                                  {WeightRole::WUp, "mlp.fc1"},
                                  {WeightRole::WDown, "mlp.fc2"},
                                  {WeightRole::OutputNorm, "final_layernorm"}}),
      .gguf_names = llama_gguf_names(),
      .add_hf_keys = add_phi_hf_keys,
      .hf_partial_rotation = true};
  return family;
}

}  // namespace minfer
