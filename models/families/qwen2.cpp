#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

// A Llama with biases on queries, keys and values, whose last layers may look at a window only.
ModelSpec read_qwen2_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 32, .trained_seq_len = 32768});
  set_biases(spec, /*qkv=*/true, /*attn_out=*/false, /*ffn=*/false);
  set_qwen_windows(spec, config);
  return spec;
}

ModelSpec read_qwen2_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "qwen2");
  set_biases(spec, /*qkv=*/true, /*attn_out=*/false, /*ffn=*/false);
  return spec;
}

}  // namespace

const Family& qwen2() {
  static const Family family = {.name = "qwen2",
                                .hf_class = "Qwen2ForCausalLM",
                                .hf_model_type = "qwen2",
                                .gguf_architecture = "qwen2",
                                .read_hf = read_qwen2_hf,
                                .read_gguf = read_qwen2_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names()};
  return family;
}

}  // namespace minfer
