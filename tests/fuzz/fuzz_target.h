#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace minfer::test {

using Random = std::mt19937_64;

inline size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }
inline bool one_in(Random& random, size_t n) { return below(random, n) == 0; }
template <typename List>
const auto& any_of(Random& random, const List& list) {
  return list[below(random, std::size(list))];
}

// A parser under fuzzing. fuzz_main.cpp makes an input, runs it, and holds the run against bounds
// of time and memory.
struct FuzzTarget {
  std::string name;
  // Sound by construction as a rule, damaged more often than not.
  std::function<std::string(Random&)> make;
  // What it may throw is an Input error of one line.
  std::function<void(const std::string&)> run;
  size_t other_bytes = 0;  // of the files that go with the input
  double max_seconds = 1;  // of the processor: others may be busy beside this one
};

// Those of a program, which it defines.
std::vector<FuzzTarget> fuzz_targets();

// The same bytes with a few changes, so that most of them stay sound and later checks are reached.
std::string mutated(std::string bytes, Random& random);
// The same JSON document with a few members gone, doubled, exchanged or of another kind, and now
// and then with what only Python writes. Text that is no JSON comes back as it was.
std::string mutated_json(const std::string& text, Random& random);
// A short text of letters, blanks, marks, emoji, control bytes, broken UTF-8 and these pieces.
std::string random_text(Random& random, const std::vector<std::string>& pieces);

}  // namespace minfer::test
