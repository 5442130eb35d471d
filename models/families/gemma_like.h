#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/families/llama_like.h"

// Readers for what the versions of Gemma have in common: an embedding that is multiplied by the
// root of the width and is the output layer too, gates of GELU-tanh, heads of a size of their own.
// Private to models/families.
namespace minfer {

// With the defaults of Gemma, where `defaults` leaves them 0.
ModelSpec read_hf_gemma(const Metadata& config, HfDefaults defaults);
ModelSpec read_gguf_gemma(const TensorSource& source, const Metadata& keys,
                          std::string_view architecture,
                          const std::vector<std::string_view>& own_keys = {});

// Norms before and behind both halves of a block, whose scores are scaled by a key of config.json.
void set_gemma2_blocks(ModelSpec& spec);
void read_hf_query_scale(ModelSpec& spec, const Metadata& config);
// GGUF files have no scale. llama.cpp knows the one model whose scale is not by the size of its
// heads, the 27B, by its number of layers.
void set_gguf_query_scale(ModelSpec& spec, int64_t layers_of_27b);

// What files say of Gemma 2 and 3.
WeightNames gemma2_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});
WeightNames gemma2_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});
void add_gemma2_hf_keys(Metadata& config, const ModelSpec& spec);

}  // namespace minfer
