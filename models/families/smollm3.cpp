#include "models/config_reader.h"
#include "models/families/llama_like.h"

namespace minfer {
namespace {

constexpr int64_t kRotationInterval = 4;

// A Llama in which some layers have no rotation, by default every fourth. Windows, where a file
// switches them on, are of those layers.
ModelSpec read_smollm3_hf(const Metadata& config) {
  ModelSpec spec = read_hf_llama_like(config, {.n_kv_heads = 4,
                                               .trained_seq_len = 32768,
                                               .tied_output = true,
                                               .rope = {.theta = 2e6},
                                               .layers_without_rope = true});
  set_flagged_windows(spec, config, 0, [&](int64_t layer) { return spec.layer(layer).rope < 0; });
  return spec;
}

// The interval has no key.
ModelSpec read_smollm3_gguf(const TensorSource& source, const Metadata& keys) {
  ModelSpec spec = read_gguf_llama_like(source, keys, "smollm3");
  unrotate_every(spec, kRotationInterval);
  return spec;
}

void add_smollm3_hf_keys(Metadata& config, const ModelSpec& spec) {
  std::vector<int64_t> rotate;
  for (const LayerSpec& layer : spec.layers) rotate.push_back(layer.rope < 0 ? 0 : 1);
  config.set("no_rope_layers", rotate);
}

}  // namespace

const Family& smollm3() {
  static const Family family = {.name = "smollm3",
                                .hf_class = "SmolLM3ForCausalLM",
                                .hf_model_type = "smollm3",
                                .gguf_architecture = "smollm3",
                                .read_hf = read_smollm3_hf,
                                .read_gguf = read_smollm3_gguf,
                                .hf_names = llama_hf_names(),
                                .gguf_names = llama_gguf_names(),
                                .add_hf_keys = add_smollm3_hf_keys,
                                .gguf_rotary_pairs = true,
                                .biases_by_tensors = true};
  return family;
}

}  // namespace minfer
