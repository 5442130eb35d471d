#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

constexpr int64_t kDefaultWindow = 4096;

// A Llama in all but the defaults of its keys, and with a window for all layers where the file has
// one. GGUF files of both say "llama", and no window.
ModelSpec read_mistral_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 8, .trained_seq_len = 131072});
  const std::string key = "sliding_window";
  int64_t window = read_window(config, key, spec.trained_seq_len);
  // transformers leaves out what is its default; null is how a file says that there is none.
  const bool is_left_out = !config.has(key) && !config.nulls.contains(key);
  if (is_left_out && spec.trained_seq_len > kDefaultWindow) window = kDefaultWindow;
  for (LayerSpec& layer : spec.layers) layer.window = window;
  require_layer_types(config, window > 0 ? "sliding_attention" : "full_attention");
  return spec;
}

}  // namespace

const Family& mistral() {
  static const Family family = {.name = "mistral",
                                .hf_class = "MistralForCausalLM",
                                .hf_model_type = "mistral",
                                .gguf_architecture = "llama",
                                .read_hf = read_mistral_hf,
                                .read_gguf = nullptr,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .gguf_rotary_pairs = true,
                                .biases_by_tensors = true};
  return family;
}

}  // namespace minfer
