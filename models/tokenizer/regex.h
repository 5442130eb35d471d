#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenizer/regex_program.h"

namespace minfer {

// A compiled pattern over Unicode characters, read as the tokenizers package reads it. The engine
// is our own because a library's bounds count backtracks, not steps: (?>a*)b takes the square of a
// text's length with one backtrack a character. Here the steps for a whole text are bounded.
class Regex {
 public:
  // Throws Input for a pattern that is malformed or not supported. With `literal` the pattern
  // matches its own text only.
  explicit Regex(const std::string& pattern, bool literal = false);

  // Calls found(begin, end) for each match, empty ones too, from left to right. `text` is valid
  // UTF-8. Throws Input if the budget does not suffice.
  void for_each_match(std::string_view text, StepBudget& budget,
                      const std::function<void(size_t begin, size_t end)>& found) const;
  bool operator==(const Regex& other) const {
    return pattern_ == other.pattern_ && literal_ == other.literal_;
  }

 private:
  std::shared_ptr<const RegexProgram> program_;  // shared: splitters are copied into tokenizers
  std::string pattern_;
  bool literal_;
};

}  // namespace minfer
