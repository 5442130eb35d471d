#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

// A Qwen3 whose feed-forward networks, or some of them, are mixtures of experts. A window, if it is
// used, is that of all layers.
ModelSpec read_qwen3_moe_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(
      config, {.n_kv_heads = 4, .trained_seq_len = 32768, .own_keys = hf_expert_keys()});
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::PerHead;
  set_flagged_windows(spec, config, 4096, [](int64_t) { return true; });
  set_hf_experts(spec, config, {.n_experts = 128, .n_active_experts = 8, .ffn_dim = 768});
  return spec;
}

ModelSpec read_qwen3_moe_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "qwen3moe", GgufWindow::None, {kGgufExpertsKey});
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::PerHead;
  set_gguf_experts(spec, keys, "qwen3moe", {.renormalizes = true});
  return spec;
}

}  // namespace

const Family& qwen3_moe() {
  static const Family family = {.name = "qwen3_moe",
                                .hf_class = "Qwen3MoeForCausalLM",
                                .hf_model_type = "qwen3_moe",
                                .gguf_architecture = "qwen3moe",
                                .read_hf = read_qwen3_moe_hf,
                                .read_gguf = read_qwen3_moe_gguf,
                                .hf_names = moe_hf_names({{WeightRole::QNorm, "self_attn.q_norm"},
                                                          {WeightRole::KNorm, "self_attn.k_norm"}}),
                                .gguf_names = moe_gguf_names({{WeightRole::QNorm, "attn_q_norm"},
                                                              {WeightRole::KNorm, "attn_k_norm"}}),
                                .hf_experts_key = "num_experts"};
  return family;
}

}  // namespace minfer
