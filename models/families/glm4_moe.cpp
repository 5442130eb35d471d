#include "models/config_reader.h"
#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

// A Llama whose heads rotate in part, with norms of them or without. Behind the first blocks come
// mixtures of experts, chosen by sigmoids with a correction, beside a shared expert without a gate.
// Layers behind the last one, which predict further tokens, are not used.
ModelSpec read_glm4_moe_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 8,
                                               .trained_seq_len = 131072,
                                               .norm_eps = 1e-5,
                                               .rope = {.partial = true, .partial_factor = 0.5},
                                               .own_keys = hf_expert_keys({"use_qk_norm"})});
  set_biases(spec, spec.layer(0).qkv_bias, /*attn_out=*/false, /*ffn=*/false);
  refuse_sliding_window(config, "sliding_window", spec.trained_seq_len);
  require_layer_types(config, "full_attention");
  refuse_unless_neutral(config, "", {{"n_group", 1}, {"topk_group", 1}});
  const int64_t n_dense = config.integer_or("first_k_dense_replace", 1, 0, spec.n_layers());
  set_hf_experts(spec, config,
                 {.n_experts = 128,
                  .n_active_experts = 8,
                  .ffn_dim = 1408,
                  .renormalizes = true,
                  .n_dense = n_dense});
  const int64_t n_shared = config.integer_or("n_shared_experts", 1, 0, 1024);
  const double scale = config.number_or("routed_scaling_factor", 1, 0, 1e6);
  const bool has_qk_norm = config.boolean_or("use_qk_norm", false);
  for (LayerSpec& layer : spec.layers) {
    if (has_qk_norm) layer.qk_norm = QkNorm::PerHead;
    if (!layer.has_experts()) continue;
    layer.shared_ffn_dim = n_shared * layer.ffn_dim;
    layer.router_score = RouterScore::Sigmoid;
    layer.router_correction = true;
    layer.router_scale = static_cast<float>(scale);
  }
  return spec;
}

ModelSpec read_glm4_moe_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "glm4moe", GgufWindow::None, {kGgufExpertsKey});
  const int64_t n_further =
      keys.integer_or("glm4moe.nextn_predict_layers", 0, 0, spec.n_layers() - 1);
  spec.layers.resize(static_cast<size_t>(spec.n_layers() - n_further));
  // No key says whether there are biases and norms of heads.
  set_biases(spec, source.find("blk.0.attn_q.bias") != nullptr, /*attn_out=*/false, /*ffn=*/false);
  if (source.find("blk.0.attn_q_norm.weight") != nullptr) {
    for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::PerHead;
  }
  set_gguf_experts(spec, keys, "glm4moe", {.renormalizes = true, .score = RouterScore::Sigmoid});
  return spec;
}

}  // namespace

const Family& glm4_moe() {
  using enum WeightRole;
  static const Family family = {
      .name = "glm4_moe",
      .hf_class = "Glm4MoeForCausalLM",
      .hf_model_type = "glm4_moe",
      .gguf_architecture = "glm4moe",
      .read_hf = read_glm4_moe_hf,
      .read_gguf = read_glm4_moe_gguf,
      .hf_names = moe_hf_names({{QNorm, "self_attn.q_norm"},
                                {KNorm, "self_attn.k_norm"},
                                {RouterCorrection, "mlp.gate.e_score_correction_bias"},
                                {SharedGate, "mlp.shared_experts.gate_proj"},
                                {SharedUp, "mlp.shared_experts.up_proj"},
                                {SharedDown, "mlp.shared_experts.down_proj"}}),
      // The norm behind the attention half is that in front of the other half.
      .gguf_names = moe_gguf_names({{QNorm, "attn_q_norm"},
                                    {KNorm, "attn_k_norm"},
                                    {FfnNorm, "post_attention_norm"},
                                    {RouterCorrection, "exp_probs_b.bias"},
                                    {SharedGate, "ffn_gate_shexp"},
                                    {SharedUp, "ffn_up_shexp"},
                                    {SharedDown, "ffn_down_shexp"}}),
      .hf_experts_key = "n_routed_experts"};
  return family;
}

}  // namespace minfer
