#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// How SentencePiece vocabularies spell a blank.
inline constexpr std::string_view kBlank = "\u2581";  // ▁

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Each byte that belongs to no character becomes U+FFFD, as SentencePiece does.
std::string with_valid_utf8(std::string_view text);

// One change to a text before it is cut into words.
struct NormalizeStep {
  enum class Kind {
    Prepend,      // `from` in front of a text that is not empty
    PrependOnce,  // the same unless it is there
    Replace,      // every `from` by `to`
    Nfc,          // Unicode's normalization form C
  };
  Kind kind = Kind::Replace;
  std::string from, to;
  bool at_start_only = false;  // Prepend, PrependOnce: not behind a special token
};

std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, bool at_start);

}  // namespace minfer
