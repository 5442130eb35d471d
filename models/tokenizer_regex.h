#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace minfer {

// A compiled PCRE2 pattern over Unicode characters. Matching takes no stack that grows with the
// text, and a bounded number of steps.
class Regex {
 public:
  // Throws Input for a pattern that is malformed, or that the engine the files are written for
  // would read otherwise. With `literal` the pattern stands for itself.
  explicit Regex(const std::string& pattern, bool literal = false);

  // Calls found(begin, end) for each match that is not empty, from left to right. `text` is valid
  // UTF-8. Throws Input where a match needs more steps than kMaxSteps.
  void for_each_match(std::string_view text,
                      const std::function<void(size_t begin, size_t end)>& found) const;
  bool operator==(const Regex& other) const {
    return pattern_ == other.pattern_ && literal_ == other.literal_;
  }

 private:
  std::shared_ptr<const void> code_;  // shared: splitters are copied into tokenizers
  std::string pattern_;
  bool literal_;
};

}  // namespace minfer
