#include "models/tokenizer/words.h"

#include <algorithm>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/normalize.h"

namespace minfer {
namespace {

struct Word {
  std::string_view text;
  size_t front;  // bytes that come from the start of the whole text
};

void split(const TextSplitter& splitter, const Word& word, std::vector<Word>& out) {
  for (const std::string_view part : splitter.split(word.text)) {
    const auto begin = static_cast<size_t>(part.data() - word.text.data());
    if (!part.empty()) out.push_back({part, word.front - std::min(word.front, begin)});
  }
}

// What a step that does not cut makes of a word.
std::string changed(const WordStep& step, const Word& word) {
  if (step.kind == WordStep::Kind::Spell) return byte_level_spelling(word.text);
  if (step.kind == WordStep::Kind::PrefixBlank)
    return (word.text.starts_with(' ') ? "" : " ") + std::string(word.text);
  std::string text = replace_all(word.text, " ", step.replacement);
  const bool prepends = step.prepend == WordStep::Prepend::Always ||
                        (step.prepend == WordStep::Prepend::First && word.front > 0);
  if (prepends && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
  return text;
}

}  // namespace

void WordCutter::add_split(const std::string& pattern, SplitBehavior behavior, bool invert,
                           bool literal) {
  if (steps_.empty() || steps_.back().kind != WordStep::Kind::Split) add(TextSplitter());
  steps_.back().splitter.add_step(pattern, behavior, invert, literal);
}

std::vector<std::string_view> WordCutter::cut(std::string_view text, size_t front,
                                              std::deque<std::string>& store) const {
  std::vector<Word> words;
  if (!text.empty()) words.push_back({text, front});
  for (const WordStep& step : steps_) {
    std::vector<Word> next;
    next.reserve(words.size());
    for (const Word& word : words) {
      if (step.kind == WordStep::Kind::Split) {
        split(step.splitter, word, next);
      } else {
        store.push_back(changed(step, word));
        next.push_back({store.back(), word.front});
      }
    }
    words = std::move(next);
  }
  std::vector<std::string_view> texts;
  texts.reserve(words.size());
  for (const Word& word : words) texts.push_back(word.text);
  return texts;
}

}  // namespace minfer
