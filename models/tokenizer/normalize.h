#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace minfer {

// How SentencePiece vocabularies spell a blank.
inline constexpr std::string_view kBlank = "\u2581";  // ▁

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Each byte that belongs to no character becomes U+FFFD, as SentencePiece does.
std::string with_valid_utf8(std::string_view text);

// One change to a text before it is cut into words. Names as in a tokenizer.json.
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
  std::vector<Regex> pattern = {};  // ReplaceRegex: one
};

// `front`: how many bytes at the start of the text come from the start of the whole text; kept as
// the text changes, as tokenizers counts it: what replaces characters comes from where the last of
// them was. Throws Input where the text grows past 32 times its bytes and 1 MiB.
std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, size_t& front);

}  // namespace minfer
