#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace minfer {

// Where a text can be cut without changing its tokens: between two characters that no piece has
// side by side, since nothing is ever merged across. Short stretches keep the work on them in the
// cache, which is most of the time that a book takes.
class Boundaries {
 public:
  Boundaries() = default;  // of an empty vocabulary: everywhere
  explicit Boundaries(const Vocabulary& vocabulary);

  bool between(std::string_view left_char, std::string_view right_char) const {
    return !pairs_.contains(pair_of(left_char, right_char));
  }
  // `text` is valid UTF-8; the stretches point into it.
  std::vector<std::string_view> cut(std::string_view text) const;

 private:
  // Both characters' bytes: at most four each.
  static uint64_t pair_of(std::string_view left_char, std::string_view right_char);
  std::unordered_set<uint64_t> pairs_;
};

}  // namespace minfer
