#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenizer/code_set.h"

namespace minfer {

enum class RegexAnchor : uint8_t {
  TextBegin,      // \A
  TextEnd,        // \z
  TextEndOrLine,  // \Z: the end, or before a line feed that ends the text
  LineBegin,      // ^
  LineEnd,        // $
  SearchBegin,    // \G
  WordBoundary,   // \b
  NoWordBoundary  // \B
};

// A pattern as a tree.
struct RegexNode {
  enum class Kind : uint8_t {
    Set,        // one character of sets[set]
    Concat,     // the children one after another; none: empty
    Alternate,  // the first child that leads to a match
    Repeat,     // its child min to max times
    Atomic,     // its child; once that has matched, its alternatives are dropped
    Look,       // its child matches ahead of (or `behind`) this place, or does not if `negated`
    Anchor,
    Keep  // the match begins here
  };
  static constexpr int64_t kUnbounded = INT64_MAX;

  Kind kind = Kind::Concat;
  bool lazy = false, negated = false, behind = false;
  RegexAnchor anchor = RegexAnchor::TextBegin;
  uint32_t set = 0;
  int64_t min = 0, max = 0;
  int64_t min_chars = 0, max_chars = 0;  // how many it takes from the text; at most kUnbounded
  std::vector<RegexNode> children;
};

struct ParsedRegex {
  RegexNode root;
  std::vector<CodeSet> sets;
};

// Parses a pattern in the syntax of tokenizer.json: Oniguruma's with its Ruby options. Groups do
// not capture, since no pre-tokenizer uses captures. Throws Input for what is malformed or not
// supported: back references, calls, conditions, absent groups, \X, case folding of one letter to
// several.
ParsedRegex parse_regex(std::string_view pattern);
// The word characters of Oniguruma's \w and \b.
CodeSet regex_word_set();

}  // namespace minfer
