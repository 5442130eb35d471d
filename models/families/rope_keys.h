#pragma once

#include "models/spec.h"

// Readers of what rotary embeddings are said by; private to models/families.
namespace minfer {

// What a family's class in transformers assumes or maps.
struct HfRopeDefaults {
  double theta = 10000;
  int64_t original_seq_len = 0;  // over the dictionary's; 0: the dictionary's
  bool partial = false;          // partial_rotary_factor is read, else refused unless it is 1
  double partial_factor = 1;     // without the key
  std::string_view partial_key = "partial_rotary_factor";  // at the top level
  bool phi3_types = false;  // "su" and "yarn" mean longrope, and there is no other scaling
  // Of one type of layers, "full_attention" or "sliding_attention", where each has settings of its
  // own: an object below "rope_parameters". Older files have one "rope_scaling", which is that of
  // full attention, and a base at the top level, theta_key.
  std::string_view layer_type = {};
  std::string_view theta_key = "rope_theta";
};

// Reads "rope_scaling" of older files, "rope_parameters" of newer ones. Throws Input for a type or
// a key of it that is not understood.
RopeSpec read_hf_rope(const Metadata& config, int64_t head_dim, const HfRopeDefaults& defaults);

// Reads "rope.*" behind `prefix`, and whether the file has longrope's tensors.
RopeSpec read_gguf_rope(const TensorSource& source, const Metadata& keys, const std::string& prefix,
                        int64_t head_dim);

// Gives all layers the rotation, and the model the context that its scaling is for.
void set_rope(ModelSpec& spec, RopeSpec rope);
// The same with another rotation for those layers for which `slides` is true.
void set_ropes(ModelSpec& spec, RopeSpec full, const RopeSpec& sliding,
               const std::vector<bool>& slides);

}  // namespace minfer
