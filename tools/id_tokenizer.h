#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace minfer {

// In place of a tokenizer that a model does not have: ids as text, "1 450 17", and back. It has no
// BOS and no token that ends a text.
std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t n_tokens);

// Ids with blanks, commas or line ends between them. Usage, naming `what`, for one that is not
// below n_tokens.
std::vector<TokenId> parse_token_ids(std::string_view what, std::string_view text,
                                     int64_t n_tokens);

}  // namespace minfer
