#include "loaders/charsmap.h"

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "loaders/byte_reader.h"

namespace minfer {
namespace {

// Fourteen times the largest that SentencePiece ships.
constexpr size_t kMaxCharsmapBytes = 4 << 20;
// The longest that Unicode's own rules write is 33 bytes (U+FDFA); a longer one would let a small
// file turn a text into one that fills the memory. The longest that they replace is shorter.
constexpr size_t kMaxReplacementBytes = 256, kMaxReplacedBytes = 256;
// SentencePiece has room for so many rules that begin at one place of a text, and does not check.
constexpr size_t kMaxRulesAtOnePlace = 32;

struct Unit {
  uint32_t bits;
  bool is_value() const { return bits >> 31; }
  bool has_value() const { return bits >> 8 & 1; }
  uint64_t label() const { return bits & 0xff; }  // of a unit that is no value
  uint64_t value() const { return bits & 0x7fffffff; }
  uint64_t offset() const { return uint64_t{bits >> 10} << ((bits >> 9 & 1) * 8); }
};

// All walks that some text can take. From a base, the next byte of the text chooses the unit at
// base ^ byte, which is followed if its label is that byte; the walk is then at the base that the
// unit's place ^ its offset is, where the value of what has been read so far is, if the unit says
// so. The first unit is followed without a look at its label or its value. Since a label is one
// byte, a unit is followed from one base only: the work is linear.
class Walks {
 public:
  Walks(std::vector<Unit> units, std::string_view replacements)
      : units_(std::move(units)),
        replacements_(replacements),
        first_child_(units_.size(), kNone),
        next_child_(units_.size(), kNone),
        seen_(units_.size()) {
    for (uint32_t i = 0; i < units_.size(); ++i) {
      const uint64_t base = i ^ units_[i].label();
      if (units_[i].is_value() || base >= units_.size()) continue;
      next_child_[i] = first_child_[base];
      first_child_[base] = i;
    }
  }

  void check() { visit(0, 0); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // The most that is still to come at a base.
  struct Ahead {
    enum State : uint8_t { New, Entered, Known } state = New;
    uint16_t bytes = 0, rules = 0;
  };

  // Follows a unit when `depth` bytes have been read; at most kMaxReplacedBytes levels deep.
  Ahead visit(uint64_t unit, size_t depth) {
    const uint64_t base = unit ^ units_[unit].offset();
    MINFER_REQUIRE(Input, (base | 0xff) < units_.size(), "precompiled_charsmap: unit ", unit,
                   " leads to unit ", base | 0xff, " of ", units_.size());
    const bool has_value = depth > 0 && units_[unit].has_value();
    if (has_value) check_value(unit, units_[base].value());

    Ahead& ahead = seen_[base];
    MINFER_REQUIRE(Input, ahead.state != Ahead::Entered, "precompiled_charsmap: unit ", unit,
                   " leads back to a unit in front of it");
    if (ahead.state == Ahead::New) {
      ahead.state = Ahead::Entered;
      for (uint32_t i = first_child_[base]; i != kNone; i = next_child_[i]) {
        require_short(depth + 1);
        const Ahead child = visit(i, depth + 1);
        ahead.bytes = std::max<uint16_t>(ahead.bytes, static_cast<uint16_t>(child.bytes + 1));
        ahead.rules = std::max(ahead.rules, child.rules);
      }
      ahead.state = Ahead::Known;
    }
    require_short(depth + ahead.bytes);
    Ahead from_unit = ahead;
    from_unit.rules = static_cast<uint16_t>(from_unit.rules + has_value);
    MINFER_REQUIRE(Input, from_unit.rules <= kMaxRulesAtOnePlace,
                   "precompiled_charsmap: more than ", kMaxRulesAtOnePlace,
                   " rules that begin with one another");
    return from_unit;
  }

  void check_value(uint64_t unit, uint64_t value) const {
    const bool at_char = value < replacements_.size() &&
                         (static_cast<unsigned char>(replacements_[value]) & 0xc0) != 0x80;
    MINFER_REQUIRE(Input, at_char, "precompiled_charsmap: unit ", unit,
                   " leads to replacement byte ", value, " of ", replacements_.size());
  }

  static void require_short(size_t n_bytes) {
    MINFER_REQUIRE(Input, n_bytes <= kMaxReplacedBytes, "precompiled_charsmap: a rule for ",
                   n_bytes, " bytes, expected at most ", kMaxReplacedBytes);
  }

  std::vector<Unit> units_;
  std::string_view replacements_;
  std::vector<uint32_t> first_child_, next_child_;  // per base, per unit
  std::vector<Ahead> seen_;                         // per base
};

void check_replacements(std::string_view replacements) {
  MINFER_REQUIRE(Input, replacements.back() == '\0' && is_utf8(replacements),
                 "precompiled_charsmap: the replacements are not UTF-8 ended by NUL");
  for (size_t begin = 0; begin < replacements.size();) {
    const size_t end = replacements.find('\0', begin);
    MINFER_REQUIRE(Input, end - begin <= kMaxReplacementBytes,
                   "precompiled_charsmap: a replacement of ", end - begin,
                   " bytes, expected at most ", kMaxReplacementBytes);
    begin = end + 1;
  }
}

}  // namespace

void check_charsmap_size(std::string_view charsmap) {
  MINFER_REQUIRE(Input, charsmap.size() <= kMaxCharsmapBytes,
                 "precompiled_charsmap: ", charsmap.size(), " bytes, expected at most ",
                 kMaxCharsmapBytes);
}

void check_charsmap(std::string_view charsmap) {
  check_charsmap_size(charsmap);
  ByteReader in(charsmap);
  const auto trie_bytes = in.read<uint32_t>();
  MINFER_REQUIRE(Input, trie_bytes % 4 == 0 && trie_bytes > 0 && trie_bytes < in.left(),
                 "precompiled_charsmap: a trie of ", trie_bytes, " bytes of ", in.left(),
                 ", expected a multiple of 4 and replacements behind it");
  std::vector<Unit> units(trie_bytes / 4);
  for (Unit& unit : units) unit.bits = in.read<uint32_t>();
  const std::string_view replacements = charsmap.substr(in.position());
  check_replacements(replacements);
  Walks(std::move(units), replacements).check();
}

}  // namespace minfer
