#include "models/tokenizer/boundaries.h"

#include "kernels/base/utf8.h"

namespace minfer {
namespace {

// Calls take(left, right) for all neighbours; a text that is not UTF-8 has none.
template <typename Take>
void for_each_pair(std::string_view text, const Take& take) {
  std::string_view left;
  while (!text.empty()) {
    const std::string_view right = text.substr(0, utf8_char_bytes(text));
    if (right.empty()) return;
    if (!left.empty()) take(left, right);
    left = right;
    text.remove_prefix(right.size());
  }
}

}  // namespace

uint64_t Boundaries::pair_of(std::string_view left_char, std::string_view right_char) {
  uint32_t left = 0, right = 0;
  for (const char byte : left_char) left = left << 8 | static_cast<unsigned char>(byte);
  for (const char byte : right_char) right = right << 8 | static_cast<unsigned char>(byte);
  return uint64_t{left} << 32 | right;
}

Boundaries::Boundaries(const Vocabulary& vocabulary) {
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary[id].kind == PieceKind::Byte || !is_utf8(vocabulary[id].text)) continue;
    for_each_pair(vocabulary[id].text, [&](std::string_view left, std::string_view right) {
      pairs_.insert(pair_of(left, right));
    });
  }
}

std::vector<std::string_view> Boundaries::cut(std::string_view text) const {
  std::vector<std::string_view> stretches;
  const char* begin = text.data();
  for_each_pair(text, [&](std::string_view left, std::string_view right) {
    if (!between(left, right)) return;
    stretches.emplace_back(begin, right.data());
    begin = right.data();
  });
  if (!text.empty()) stretches.emplace_back(begin, text.data() + text.size());
  return stretches;
}

}  // namespace minfer
