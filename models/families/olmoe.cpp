#include "models/config_reader.h"
#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

// A Llama with an RMSNorm of all queries and one of all keys of a row, and with mixtures of experts
// in all blocks.
ModelSpec read_olmoe_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(
      config, {.trained_seq_len = 4096, .norm_eps = 1e-5, .own_keys = hf_expert_keys()});
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::WholeWidth;
  refuse_sliding_window(config, "sliding_window", spec.trained_seq_len);
  require_layer_types(config, "full_attention");
  set_hf_experts(spec, config, {.n_experts = 64, .n_active_experts = 8});
  return spec;
}

ModelSpec read_olmoe_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "olmoe", GgufWindow::None, {kGgufExpertsKey});
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::WholeWidth;
  set_gguf_experts(spec, keys, "olmoe", {});
  return spec;
}

}  // namespace

const Family& olmoe() {
  static const Family family = {.name = "olmoe",
                                .hf_class = "OlmoeForCausalLM",
                                .hf_model_type = "olmoe",
                                .gguf_architecture = "olmoe",
                                .read_hf = read_olmoe_hf,
                                .read_gguf = read_olmoe_gguf,
                                .hf_names = moe_hf_names({{WeightRole::QNorm, "self_attn.q_norm"},
                                                          {WeightRole::KNorm, "self_attn.k_norm"}}),
                                .gguf_names = moe_gguf_names({{WeightRole::QNorm, "attn_q_norm"},
                                                              {WeightRole::KNorm, "attn_k_norm"}}),
                                .hf_experts_key = "num_experts"};
  return family;
}

}  // namespace minfer
