#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

ModelSpec read_llama_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {});
  refuse_sliding_window(config, "sliding_window", spec.trained_seq_len);
  require_layer_types(config, "full_attention");
  return spec;
}

ModelSpec read_llama_gguf(const TensorSource& source, const Metadata& keys) {
  return read_gguf_llama_like(source, keys, "llama");
}

}  // namespace

const Family& llama() {
  static const Family family = {.name = "llama",
                                .hf_class = "LlamaForCausalLM",
                                .hf_model_type = "llama",
                                .gguf_architecture = "llama",
                                .read_hf = read_llama_hf,
                                .read_gguf = read_llama_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .gguf_rotary_pairs = true,
                                .biases_by_tensors = true};
  return family;
}

}  // namespace minfer
