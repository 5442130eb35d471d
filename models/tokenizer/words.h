#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/split.h"

namespace minfer {

// One step of the pre-tokenizer of a tokenizer.json. It works on each word that the step before has
// made.
struct WordStep {
  enum class Kind {
    Split,        // by `splitter`
    PrefixBlank,  // one blank in front unless one is there (ByteLevel's add_prefix_space)
    Metaspace,    // blanks become `replacement`, one is put in front unless one is there
    Spell,        // bytes become the characters that spell them, for steps after ByteLevel
  };
  enum class Prepend { Always, First, Never };  // First: at the start of the whole text only
  Kind kind = Kind::Split;
  TextSplitter splitter = {};
  std::string replacement = {};
  Prepend prepend = Prepend::Never;
};

// Cuts a normalized text into words, which no merge crosses.
class WordCutter {
 public:
  void add_split(const std::string& pattern, SplitBehavior behavior = SplitBehavior::Isolated,
                 bool invert = false, bool literal = false);
  void add(WordStep step) { steps_.push_back(std::move(step)); }
  void add(TextSplitter splitter) {
    steps_.push_back({.kind = WordStep::Kind::Split, .splitter = std::move(splitter)});
  }

  // The words of `text`, which is valid UTF-8. They point into it or into `store`. `front` is as
  // normalized() returns it: a word that begins in these bytes is at the start of the whole text.
  std::vector<std::string_view> cut(std::string_view text, size_t front,
                                    std::deque<std::string>& store) const;
  bool empty() const { return steps_.empty(); }
  const std::vector<WordStep>& steps() const { return steps_; }

 private:
  std::vector<WordStep> steps_;
};

}  // namespace minfer
