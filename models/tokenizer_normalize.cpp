#include "models/tokenizer_normalize.h"

#include "kernels/base/utf8.h"
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

std::string normalized(std::string text, const std::vector<NormalizeStep>& steps, bool at_start) {
  for (const NormalizeStep& step : steps) {
    if (step.kind == NormalizeStep::Kind::Replace) {
      text = replace_all(text, step.from, step.to);
      continue;
    }
    if (step.kind == NormalizeStep::Kind::Nfc) {
      text = nfc(text);
      continue;
    }
    if (text.empty() || (step.at_start_only && !at_start)) continue;
    if (step.kind == NormalizeStep::Kind::PrependOnce && text.starts_with(step.from)) continue;
    text.insert(0, step.from);
  }
  return text;
}

}  // namespace minfer
