#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

// A Qwen2 whose feed-forward networks, or some of them, are mixtures of experts with a shared
// expert. Windows, if they are used, are those of the even layers below max_window_layers.
ModelSpec read_qwen2_moe_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(
      config, {.n_kv_heads = 16, .trained_seq_len = 32768, .own_keys = hf_expert_keys()});
  set_biases(spec, config.boolean_or("qkv_bias", true), /*attn_out=*/false, /*ffn=*/false);
  const int64_t n_windows = config.integer_or("max_window_layers", 28, 0, int64_t{1} << 31);
  set_flagged_windows(spec, config, 4096,
                      [&](int64_t layer) { return layer % 2 == 0 && layer < n_windows; });
  set_hf_experts(spec, config,
                 {.n_experts = 60, .n_active_experts = 4, .ffn_dim = 1408, .shared_ffn_dim = 5632});
  return spec;
}

ModelSpec read_qwen2_moe_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, "qwen2moe", GgufWindow::None, {kGgufExpertsKey});
  set_biases(spec, /*qkv=*/true, /*attn_out=*/false, /*ffn=*/false);
  set_gguf_experts(spec, keys, "qwen2moe", {.has_gated_shared = true});
  return spec;
}

}  // namespace

const Family& qwen2_moe() {
  using enum WeightRole;
  static const Family family = {
      .name = "qwen2_moe",
      .hf_class = "Qwen2MoeForCausalLM",
      .hf_model_type = "qwen2_moe",
      .gguf_architecture = "qwen2moe",
      .read_hf = read_qwen2_moe_hf,
      .read_gguf = read_qwen2_moe_gguf,
      .hf_names = moe_hf_names({{SharedExpertGate, "mlp.shared_expert_gate"},
                                {SharedGate, "mlp.shared_expert.gate_proj"},
                                {SharedUp, "mlp.shared_expert.up_proj"},
                                {SharedDown, "mlp.shared_expert.down_proj"}}),
      .gguf_names = moe_gguf_names({{SharedExpertGate, "ffn_gate_inp_shexp"},
                                    {SharedGate, "ffn_gate_shexp"},
                                    {SharedUp, "ffn_up_shexp"},
                                    {SharedDown, "ffn_down_shexp"}}),
      .hf_experts_key = "num_experts"};
  return family;
}

}  // namespace minfer
