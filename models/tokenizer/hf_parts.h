#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/tokenizer/bpe.h"

namespace minfer {

// Read the components of a tokenizer.json. A component that is not wholly supported is refused by
// name (Input, with the list of what is supported).
void read_hf_normalizer(const nlohmann::json& normalizer, BpeOptions& options);
void read_hf_pre_tokenizer(const nlohmann::json& pre_tokenizer, BpeOptions& options);
void read_hf_decoder(const nlohmann::json& decoder, BpeOptions& options);

// Throws Input if `object` has a field that is not in `known`, since it would be ignored.
void require_known_fields(const nlohmann::json& object, const std::string& what,
                          std::initializer_list<const char*> known);

// Sets adds_bos and bos if the template puts a token before the text. A token after the text is
// left out, because a prompt goes on.
void read_hf_post_processor(const nlohmann::json& post_processor, TokenizerSpec& spec);

}  // namespace minfer
