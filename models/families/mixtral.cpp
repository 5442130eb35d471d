#include "models/config_reader.h"
#include "models/families/llama_like.h"
#include "models/families/moe_keys.h"

namespace minfer {
namespace {

// A Mistral whose feed-forward networks are mixtures of experts, whose weights sum to 1.
ModelSpec read_mixtral_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 8,
                                               .trained_seq_len = 131072,
                                               .norm_eps = 1e-5,
                                               .rope = {.theta = 1e6},
                                               .own_keys = hf_expert_keys()});
  const int64_t window = read_window(config, "sliding_window", spec.trained_seq_len);
  for (LayerSpec& layer : spec.layers) layer.window = window;
  require_layer_types(config, window > 0 ? "sliding_attention" : "full_attention");
  refuse_unless_neutral(config, "", {{"norm_topk_prob", 1}});
  set_hf_experts(spec, config, {.n_experts = 8, .n_active_experts = 2, .renormalizes = true});
  return spec;
}

ModelSpec read_mixtral_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "llama", GgufWindow::None, {kGgufExpertsKey});
  set_gguf_experts(spec, keys, "llama", {.renormalizes = true});
  return spec;
}

WeightNames mixtral_hf_names() {
  using enum WeightRole;
  return moe_hf_names({{Router, "block_sparse_moe.gate"},
                       {ExpertGate, "block_sparse_moe.experts.*.w1"},
                       {ExpertUp, "block_sparse_moe.experts.*.w3"},
                       {ExpertDown, "block_sparse_moe.experts.*.w2"}});
}

}  // namespace

const Family& mixtral() {
  static const Family family = {.name = "mixtral",
                                .hf_class = "MixtralForCausalLM",
                                .hf_model_type = "mixtral",
                                .gguf_architecture = "llama",
                                .read_hf = read_mixtral_hf,
                                .read_gguf = read_mixtral_gguf,
                                .hf_names = mixtral_hf_names(),
                                .gguf_names = moe_gguf_names(),
                                .gguf_key = kGgufExpertsKey,
                                .gguf_rotary_pairs = true,
                                .hf_experts_key = "num_local_experts"};
  return family;
}

}  // namespace minfer
