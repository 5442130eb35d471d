#include "models/tokenizer_normalize.h"

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer_characters.h"
#include "models/unicode_nfc.h"

namespace minfer {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t found = from.empty() ? text.npos : text.find(from, at);
    out += text.substr(at, found - at);
    if (found == text.npos) break;
    out += to;
    at = found + from.size();
  }
  return out;
}

std::string with_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = utf8_char_bytes(text);
    out += n > 0 ? text.substr(0, n) : "\ufffd";
    text.remove_prefix(n > 0 ? n : 1);
  }
  return out;
}

namespace {

// No published normalizer comes near: Unicode's own rules write at most 11 bytes for one.
constexpr size_t kMaxGrowth = 32;
constexpr size_t kMaxGrowthBytes = 1 << 20;

void require_bounded(size_t n_bytes, size_t max_bytes) {
  MINFER_REQUIRE(Input, n_bytes <= max_bytes, "the normalizer makes a text longer than ",
                 max_bytes, " bytes");
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t max_bytes) {
  size_t n_bytes = text.size();
  for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != text.npos; at += from.size())
    n_bytes = n_bytes + to.size() - from.size();
  require_bounded(n_bytes, max_bytes);
  return replace_all(text, from, to);
}

std::string replaced(std::string_view text, const Regex& pattern, std::string_view to,
                     size_t max_bytes) {
  std::string out;
  size_t done = 0;
  pattern.for_each_match(text, [&](size_t begin, size_t end) {
    out += text.substr(done, begin - done);
    out += to;
    require_bounded(out.size(), max_bytes);
    done = end;
  });
  if (done == 0) return std::string(text);
  out += text.substr(done);
  return out;
}

}  // namespace

std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, bool& at_start) {
  const size_t max_bytes = text.size() * kMaxGrowth + kMaxGrowthBytes;
  for (const NormalizeStep& step : steps) {
    switch (step.kind) {
      case NormalizeStep::Kind::Prepend:
        if (!text.empty()) text.insert(0, step.to);
        break;
      case NormalizeStep::Kind::Replace:
        text = replaced(text, step.from, step.to, max_bytes);
        break;
      case NormalizeStep::Kind::ReplaceRegex:
        text = replaced(text, step.pattern.front(), step.to, max_bytes);
        break;
      case NormalizeStep::Kind::Nfc:
        text = nfc(text);
        break;
      case NormalizeStep::Kind::Nfd:
        text = nfd(text);
        break;
      case NormalizeStep::Kind::StripLeft: {
        const size_t n_bytes = text.size() - without_leading_white_space(text).size();
        text.erase(0, n_bytes);
        at_start = at_start && n_bytes == 0;
        break;
      }
      case NormalizeStep::Kind::StripRight:
        text.resize(without_trailing_white_space(text).size());
        break;
    }
    require_bounded(text.size(), max_bytes);
  }
  return text;
}

}  // namespace minfer
