#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
  bool attention_bias = false;
  HfRopeDefaults rope = {};
  bool layers_without_rope = false;  // no_rope_layers and its interval are read, else refused
  std::string_view norm_eps_key = "rms_norm_eps";
  bool own_activation = false;  // the family reads it; else it is silu
  bool own_ropes = false;       // the family reads the rotations
  // Keys of what a Llama block does not have, which the family reads; the others are refused.
  std::vector<std::string_view> own_keys = {};
};

// Reads sizes, rotation, biases and tied output from config.json. Refuses by name what a Llama
// block does not have; windows are left to the family.
ModelSpec read_hf_llama_like(const Metadata& config, const HfDefaults& defaults);

// The same from a GGUF file, whose keys begin with `architecture` and a dot.
ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture, GgufWindow windows = GgufWindow::None,
                               const std::vector<std::string_view>& own_keys = {},
                               NormKind norm = NormKind::Rms);

// Reads sizes from any family's GGUF file, and refuses what no block has.
//   norm_eps  "attention.layer_norm_rms_epsilon" or "attention.layer_norm_epsilon"
ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps,
                          const std::vector<std::string_view>& own_keys = {});

// Requires that every layer in the list that newer files carry is of this type.
void require_layer_types(const Metadata& config, std::string_view type);

// If use_sliding_window is true, gives some layers a window: those that the list layer_types calls
// "sliding_attention", or, in a file without the list, those for which `slides` is true.
//   fallback  the window of a file without sliding_window
void set_flagged_windows(ModelSpec& spec, const Metadata& config, int64_t fallback,
                         const std::function<bool(int64_t)>& slides);
// The same by Qwen's rule: the layers from max_window_layers on.
void set_qwen_windows(ModelSpec& spec, const Metadata& config);

// Which layers the list layer_types calls "sliding_attention", not "full_attention"; without the
// list, those i with i % period < period - 1.
std::vector<bool> sliding_layers(const ModelSpec& spec, const Metadata& config, int64_t period);
// The same by a GGUF file's attention.sliding_window_pattern: a list, or the period.
std::vector<bool> gguf_sliding_layers(const ModelSpec& spec, const Metadata& keys,
                                      const std::string& prefix, int64_t period);
// Says in config.json which layers slide, and their window.
void set_layer_types(Metadata& config, const ModelSpec& spec,
                     const std::function<bool(const LayerSpec&)>& slides);
// The same in a GGUF file; the layers only if they are not those of sliding_layers(period).
void set_gguf_windows(Metadata& keys, const std::string& prefix, const ModelSpec& spec,
                      const std::function<bool(const LayerSpec&)>& slides, int64_t period);
// The window that a file says for a model some of whose layers slide: where it is no shorter than
// the context, the spec has none, and the file the context.
int64_t window_of_file(const ModelSpec& spec);
// Gives these layers the window of a key.
//   fallback  the window of a file without it; null is refused
void set_windows(ModelSpec& spec, const Metadata& metadata, const std::string& key,
                 int64_t fallback, const std::vector<bool>& slides);

// Takes the rotation from layers interval - 1, 2 interval - 1, ...
void unrotate_every(ModelSpec& spec, int64_t interval);

void set_biases(ModelSpec& spec, bool qkv, bool attn_out, bool ffn);

// LayerNorms in all places.
void set_layer_norms(ModelSpec& spec, bool has_bias = true);
// The halves of each block are parallel; `shared_norm`: behind one norm.
void set_parallel(ModelSpec& spec, bool shared_norm);
// A feed-forward network without a gate, with the GELU that config.json names.
void set_plain_ffn(ModelSpec& spec, Activation gelu);
// Says in config.json what files with LayerNorms and partial rotation say.
void set_layer_norm_keys(Metadata& config, const ModelSpec& spec);
Activation read_gelu(const Metadata& config, const std::string& key, const std::string& fallback);

}  // namespace minfer
