#pragma once

#include "models/families/llama_like.h"

// What Cohere and Cohere2 have in common: parallel halves behind one LayerNorm without a bias,
// rotary pairs that are neighbours, and a scale of the logits. Private to models/families.
namespace minfer {

ModelSpec read_hf_cohere(const Metadata& config, double theta,
                         const std::vector<std::string_view>& own_keys = {});
ModelSpec read_gguf_cohere(const TensorSource& source, const Metadata& keys,
                           std::string_view architecture, GgufWindow windows);
void add_cohere_hf_keys(Metadata& config, const ModelSpec& spec);
void add_cohere_gguf_keys(Metadata& keys, const std::string& prefix, const ModelSpec& spec);

}  // namespace minfer
