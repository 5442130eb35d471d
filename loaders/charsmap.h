#pragma once

#include <string_view>

namespace minfer {

// Checks SentencePiece's compiled normalization rules: the size of a trie in bytes (u32), the trie
// (a double array of u32 units in Darts-clone's layout), then replacements, each ended by NUL.
// Throws Input unless every walk through the trie, for any text, stays inside, ends, and finds only
// UTF-8 replacements, and no more than SentencePiece has room for. It takes linear time.
void check_charsmap(std::string_view charsmap);
// Throws Input if it is larger than the limit.
void check_charsmap_size(std::string_view charsmap);

}  // namespace minfer
