#include <algorithm>

#include "models/config_reader.h"
#include "models/families/gemma_like.h"

namespace minfer {
namespace {

constexpr int64_t kGemma3Window = 4096, kGemma3Period = 6, kGemma3LayersOf27b = 62;
constexpr double kGlobalTheta = 1e6, kLocalTheta = 1e4;

// The text model of Gemma 3: Gemma 2 with norms of the heads of queries and keys, without caps, and
// with another base of the rotation in layers with a window, which a scaling leaves alone.
void set_gemma3_blocks(ModelSpec& spec) {
  set_gemma2_blocks(spec);
  for (LayerSpec& layer : spec.layers) layer.qk_norm = QkNorm::PerHead;
}

ModelSpec read_gemma3_hf(const Metadata& config) {
  ModelSpec spec = read_hf_gemma(config, {.n_kv_heads = 4,
                                          .trained_seq_len = 131072,
                                          .own_ropes = true,
                                          .own_keys = {"final_logit_softcapping"}});
  set_gemma3_blocks(spec);
  read_hf_query_scale(spec, config);
  spec.edges.logit_softcap =
      static_cast<float>(config.number_or("final_logit_softcapping", 0, 0, 1e6));
  const std::vector<bool> slides = sliding_layers(
      spec, config, config.integer_or("sliding_window_pattern", kGemma3Period, 1, 1 << 20));
  set_windows(spec, config, "sliding_window", kGemma3Window, slides);
  const int64_t head_dim = spec.layer(0).head_dim;
  set_ropes(spec,
            read_hf_rope(config, head_dim, {.theta = kGlobalTheta, .layer_type = "full_attention"}),
            read_hf_rope(config, head_dim,
                         {.theta = kLocalTheta,
                          .layer_type = "sliding_attention",
                          .theta_key = "rope_local_base_freq"}),
            slides);
  return spec;
}

ModelSpec read_gemma3_gguf(const TensorSource& source, const Metadata& keys) {
  const std::string prefix = "gemma3.";
  ModelSpec spec = read_gguf_gemma(source, keys, "gemma3", {"final_logit_softcapping"});
  set_gemma3_blocks(spec);
  set_gguf_query_scale(spec, kGemma3LayersOf27b);
  spec.edges.logit_softcap =
      static_cast<float>(keys.number_or(prefix + "final_logit_softcapping", 0, 0, 1e6));
  // Without a window, no layer slides.
  const std::string key = prefix + "attention.sliding_window";
  if (!keys.has(key)) return spec;
  const std::vector<bool> slides = gguf_sliding_layers(spec, keys, prefix, kGemma3Period);
  set_windows(spec, keys, key, 0, slides);
  const double theta = keys.has(prefix + "rope.freq_base_swa")
                           ? read_rope_theta(keys, prefix + "rope.freq_base_swa")
                           : kLocalTheta;
  const RopeSpec full = spec.ropes.front();
  set_ropes(spec, full, {.theta = theta, .rotary_dim = full.rotary_dim}, slides);
  return spec;
}

bool slides_in_gemma3(const LayerSpec& layer) { return layer.rope == 1 || layer.window > 0; }

void add_gemma3_hf_keys(Metadata& config, const ModelSpec& spec) {
  add_gemma2_hf_keys(config, spec);
  set_layer_types(config, spec, slides_in_gemma3);
  config.set("rope_local_base_freq", spec.ropes.back().theta);
  if (spec.edges.logit_softcap > 0) {
    config.set("final_logit_softcapping", double{spec.edges.logit_softcap});
  }
}

void add_gemma3_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec) {
  if (std::ranges::none_of(spec.layers, slides_in_gemma3)) return;
  set_gguf_windows(keys, prefix, spec, slides_in_gemma3, kGemma3Period);
  keys.set(prefix + "rope.freq_base_swa", spec.ropes.back().theta);
  if (spec.edges.logit_softcap > 0) {
    keys.set(prefix + "final_logit_softcapping", double{spec.edges.logit_softcap});
  }
}

}  // namespace

const Family& gemma3() {
  static const Family family = {
      .name = "gemma3",
      .hf_class = "Gemma3ForCausalLM",
      .hf_model_type = "gemma3_text",
      .gguf_architecture = "gemma3",
      .read_hf = read_gemma3_hf,
      .read_gguf = read_gemma3_gguf,
      .hf_names = gemma2_hf_names(
          {{WeightRole::QNorm, "self_attn.q_norm"}, {WeightRole::KNorm, "self_attn.k_norm"}}),
      .gguf_names = gemma2_gguf_names(
          {{WeightRole::QNorm, "attn_q_norm"}, {WeightRole::KNorm, "attn_k_norm"}}),
      .add_hf_keys = add_gemma3_hf_keys,
      .add_gguf_keys = add_gemma3_gguf_keys,
      .hf_norm_offset = 1,
      .gguf_window = GgufWindow::SomeLayers};
  return family;
}

}  // namespace minfer
