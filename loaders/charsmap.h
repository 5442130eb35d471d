#pragma once

#include <string_view>

namespace minfer {

// SentencePiece's compiled normalization rules: u32 size of the trie in bytes, the trie (a
// double array of u32 units as Darts-clone lays it out), then the replacements, each ended by NUL.
// Throws Input unless every walk through the trie, by whatever text, stays inside, ends, and finds
// replacements that are UTF-8, no more of them than SentencePiece has room for. Linear in the size.
void check_charsmap(std::string_view charsmap);
// Throws Input where it is larger than any that is accepted.
void check_charsmap_size(std::string_view charsmap);

}  // namespace minfer
