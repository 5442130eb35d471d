#include "models/families/gemma_like.h"

#include <cmath>

#include "models/config_reader.h"

namespace minfer {
namespace {

constexpr const char* kGelu = "gelu_pytorch_tanh";

// transformers rounds the scale, and its products, to the type of the weights. Here it is what that
// is with weights in float64: sqrt(dim), rounded to float32.
void set_gemma(ModelSpec& spec) {
  spec.edges.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.dim)));
  for (LayerSpec& layer : spec.layers) layer.activation = Activation::GeluTanh;
}

}  // namespace

ModelSpec read_hf_gemma(const Metadata& config, HfDefaults defaults) {
  if (defaults.head_dim == 0) defaults.head_dim = 256;
  defaults.tied_output = true;
  defaults.own_activation = true;
  ModelSpec spec = read_hf_llama_like(config, defaults);
  // Older files say "gelu" and mean the form with tanh, as transformers knows.
  require_supported("hidden_act", config.text_or("hidden_act", kGelu), {kGelu, "gelu"});
  require_supported("hidden_activation", config.text_or("hidden_activation", kGelu), {kGelu});
  set_gemma(spec);
  return spec;
}

ModelSpec read_gguf_gemma(const TensorSource& source, const Metadata& keys,
                          std::string_view architecture,
                          const std::vector<std::string_view>& own_keys) {
  ModelSpec spec =
      read_gguf_llama_like(source, keys, architecture, GgufWindow::SomeLayers, own_keys);
  set_gemma(spec);
  return spec;
}

void set_gemma2_blocks(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) layer.norm_places = NormPlaces::Both;
}

void read_hf_query_scale(ModelSpec& spec, const Metadata& config) {
  const double scalar = config.number_or("query_pre_attn_scalar", 256, 1e-6, 1e6);
  for (LayerSpec& layer : spec.layers) layer.attn_scale = static_cast<float>(1 / std::sqrt(scalar));
}

void set_gguf_query_scale(ModelSpec& spec, int64_t layers_of_27b) {
  for (LayerSpec& layer : spec.layers) {
    const auto head_dim = static_cast<double>(layer.head_dim);
    const bool is_27b = spec.n_layers() == layers_of_27b;
    const double scalar =
        is_27b ? static_cast<double>(spec.dim) / static_cast<double>(layer.n_heads) : head_dim;
    layer.attn_scale = static_cast<float>(1 / std::sqrt(scalar));
  }
}

WeightNames gemma2_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  more.insert(more.end(), {{WeightRole::AttnPostNorm, "post_attention_layernorm"},
                           {WeightRole::FfnNorm, "pre_feedforward_layernorm"},
                           {WeightRole::FfnPostNorm, "post_feedforward_layernorm"}});
  return llama_hf_names(std::move(more));
}

WeightNames gemma2_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more) {
  more.insert(more.end(), {{WeightRole::AttnPostNorm, "post_attention_norm"},
                           {WeightRole::FfnPostNorm, "post_ffw_norm"}});
  return llama_gguf_names(std::move(more));
}

void add_gemma2_hf_keys(Metadata& config, const ModelSpec& spec) {
  const double scale = double{spec.layer(0).attn_scale};
  config.set("query_pre_attn_scalar", 1 / (scale * scale));
  config.set("hidden_activation", std::string(kGelu));
}

}  // namespace minfer
