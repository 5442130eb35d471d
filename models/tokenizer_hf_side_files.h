#pragma once

#include <string>

#include "loaders/small_files.h"
#include "models/tokenizer_base.h"

namespace minfer {

// Completes `spec` by what a Hugging Face model says beside the tokenizer itself:
// tokenizer_config.json, special_tokens_map.json, generation_config.json, added_tokens.json,
// chat_template.jinja. A file that is not there changes nothing.
void apply_hf_side_files(const SmallFiles& files, TokenizerSpec& spec);

// Gives `id` this text and kind; ids past the end make room, with holes of a bounded number. Throws
// Input where the id belongs to another text.
void set_added_piece(TokenizerSpec& spec, int64_t id, const std::string& text, PieceKind kind);

}  // namespace minfer
