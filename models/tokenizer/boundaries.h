#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace minfer {

// The places where a text can be cut without changing its tokens: between two characters that are
// neighbours in no piece, since no merge crosses such a place. Cutting keeps the work on a long
// text in the cache, which saves most of its time.
class Boundaries {
 public:
  Boundaries() = default;  // for an empty vocabulary: a text can be cut everywhere
  explicit Boundaries(const Vocabulary& vocabulary);

  bool between(std::string_view left_char, std::string_view right_char) const {
    return !pairs_.contains(pair_of(left_char, right_char));
  }
  // `text` is valid UTF-8; the stretches point into it.
  std::vector<std::string_view> cut(std::string_view text) const;

 private:
  // The bytes of both characters, at most four each, as one key.
  static uint64_t pair_of(std::string_view left_char, std::string_view right_char);
  std::unordered_set<uint64_t> pairs_;
};

}  // namespace minfer
