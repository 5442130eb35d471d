#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/tokenizer_regex.h"

#include <pcre2.h>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

// Per match. Splitting needs a step or so a character; a run of a million characters of one class
// is one match, and so is a run of blanks that is tried from its end.
constexpr uint32_t kMaxSteps = 20'000'000;
constexpr uint32_t kMaxHeapKib = 512 * 1024;
constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr uint32_t kMaxNesting = 50;  // of parentheses; compiling recurses

struct Free {
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string message_of(int code) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// PCRE2's \s counts U+180E, which has not been white space since Unicode 6.3 and is none for the
// engine that tokenizers are trained with.
std::string with_unicode_white_space(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escape = pattern[i] == '\\' && i + 1 < pattern.size();
    const char letter = escape ? pattern[++i] : pattern[i];
    if (escape && letter == 's')
      out += "\\p{White_Space}";
    else if (escape && letter == 'S')
      out += "\\P{White_Space}";
    else
      out += escape ? std::string{'\\', letter} : std::string{letter};
  }
  return out;
}

const pcre2_code* code_of(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

Regex::Regex(const std::string& pattern, bool literal) : pattern_(pattern), literal_(literal) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorKind::Input, cat("pattern \"", shortened(pattern_), "\": ", why));
  };
  if (pattern.size() > kMaxPatternBytes) refuse(cat("longer than ", kMaxPatternBytes, " bytes"));
  // Oniguruma intersects classes with it; here it would be two characters.
  if (!literal && pattern.find("&&") != pattern.npos) refuse("&& is not supported");
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  const uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  int fault = 0;
  size_t fault_at = 0;
  const std::string source = literal ? pattern : with_unicode_white_space(pattern);
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                   options, &fault, &fault_at, context.get());
  if (code == nullptr) refuse(cat(message_of(fault), " at byte ", fault_at));
  code_ = std::shared_ptr<const void>(code, [](const void* p) {
    pcre2_code_free(const_cast<pcre2_code*>(static_cast<const pcre2_code*>(p)));
  });
}

void Regex::for_each_match(std::string_view text,
                           const std::function<void(size_t, size_t)>& found) const {
  const Owned<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_depth_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  const Owned<pcre2_match_data> match(
      pcre2_match_data_create_from_pattern(code_of(code_), nullptr));
  size_t at = 0;
  while (at < text.size()) {
    const int code = pcre2_match(code_of(code_), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (code == PCRE2_ERROR_NOMATCH) return;
    MINFER_REQUIRE(Input, code >= 0, "pattern \"", shortened(pattern_), "\": ", message_of(code));
    const size_t* ends = pcre2_get_ovector_pointer(match.get());
    if (ends[0] < ends[1]) found(ends[0], ends[1]);
    at = ends[1];
    if (ends[0] == ends[1] && at < text.size()) at += utf8_char_bytes(text.substr(at));
  }
}

}  // namespace minfer
