#include <stdexcept>

#include "kernels/base/utf8.h"
#include "models/tokenizer/split.h"
#include "tests/fuzz/parser_targets.h"

namespace minfer::test {
namespace {

const std::vector<std::string> kAtoms = {"a",
                                         "b",
                                         "s",
                                         ".",
                                         "\\w",
                                         "\\W",
                                         "\\s",
                                         "\\S",
                                         "\\d",
                                         "\\h",
                                         "\\p{L}",
                                         "\\P{N}",
                                         "\\p{^Lu}",
                                         "\\p{Han}",
                                         "[a-m]",
                                         "[^a-m]",
                                         "[[a-m][0-4]]",
                                         "[a-z&&[^b]]",
                                         "[[:alpha:]]",
                                         "[]a]",
                                         "\\x{e9}",
                                         "\\R",
                                         "^",
                                         "$",
                                         "\\b",
                                         "\\B",
                                         "\\A",
                                         "\\z",
                                         "\\Z",
                                         "\\G",
                                         "\\K",
                                         "\xc3\xa9",
                                         "\\u4e00",
                                         "[\\p{L}\\p{M}]",
                                         "(?i)",
                                         "\\1",
                                         "\\X",
                                         "[a",
                                         "(",
                                         ")",
                                         "{2}",
                                         "\\"};
const std::vector<std::string> kQuantifiers = {"",    "",     "",       "*",      "+",    "?",
                                               "*?",  "++",   "{2}",    "{1,3}",  "{,2}", "{3,1}",
                                               "{9}", "{2,}", "{1,2}+", "{99999}"};
const std::vector<std::string> kGroups = {
    "(", "(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?<n>", "(?x:", "(?m-i:"};

std::string random_pattern(Random& random, int depth) {
  std::string pattern;
  for (size_t n = 1 + below(random, 4); n > 0; --n) {
    if (one_in(random, 4) && depth < 5)
      pattern += any_of(random, kGroups) + random_pattern(random, depth + 1) + ")";
    else
      pattern += any_of(random, kAtoms);
    pattern += any_of(random, kQuantifiers);
    if (one_in(random, 6)) pattern += "|";
  }
  return pattern;
}

// A pattern, a line feed, a text.
std::string random_input(Random& random) {
  const std::string text =
      one_in(random, 3) ? std::string(below(random, 300), 'a') : random_text(random, kAtoms);
  const std::string pattern = random_pattern(random, 0);
  return (one_in(random, 3) ? mutated(pattern, random) : pattern) + "\n" + text;
}

void split_by(const std::string& input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string text = input.substr(std::min(end + 1, input.size()));
  TextSplitter splitter;
  splitter.add_step(input.substr(0, end));
  if (!is_utf8(text)) return;
  size_t n_bytes = 0;
  for (const std::string_view word : splitter.split(text)) {
    if (!is_utf8(word) || word.empty()) throw std::logic_error("a word that is cut wrong");
    n_bytes += word.size();
  }
  if (n_bytes != text.size()) throw std::logic_error("text is lost");
}

}  // namespace

void add_regex_target(std::vector<FuzzTarget>& targets) {
  targets.push_back({.name = "Regex", .make = random_input, .run = split_by});
}

}  // namespace minfer::test
