#include <algorithm>

#include "models/config_reader.h"
#include "models/families/gemma_like.h"

namespace minfer {
namespace {

constexpr int64_t kGemma2Window = 4096, kGemma2Period = 2, kGemma2LayersOf27b = 46;
constexpr double kMostCap = 1e6;

void set_gemma2_caps(ModelSpec& spec, double of_scores, double of_logits) {
  for (LayerSpec& layer : spec.layers) layer.attn_softcap = static_cast<float>(of_scores);
  spec.edges.logit_softcap = static_cast<float>(of_logits);
}

// Gemma with norms before and behind both halves of a block, a window in every second layer from
// the first on, and soft caps of scores and logits.
ModelSpec read_gemma2_hf(const Metadata& config) {
  ModelSpec spec =
      read_hf_gemma(config, {.n_kv_heads = 4,
                             .trained_seq_len = 8192,
                             .own_keys = {"attn_logit_softcapping", "final_logit_softcapping"}});
  set_gemma2_blocks(spec);
  read_hf_query_scale(spec, config);
  const auto cap = [&](const std::string& key, double fallback) {  // null: none
    return config.nulls.contains(key) ? 0 : config.number_or(key, fallback, 1e-6, kMostCap);
  };
  set_gemma2_caps(spec, cap("attn_logit_softcapping", 50), cap("final_logit_softcapping", 30));
  set_windows(spec, config, "sliding_window", kGemma2Window,
              sliding_layers(spec, config, kGemma2Period));
  return spec;
}

ModelSpec read_gemma2_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "gemma2.";
  ModelSpec spec = read_gguf_gemma(source, keys, "gemma2",
                                   {"attn_logit_softcapping", "final_logit_softcapping"});
  set_gemma2_blocks(spec);
  set_gguf_query_scale(spec, kGemma2LayersOf27b);
  set_gemma2_caps(spec, keys.number_or(prefix + "attn_logit_softcapping", 50, 0, kMostCap),
                  keys.number_or(prefix + "final_logit_softcapping", 30, 0, kMostCap));
  set_windows(spec, keys, prefix + "attention.sliding_window", kGemma2Window,
              gguf_sliding_layers(spec, keys, prefix, kGemma2Period));
  return spec;
}

bool slides_in_gemma2(const LayerSpec& layer) { return layer.window > 0; }

void add_gemma2_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  const bool slides = std::ranges::any_of(spec.layers, slides_in_gemma2);
  if (slides) set_gguf_windows(keys, prefix, spec, slides_in_gemma2, kGemma2Period);
  keys.set(prefix + "attn_logit_softcapping", double{spec.layer(0).attn_softcap});
  keys.set(prefix + "final_logit_softcapping", double{spec.edges.logit_softcap});
}

void add_gemma2_own_hf_keys(Metadata& config, const ModelSpec& spec) {
  add_gemma2_hf_keys(config, spec);
  set_layer_types(config, spec, slides_in_gemma2);
  const auto set_cap = [&](const char* key, float cap) {
    if (cap > 0) {
      config.set(key, double{cap});
    } else {
      config.nulls.insert(key);  // an absent key means a cap
    }
  };
  set_cap("attn_logit_softcapping", spec.layer(0).attn_softcap);
  set_cap("final_logit_softcapping", spec.edges.logit_softcap);
}

}  // namespace

const Family& gemma2() {
  static const Family family = {.name = "gemma2",
                                .hf_class = "Gemma2ForCausalLM",
                                .hf_model_type = "gemma2",
                                .gguf_architecture = "gemma2",
                                .read_hf = read_gemma2_hf,
                                .read_gguf = read_gemma2_gguf,
                                .hf_names = gemma2_hf_names(),
                                .gguf_names = gemma2_gguf_names(),
                                .add_hf_keys = add_gemma2_own_hf_keys,
                                .add_gguf_keys = add_gemma2_gguf_keys,
                                .hf_norm_offset = 1,
                                .gguf_window = GgufWindow::SomeLayers};
  return family;
}

}  // namespace minfer
