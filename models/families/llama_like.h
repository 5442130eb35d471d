#pragma once

#include "models/families/family.h"

// Readers for families whose files say things as Llama's do; they set what differs afterwards.
namespace minfer {

// What transformers takes for a key that is absent.
struct HfDefaults {
  int64_t n_kv_heads = 0;  // 0: n_heads
  int64_t head_dim = 0;    // 0: dim / n_heads
  int64_t trained_seq_len = 2048;
  bool tied_output = false;
};

// Of config.json: sizes, rotation, biases, tied output. Refuses by name what a Llama block does not
// have; windows are the family's.
ModelSpec read_hf_llama_like(const Metadata& config, const HfDefaults& defaults);

// The same of a GGUF file, by keys behind `architecture` and a dot.
ModelSpec read_gguf_llama_like(const TensorSource& source, const Metadata& keys,
                               std::string_view architecture);

// Sizes, and the refusal of what no block has, of any family's GGUF file.
//   norm_eps  "attention.layer_norm_rms_epsilon" or "attention.layer_norm_epsilon"
ModelSpec read_gguf_sizes(const Metadata& keys, std::string_view architecture,
                          std::string_view norm_eps);

// Every layer of the list that newer files carry must be of this type.
void require_layer_types(const Metadata& config, std::string_view type);

// As Qwen's files say it: with use_sliding_window, the layers that layer_types names, or those from
// max_window_layers on, have a window.
void set_qwen_windows(ModelSpec& spec, const Metadata& config);

void set_biases(ModelSpec& spec, bool qkv, bool attn_out, bool ffn);

}  // namespace minfer
