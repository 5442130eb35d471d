#include "models/families/llama_like.h"

namespace minfer {
namespace {

// A Qwen2 without biases, and with an RMSNorm of each head of queries and keys in front of their
// rotation. Heads have a size of their own.
void set_qwen3_block(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::PerHead;
}

ModelSpec read_qwen3_hf(const Metadata& config) {
  ModelSpec spec =
      read_hf_llama_like(config, {.n_kv_heads = 32, .head_dim = 128, .trained_seq_len = 32768});
  set_qwen3_block(spec);
  set_qwen_windows(spec, config);
  return spec;
}

ModelSpec read_qwen3_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "qwen3");
  set_qwen3_block(spec);
  return spec;
}

}  // namespace

const Family& qwen3() {
  static const Family family = {
      .name = "qwen3",
      .hf_class = "Qwen3ForCausalLM",
      .hf_model_type = "qwen3",
      .gguf_architecture = "qwen3",
      .read_hf = read_qwen3_hf,
      .read_gguf = read_qwen3_gguf,
      .hf_names = llama_hf_names(
          {{WeightRole::QNorm, "self_attn.q_norm"}, {WeightRole::KNorm, "self_attn.k_norm"}}),
      .gguf_names = llama_gguf_names(
          {{WeightRole::QNorm, "attn_q_norm"}, {WeightRole::KNorm, "attn_k_norm"}})};
  return family;
}

}  // namespace minfer
