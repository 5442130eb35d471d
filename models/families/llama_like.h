#pragma once

#include <functional>

#include "models/families/family.h"
#include "models/families/rope_keys.h"

// Readers for families whose files have Llama's keys; each family then sets what differs.
namespace minfer {

// The values that transformers assumes for absent keys, and the keys that a family alone has.
struct HfDefaults {
  int64_t n_kv_heads = 0;  // 0: n_heads
  int64_t head_dim = 0;    // 0: dim / n_heads
  int64_t trained_seq_len = 2048;
  double norm_eps = 1e-6;
  bool tied_output = false;
  HfRopeDefaults rope = {};
  bool layers_without_rope = false;  // no_rope_layers and its interval are read, else refused
  bool has_experts = false;          // the family reads the keys of experts, else they are refused
  bool has_qk_norm_key = false;      // the family reads use_qk_norm, else it is refused
};

// Reads sizes, rotation, biases and tied output from config.json. Refuses by name what a Llama
// block does not have; windows are left to the family.
ModelSpec read_hf_llama_like(const Metadata& config, const HfDefaults& defaults);

// The same from a GGUF file, whose keys begin with `architecture` and a dot.
ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture, GgufWindow windows = GgufWindow::None,
                               bool has_experts = false);

// Reads sizes from any family's GGUF file, and refuses what no block has.
//   norm_eps  "attention.layer_norm_rms_epsilon" or "attention.layer_norm_epsilon"
ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps, bool has_experts = false);

// Requires that every layer in the list that newer files carry is of this type.
void require_layer_types(const Metadata& config, std::string_view type);

// If use_sliding_window is true, gives some layers a window: those that the list layer_types calls
// "sliding_attention", or, in a file without the list, those for which `slides` is true.
//   fallback  the window of a file without sliding_window
void set_flagged_windows(ModelSpec& spec, const Metadata& config, int64_t fallback,
                         const std::function<bool(int64_t)>& slides);
// The same by Qwen's rule: the layers from max_window_layers on.
void set_qwen_windows(ModelSpec& spec, const Metadata& config);

// Takes the rotation from layers interval - 1, 2 interval - 1, ...
void unrotate_every(ModelSpec& spec, int64_t interval);

void set_biases(ModelSpec& spec, bool qkv, bool attn_out, bool ffn);

}  // namespace minfer
