#include "models/tokenizer/regex.h"

#include "kernels/base/error.h"

namespace minfer {
namespace {

constexpr size_t kMaxPatternBytes = 16 * 1024;

// The pattern that matches `text` alone.
std::string escaped(const std::string& text) {
  constexpr std::string_view kMeant = "\\^$.[]|()*+?{}-&#";
  std::string out;
  for (const char c : text) {
    if (kMeant.find(c) != kMeant.npos) out += '\\';
    out += c;
  }
  return out;
}

template <typename Step>
auto in_pattern(const std::string& pattern, const Step& step) {
  try {
    return step();
  } catch (const Error& e) {
    throw e.in(cat("pattern \"", shortened(pattern), "\""));
  }
}

}  // namespace

Regex::Regex(const std::string& pattern, bool literal) : pattern_(pattern), literal_(literal) {
  in_pattern(pattern_, [&] {
    MINFER_REQUIRE(Input, pattern.size() <= kMaxPatternBytes, "longer than ", kMaxPatternBytes,
                   " bytes");
    program_ = std::make_shared<const RegexProgram>(
        compile_regex(parse_regex(literal ? escaped(pattern) : pattern)));
  });
}

void Regex::for_each_match(std::string_view text, StepBudget& budget,
                           const std::function<void(size_t, size_t)>& found) const {
  in_pattern(pattern_, [&] { search_regex(*program_, text, budget, found); });
}

}  // namespace minfer
