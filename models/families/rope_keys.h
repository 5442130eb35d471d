#pragma once

#include "models/spec.h"

// Readers of what rotary embeddings are said by; private to models/families.
namespace minfer {

// What a family's class in transformers assumes or maps.
struct HfRopeDefaults {
  double theta = 10000;
  int64_t original_seq_len = 0;  // over the dictionary's; 0: the dictionary's
  bool partial = false;          // partial_rotary_factor is read, else refused unless it is 1
  double rotary_fraction = 1;    // where that key is absent
  bool phi3_types = false;       // "su" and "yarn" mean longrope, and there is no other scaling
};

// Reads "rope_scaling" of older files, "rope_parameters" of newer ones. Throws Input for a type or
// a key of it that is not understood.
RopeSpec read_hf_rope(const Metadata& config, int64_t head_dim, const HfRopeDefaults& defaults);

// Reads "rope.*" behind `prefix`, and whether the file has longrope's tensors.
RopeSpec read_gguf_rope(const TensorSource& source, const Metadata& keys, const std::string& prefix,
                        int64_t head_dim);

// Gives all layers the rotation, and the model the context that its scaling is for.
void set_rope(ModelSpec& spec, RopeSpec rope);

}  // namespace minfer
