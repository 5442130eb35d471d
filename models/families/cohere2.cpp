#include "models/config_reader.h"
#include "models/families/cohere_like.h"

namespace minfer {
namespace {

constexpr int64_t kCohere2Window = 4096, kCohere2Period = 4;

// Cohere with a window in most layers; the others do not rotate.
void set_cohere2_layers(ModelSpec& spec, const std::vector<bool>& slides) {
  for (size_t i = 0; i < slides.size(); ++i) {
    if (!slides[i]) spec.layers[i].rope = -1;
  }
}

ModelSpec read_cohere2_hf(const Metadata& config) {
  ModelSpec spec = read_hf_cohere(config, 1e4);
  const std::vector<bool> slides = sliding_layers(
      spec, config, config.integer_or("sliding_window_pattern", kCohere2Period, 1, 1 << 20));
  set_windows(spec, config, "sliding_window", kCohere2Window, slides);
  set_cohere2_layers(spec, slides);
  return spec;
}

ModelSpec read_cohere2_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "cohere2.";
  ModelSpec spec = read_gguf_cohere(source, keys, "cohere2", GgufWindow::SomeLayers);
  const std::vector<bool> slides = gguf_sliding_layers(spec, keys, prefix, kCohere2Period);
  set_windows(spec, keys, prefix + "attention.sliding_window", kCohere2Window, slides);
  set_cohere2_layers(spec, slides);
  return spec;
}

bool slides_in_cohere2(const LayerSpec& layer) { return layer.rope >= 0; }

void add_cohere2_hf_keys(Metadata& config, const ModelSpec& spec) {
  add_cohere_hf_keys(config, spec);
  set_layer_types(config, spec, slides_in_cohere2);
}

void add_cohere2_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  add_cohere_gguf_keys(keys, prefix, spec);
  set_gguf_windows(keys, prefix, spec, slides_in_cohere2, kCohere2Period);
}

}  // namespace

const Family& cohere2() {
  static const Family family = {.name = "cohere2",
                                .hf_class = "Cohere2ForCausalLM",
                                .hf_model_type = "cohere2",
                                .gguf_architecture = "cohere2",
                                .read_hf = read_cohere2_hf,
                                .read_gguf = read_cohere2_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .add_hf_keys = add_cohere2_hf_keys,
                                .add_gguf_keys = add_cohere2_gguf_keys,
                                .hf_rotary_pairs = true,
                                .gguf_rotary_pairs = true,
                                .gguf_window = GgufWindow::SomeLayers};
  return family;
}

}  // namespace minfer
