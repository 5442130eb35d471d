#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace minfer {

// How SentencePiece vocabularies spell a blank.
inline constexpr std::string_view kBlank = "\u2581";  // ▁

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Replaces each byte that is not part of valid UTF-8 by U+FFFD, as SentencePiece does.
std::string with_valid_utf8(std::string_view text);

// One change to a text before it is cut into words. The names are those of a tokenizer.json.
struct NormalizeStep {
  enum class Kind {
    Prepend,       // `to` in front of a text that is not empty
    Replace,       // every `from` by `to`
    ReplaceRegex,  // every match of `pattern` by `to`
    Nfc,           // Unicode's normalization forms
    Nfd,
    StripLeft,  // white space
    StripRight,
  };
  Kind kind = Kind::Nfc;
  std::string from = {}, to = {};
  std::vector<Regex> pattern = {};  // one for ReplaceRegex, else none
};

// Applies the steps. `front` is how many bytes at the start of `text` come from the first character
// of the whole text. It changes as in the tokenizers package: a replacement comes from the last
// character that it replaces. Throws Input if the text grows past 32 times its bytes plus 1 MiB.
std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, size_t& front);

}  // namespace minfer
