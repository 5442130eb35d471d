#include <cstring>

#include "kernels/base/utf8.h"
#include "loaders/charsmap.h"
#include "loaders/tokenizer_model.h"
#include "models/tokenizer/formats.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/fuzz/parser_targets.h"
#include "tests/support/charsmap_builder.h"

namespace minfer::test {
namespace {

const std::vector<std::string> kBits = {
    "a", "b", "ab", " ", "\xc3\xa9", "\xe2\x96\x81", "\xef\xb7\xba", "aaaa", "\xf0\x9f\xa9\xb7"};

std::string random_rule_text(Random& random, size_t most) {
  std::string text;
  for (size_t n = 1 + below(random, most); n > 0; --n) text += any_of(random, kBits);
  return text;
}

// Sound by construction, then with some units changed where they matter: each of the fields, a unit
// copied over another one, a child made to lead elsewhere.
std::string random_charsmap(Random& random) {
  std::map<std::string, std::string> rules;
  for (size_t n = below(random, 10); n > 0; --n)
    rules[random_rule_text(random, 4)] = one_in(random, 4) ? "" : random_rule_text(random, 3);
  std::string bytes = CharsmapBuilder(rules).bytes();
  if (one_in(random, 4)) return bytes;

  uint32_t trie_bytes = 0;
  std::memcpy(&trie_bytes, bytes.data(), 4);
  std::vector<uint32_t> units(trie_bytes / 4), used;
  std::memcpy(units.data(), bytes.data() + 4, trie_bytes);
  for (uint32_t i = 0; i < units.size(); ++i)
    if (units[i] != 1u << 31) used.push_back(i);
  for (size_t n = 1 + below(random, 3); n > 0; --n) {
    uint32_t& unit = units[one_in(random, 4) ? below(random, units.size()) : any_of(random, used)];
    switch (below(random, 6)) {
      case 0:
        unit ^= 1u << below(random, 32);
        break;
      case 1:
        unit = static_cast<uint32_t>(random());
        break;
      case 2:
        unit = units[any_of(random, used)];
        break;
      case 3:  // another offset
        unit = (unit & 0x3ff) | static_cast<uint32_t>(below(random, 2 * units.size())) << 10;
        break;
      case 4:  // another label or flag
        unit = (unit & ~0x3ffu) | static_cast<uint32_t>(below(random, 1024));
        break;
      case 5:  // leads to where another one leads
        unit = (unit & 0x3ff) | (static_cast<uint32_t>(&unit - units.data()) ^ any_of(random, used))
                                    << 10;
        break;
    }
  }
  std::memcpy(bytes.data() + 4, units.data(), trie_bytes);
  return one_in(random, 6) ? mutated(std::move(bytes), random) : bytes;
}

void fail(const char* what) { throw Error(ErrorKind::Internal, what); }

// Darts-clone's commonPrefixSearch and what SentencePiece does with the result, step by step, with
// every access checked.
class ReferenceWalk {
 public:
  explicit ReferenceWalk(const std::string& charsmap) {
    uint32_t trie_bytes = 0;
    std::memcpy(&trie_bytes, charsmap.data(), 4);
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), charsmap.data() + 4, trie_bytes);
    replacements_ = charsmap.substr(4 + trie_bytes);
  }

  void walk(std::string_view text) const {
    size_t n_results = 0;
    size_t position = 0;
    uint32_t unit = units_.at(position);
    position ^= offset(unit);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      position ^= byte;
      unit = units_.at(position);
      if ((unit & 0x800000ff) != byte) return;
      position ^= offset(unit);
      if (unit >> 8 & 1) {
        check_result(units_.at(position) & 0x7fffffff);
        if (++n_results > 32) fail("more results than there is room for");
      }
    }
  }

 private:
  static uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
  void check_result(uint32_t value) const {
    const size_t end = replacements_.find('\0', value);
    if (value >= replacements_.size() || end == replacements_.npos) fail("a result outside");
    if (!is_utf8(std::string_view(replacements_).substr(value, end - value)))
      fail("a result that is not UTF-8");
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

void run(const std::string& charsmap) {
  check_charsmap(charsmap);
  Random random(std::hash<std::string>()(charsmap));
  const ReferenceWalk reference(charsmap);
  SentencePieceModel model;
  model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", -1, 1}, {"b", -2, 1}};
  model.charsmap = charsmap;
  const auto tokenizer =
      load_sentencepiece(serialize_tokenizer_model(model), SmallFiles("none", {}));
  for (int i = 0; i < 4; ++i) {
    std::string text = random_rule_text(random, 12);
    if (one_in(random, 4)) text += random_text(random, kBits);
    if (one_in(random, 8)) text = std::string(64, any_of(random, kBits)[0]);
    for (size_t at = 0; at < text.size(); ++at) reference.walk(std::string_view(text).substr(at));
    tokenizer->encode(text, {});
  }
}

}  // namespace

void add_charsmap_target(std::vector<FuzzTarget>& targets) {
  targets.push_back({"Charsmap", random_charsmap, run});
}

}  // namespace minfer::test
