#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace minfer {

// What becomes of a match: a word of its own, part of a neighbour, or nothing.
enum class SplitBehavior { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };

// Cuts a text into words, which no merge crosses. Each step cuts the words of the step before, as
// the pre-tokenizers of a tokenizer.json do.
class TextSplitter {
 public:
  // With `invert`, the text between the matches counts as matches.
  void add_step(const std::string& pattern, SplitBehavior behavior = SplitBehavior::Isolated,
                bool invert = false, bool literal = false);

  // `text` is valid UTF-8; the words point into it.
  std::vector<std::string_view> split(std::string_view text) const;
  // Whether both cut in the same steps.
  bool operator==(const TextSplitter& other) const = default;

 private:
  struct Step {
    Regex regex;
    SplitBehavior behavior;
    bool invert;
    bool operator==(const Step& other) const = default;
  };
  std::vector<Step> steps_;
};

// GPT-2's own pattern: contractions; runs of letters, of numbers or of other characters, each with
// an optional blank in front; runs of white space.
extern const char* const kGpt2Pattern;

// A pre-tokenizer that GGUF files name (tokenizer.ggml.pre).
struct PreTokenizer {
  TextSplitter splitter;
  bool ignore_merges = false;  // a word that is a piece stays whole
  bool adds_bos = false;       // unless the file says otherwise
};
// Throws Input, with the list of known names, for any other name.
PreTokenizer pre_tokenizer_by_name(const std::string& name);
// The reverse; empty where it has no name.
std::string name_of_pre_tokenizer(const TextSplitter& splitter, bool ignore_merges);

}  // namespace minfer
