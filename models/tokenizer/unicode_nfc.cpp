#include "models/tokenizer/unicode_nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <vector>

#include "kernels/base/utf8.h"

// Source: Unicode Standard Annex 15, and chapter 3.12 for Hangul.
namespace minfer {
namespace {

struct Singleton {
  char32_t code, becomes;
};
struct Pair {
  char32_t code, first, second;
  bool composes;  // whether the two make `code` again
};
struct ClassRange {
  char32_t first, last;
  uint8_t combining_class;
};
#include "models/tokenizer/unicode_nfc_data.inc"

constexpr char32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

int combining_class(char32_t code) {
  const auto range = std::ranges::lower_bound(kClassRanges, code, {}, &ClassRange::last);
  return range != std::end(kClassRanges) && range->first <= code ? range->combining_class : 0;
}

// Recursion is as deep as Unicode's own decompositions: four.
void append_decomposed(char32_t code, std::u32string& out) {
  if (code - kSyllables < kSyllableCount) {
    const char32_t index = code - kSyllables;
    out += kLeads + index / (kVowelCount * kTailCount);
    out += kVowels + index / kTailCount % kVowelCount;
    if (index % kTailCount != 0) out += kTails + index % kTailCount;
    return;
  }
  const auto single = std::ranges::lower_bound(kSingletons, code, {}, &Singleton::code);
  if (single != std::end(kSingletons) && single->code == code)
    return append_decomposed(single->becomes, out);
  const auto pair = std::ranges::lower_bound(kPairs, code, {}, &Pair::code);
  if (pair == std::end(kPairs) || pair->code != code) {
    out += code;
    return;
  }
  append_decomposed(pair->first, out);
  append_decomposed(pair->second, out);
}

bool comes_before(const Pair& a, const Pair& b) {
  return std::tie(a.first, a.second) < std::tie(b.first, b.second);
}

// The pairs that compose, by their parts.
const std::vector<Pair>& composing_pairs() {
  static const std::vector<Pair> kComposing = [] {
    std::vector<Pair> pairs;
    std::ranges::copy_if(kPairs, std::back_inserter(pairs), &Pair::composes);
    std::ranges::sort(pairs, comes_before);
    return pairs;
  }();
  return kComposing;
}

// What two characters make together, or 0.
char32_t composed(char32_t first, char32_t second) {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second - kTails - 1 < kTailCount - 1)
    return first + (second - kTails);
  const std::vector<Pair>& pairs = composing_pairs();
  const auto pair =
      std::lower_bound(pairs.begin(), pairs.end(), Pair{0, first, second, true}, comes_before);
  const bool found = pair != pairs.end() && pair->first == first && pair->second == second;
  return found ? pair->code : 0;
}

// Combining characters between two starters in the order of their classes.
void order_combining(std::u32string& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    const auto is_starter = [](char32_t code) { return combining_class(code) == 0; };
    const auto end = std::find_if(begin, text.end(), is_starter);
    std::ranges::stable_sort(begin, end, {}, combining_class);
    begin = end == text.end() ? end : end + 1;
  }
}

std::u32string recomposed(const std::u32string& text) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::u32string out;
  size_t starter = kNone;
  int last_class = 0;  // of what follows the starter in `out`; 0: nothing does
  for (const char32_t code : text) {
    const int own_class = combining_class(code);
    const bool adjacent = starter + 1 == out.size();
    if (starter != kNone && (adjacent || last_class < own_class)) {
      if (const char32_t whole = composed(out[starter], code); whole != 0) {
        out[starter] = whole;
        continue;
      }
    }
    last_class = own_class;
    if (own_class == 0) starter = out.size();
    out += code;
  }
  return out;
}

std::u32string decomposed(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    append_decomposed(utf8_code(text), out);
    text.remove_prefix(utf8_char_bytes(text));
  }
  return out;
}

// `first_byte`: a text whose bytes are all below does not change. `finish` takes the decomposed
// text.
template <typename Finish>
std::string in_form(std::string_view text, unsigned char first_byte, const Finish& finish) {
  const auto may_change = [&](char c) { return static_cast<unsigned char>(c) >= first_byte; };
  if (std::ranges::none_of(text, may_change)) return std::string(text);
  std::u32string codes = decomposed(text);
  order_combining(codes);
  std::string out;
  out.reserve(text.size());
  for (const char32_t code : finish(codes)) append_utf8(code, out);
  return out;
}

}  // namespace

std::string nfc(std::string_view text) {
  // U+0300 begins with the byte 0xcc; below it nothing changes.
  return in_form(text, 0xcc, recomposed);
}

std::string nfd(std::string_view text) {
  // U+00C0 begins with the byte 0xc3.
  return in_form(text, 0xc3, [](const std::u32string& codes) { return codes; });
}

}  // namespace minfer
