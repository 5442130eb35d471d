#include "models/families/gemma_like.h"

namespace minfer {
namespace {

// Gemma 1: a Llama but for what all versions of Gemma share.
ModelSpec read_gemma1_hf(const Metadata& config) {
  ModelSpec spec = read_hf_gemma(config, {.n_kv_heads = 16, .trained_seq_len = 8192});
  require_layer_types(config, "full_attention");
  return spec;
}

ModelSpec read_gemma1_gguf(const TensorSource& source, const Metadata& keys) {
  return read_gguf_gemma(source, keys, "gemma");
}

}  // namespace

const Family& gemma() {
  static const Family family = {.name = "gemma",
                                .hf_class = "GemmaForCausalLM",
                                .hf_model_type = "gemma",
                                .gguf_architecture = "gemma",
                                .read_hf = read_gemma1_hf,
                                .read_gguf = read_gemma1_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .hf_norm_offset = 1};
  return family;
}

}  // namespace minfer
