#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "models/tokenizer/code_set.h"

// Unicode 16, from tables of our own, so that token ids depend on no library's version.
namespace minfer {

// The property White_Space: what Rust's char::is_whitespace and Oniguruma's \s take for it.
bool is_white_space(char32_t code);

// The code points of a property, by Oniguruma's name for it; case, blanks, - and _ are ignored.
// Properties are general categories, scripts, POSIX classes (Punct is punctuation alone), Emoji and
// the like. Returns nothing for an unknown name.
std::optional<CodeSet> code_points_of(std::string_view property);

// Adds to each code point of a set all those with the same simple case folding.
CodeSet with_case_variants(const CodeSet& set);
// What `code` folds to; more than one code point for ß and its like.
std::u32string case_folded(char32_t code);
// Whether some code point folds to exactly these two or three code points.
bool is_folding_of_one(std::u32string_view folded);

}  // namespace minfer
