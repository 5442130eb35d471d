#include "models/config_reader.h"
#include "models/families/olmo_like.h"

namespace minfer {
namespace {

constexpr int64_t kOlmo3Window = 4096, kOlmo3Period = 4;
constexpr double kOlmo3Theta = 5e5;

// OLMo 2 with a window in most layers. Only the others have the scaling of the rotation.
ModelSpec read_olmo3_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.norm_eps = 1e-5, .own_ropes = true});
  set_olmo2_blocks(spec);
  const std::vector<bool> slides = sliding_layers(spec, config, kOlmo3Period);
  set_windows(spec, config, "sliding_window", kOlmo3Window, slides);
  const int64_t head_dim = spec.layer(0).head_dim;
  const auto rope_of = [&](std::string_view type) {
    return read_hf_rope(config, head_dim, {.theta = kOlmo3Theta, .layer_type = type});
  };
  set_ropes(spec, rope_of("full_attention"), rope_of("sliding_attention"), slides);
  return spec;
}

ModelSpec read_olmo3_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "olmo2.";
  ModelSpec spec = read_gguf_llama_like(source, keys, "olmo2", GgufWindow::SomeLayers);
  set_olmo2_blocks(spec);
  const std::vector<bool> slides = gguf_sliding_layers(spec, keys, prefix, kOlmo3Period);
  set_windows(spec, keys, prefix + "attention.sliding_window", 0, slides);
  const RopeSpec full = spec.ropes.front();
  set_ropes(spec, full, {.theta = full.theta, .rotary_dim = full.rotary_dim}, slides);
  return spec;
}

bool slides_in_olmo3(const LayerSpec& layer) { return layer.rope == 1 || layer.window > 0; }

void add_olmo3_hf_keys(Metadata& config, const ModelSpec& spec) {
  set_layer_types(config, spec, slides_in_olmo3);
}

void add_olmo3_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  set_gguf_windows(keys, prefix, spec, slides_in_olmo3, kOlmo3Period);
}

}  // namespace

const Family& olmo3() {
  static const Family family = {.name = "olmo3",
                                .hf_class = "Olmo3ForCausalLM",
                                .hf_model_type = "olmo3",
                                .gguf_architecture = "olmo2",
                                .read_hf = read_olmo3_hf,
                                .read_gguf = read_olmo3_gguf,
                                .hf_names = olmo2_hf_names(),
                                .gguf_names = olmo2_gguf_names(),
                                .gguf_key = "attention.sliding_window",
                                .add_hf_keys = add_olmo3_hf_keys,
                                .add_gguf_keys = add_olmo3_gguf_keys,
                                .gguf_window = GgufWindow::SomeLayers};
  return family;
}

}  // namespace minfer
