#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

constexpr int64_t kOriginalSeqLen = 4096;

// Phi-3, Phi-3.5, Phi-4-mini and Phi-4: a Llama whose queries, keys and values are one tensor, and
// whose gate and up are another. A head may rotate in part; the scaling is longrope or none; a
// window is that of all layers.
ModelSpec read_phi3_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(
      config, {.trained_seq_len = 4096,
               .norm_eps = 1e-5,
               .rope = {.original_seq_len = kOriginalSeqLen, .partial = true, .phi3_types = true}});
  const int64_t window = read_window(config, "sliding_window", spec.trained_seq_len);
  for (LayerSpec& layer : spec.layers) layer.window = window;
  require_layer_types(config, window > 0 ? "sliding_attention" : "full_attention");
  return spec;
}

ModelSpec read_phi3_gguf(const TensorSource& source, const Metadata& keys) {
  return read_gguf_llama_like(source, keys, "phi3", GgufWindow::AllLayers);
}

}  // namespace

const Family& phi3() {
  static const Family family = {.name = "phi3",
                                .hf_class = "Phi3ForCausalLM",
                                .hf_model_type = "phi3",
                                .gguf_architecture = "phi3",
                                .read_hf = read_phi3_hf,
                                .read_gguf = read_phi3_gguf,
                                .hf_names = llama_hf_names({{WeightRole::Wq, "self_attn.qkv_proj"},
                                                            {WeightRole::Wk, "self_attn.qkv_proj"},
                                                            {WeightRole::Wv, "self_attn.qkv_proj"},
                                                            {WeightRole::WGate, "mlp.gate_up_proj"},
                                                            {WeightRole::WUp, "mlp.gate_up_proj"}}),
                                .gguf_names = llama_gguf_names({{WeightRole::Wq, "attn_qkv"},
                                                                {WeightRole::Wk, "attn_qkv"},
                                                                {WeightRole::Wv, "attn_qkv"},
                                                                {WeightRole::WGate, "ffn_up"},
                                                                {WeightRole::WUp, "ffn_up"}}),
                                .gguf_window = GgufWindow::AllLayers};
  return family;
}

}  // namespace minfer
