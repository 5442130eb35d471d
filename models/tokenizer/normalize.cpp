#include "models/tokenizer/normalize.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "models/tokenizer/characters.h"
#include "models/tokenizer/unicode_nfc.h"

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
  MINFER_REQUIRE(Input, n_bytes <= max_bytes, "the normalizer makes a text longer than ", max_bytes,
                 " bytes");
}

// `for_each(found)` calls found(begin, end) for each match from left to right.
template <typename ForEach>
std::string replaced(std::string_view text, std::string_view to, size_t max_bytes, size_t& front,
                     const ForEach& for_each) {
  std::string out;
  size_t done = 0;
  const size_t old_front = front;
  bool torn = false;  // the front ends inside a match
  for_each([&](size_t begin, size_t end) {
    out += text.substr(done, begin - done);
    if (begin < old_front && !torn) {
      torn = end > old_front;
      front = torn ? out.size() : front + to.size() - (end - begin);
    }
    out += to;
    require_bounded(out.size(), max_bytes);
    done = end;
  });
  out += text.substr(done);
  return out;
}

template <typename Found>
void for_each_literal(std::string_view text, std::string_view from, const Found& found) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += from.size())
    found(at, at + from.size());
}

}  // namespace

std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, size_t& front) {
  const size_t max_bytes = text.size() * kMaxGrowth + kMaxGrowthBytes;
  const auto composed = [&](std::string (*form)(std::string_view)) {
    std::string formed = form(text);
    if (front > 0 && formed != text) {
      const size_t own = form(std::string_view(text).substr(0, front)).size();
      front = std::min(formed.size(), std::max(own, utf8_char_bytes(formed)));
    }
    text = std::move(formed);
  };
  for (const NormalizeStep& step : steps) {
    switch (step.kind) {
      case NormalizeStep::Kind::Prepend:
        if (text.empty()) break;
        text.insert(0, step.to);
        if (front > 0) front += step.to.size();
        break;
      case NormalizeStep::Kind::Replace:
        text = replaced(text, step.to, max_bytes, front,
                        [&](const auto& found) { for_each_literal(text, step.from, found); });
        break;
      case NormalizeStep::Kind::ReplaceRegex:
        text = replaced(text, step.to, max_bytes, front, [&](const auto& found) {
          StepBudget budget(text.size());
          step.pattern.front().for_each_match(text, budget, found);
        });
        break;
      case NormalizeStep::Kind::Nfc:
        composed(nfc);
        break;
      case NormalizeStep::Kind::Nfd:
        composed(nfd);
        break;
      case NormalizeStep::Kind::StripLeft: {
        const size_t n_bytes = text.size() - without_leading_white_space(text).size();
        text.erase(0, n_bytes);
        front -= std::min(front, n_bytes);
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
