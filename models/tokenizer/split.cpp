#include "models/tokenizer/split.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace minfer {
namespace {

struct TextRange {
  size_t begin, end;
  bool is_match;
};

// The matches and what lies between them.
std::vector<TextRange> ranges_of(const Regex& regex, bool invert, std::string_view text,
                                 StepBudget& budget) {
  std::vector<TextRange> ranges;
  size_t done = 0;
  regex.for_each_match(text, budget, [&](size_t begin, size_t end) {
    MINFER_REQUIRE(Input, done <= begin, "\\K: a match reaches back into the one before");
    if (done < begin) ranges.push_back({done, begin, invert});
    ranges.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) ranges.push_back({done, text.size(), invert});
  return ranges;
}

// Joins neighbours where `joins(is_match, previous_is_match)`.
template <typename Joins>
std::vector<TextRange> joined(const std::vector<TextRange>& ranges, const Joins& joins) {
  std::vector<TextRange> out;
  bool previous = false;
  for (const TextRange& range : ranges) {
    if (!out.empty() && joins(range.is_match, previous)) {
      out.back().begin = std::min(out.back().begin, range.begin);
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
    previous = range.is_match;
  }
  return out;
}

std::vector<TextRange> apply(SplitBehavior behavior, std::vector<TextRange> ranges) {
  const auto absorbs = [](bool is_match, bool previous) { return is_match && !previous; };
  switch (behavior) {
    case SplitBehavior::Isolated:
      return ranges;
    case SplitBehavior::Removed:
      std::erase_if(ranges, [](const TextRange& range) { return range.is_match; });
      return ranges;
    case SplitBehavior::Contiguous:
      return joined(ranges, [](bool is_match, bool previous) { return is_match == previous; });
    case SplitBehavior::MergedWithPrevious:
      return joined(ranges, absorbs);
    case SplitBehavior::MergedWithNext:
      std::ranges::reverse(ranges);
      ranges = joined(ranges, absorbs);
      std::ranges::reverse(ranges);
      return ranges;
  }
  MINFER_CHECK(false, "split behavior ", static_cast<int>(behavior));
}

}  // namespace

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void TextSplitter::add_step(const std::string& pattern, SplitBehavior behavior, bool invert,
                            bool literal) {
  steps_.push_back({Regex(pattern, literal), behavior, invert});
}

std::vector<std::string_view> TextSplitter::split(std::string_view text) const {
  std::vector<std::string_view> words = {text};
  StepBudget budget(text.size() * std::max<size_t>(1, steps_.size()));
  for (const Step& step : steps_) {
    std::vector<std::string_view> cut;
    for (const std::string_view word : words) {
      for (const TextRange& range :
           apply(step.behavior, ranges_of(step.regex, step.invert, word, budget))) {
        if (range.begin < range.end)
          cut.push_back(word.substr(range.begin, range.end - range.begin));
      }
    }
    words = std::move(cut);
  }
  return words;
}

}  // namespace minfer
