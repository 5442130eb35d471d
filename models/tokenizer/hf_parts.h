#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/tokenizer/bpe.h"

namespace minfer {

// The components of a tokenizer.json, each understood whole or refused by its name (Input, with
// the list of what is supported).
void read_hf_normalizer(const nlohmann::json& normalizer, BpeOptions& options);
void read_hf_pre_tokenizer(const nlohmann::json& pre_tokenizer, BpeOptions& options);
void read_hf_decoder(const nlohmann::json& decoder, BpeOptions& options);

// Throws Input where `object` has a field that is not among those: it would be read past.
void require_known_fields(const nlohmann::json& object, const std::string& what,
                          std::initializer_list<const char*> known);

// Sets adds_bos and bos where the template puts a token in front. What it puts behind is left out:
// the text goes on.
void read_hf_post_processor(const nlohmann::json& post_processor, TokenizerSpec& spec);

}  // namespace minfer
