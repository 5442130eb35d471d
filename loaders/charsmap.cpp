#include "loaders/charsmap.h"

#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "loaders/byte_reader.h"

namespace minfer {
namespace {

// The longest that Unicode's own rules write is 33 bytes (U+FDFA); a longer one would let a small
// file turn a text into one that fills the memory.
constexpr size_t kMaxReplacementBytes = 256;

struct Unit {
  uint32_t bits;
  bool is_value() const { return bits >> 31; }
  bool has_value() const { return bits >> 8 & 1; }
  uint64_t value() const { return bits & 0x7fffffff; }
  uint64_t offset() const { return uint64_t{bits >> 10} << ((bits >> 9 & 1) * 8); }
};

}  // namespace

void check_charsmap(std::string_view charsmap) {
  ByteReader in(charsmap);
  const auto trie_bytes = in.read<uint32_t>();
  MINFER_REQUIRE(Input, trie_bytes % 4 == 0 && trie_bytes > 0 && trie_bytes < in.left(),
                 "precompiled_charsmap: a trie of ", trie_bytes, " bytes of ", in.left(),
                 ", expected a multiple of 4 and replacements behind it");
  std::vector<Unit> units(trie_bytes / 4);
  for (Unit& unit : units) unit.bits = in.read<uint32_t>();

  const std::string_view replacements = charsmap.substr(in.position());
  MINFER_REQUIRE(Input, replacements.back() == '\0' && is_utf8(replacements),
                 "precompiled_charsmap: the replacements are not UTF-8 ended by NUL");
  for (size_t begin = 0; begin < replacements.size();) {
    const size_t end = replacements.find('\0', begin);
    MINFER_REQUIRE(Input, end - begin <= kMaxReplacementBytes,
                   "precompiled_charsmap: a replacement of ", end - begin,
                   " bytes, expected at most ", kMaxReplacementBytes);
    begin = end + 1;
  }

  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].is_value()) continue;
    // The children are at base ^ byte for the 256 bytes, the value, if there is one, at base.
    const uint64_t base = i ^ units[i].offset();
    MINFER_REQUIRE(Input, (base | 0xff) < units.size(), "precompiled_charsmap: unit ", i,
                   " leads to unit ", base | 0xff, " of ", units.size());
    if (!units[i].has_value()) continue;
    const uint64_t value = units[base].value();
    const bool at_char = value < replacements.size() &&
                         (static_cast<unsigned char>(replacements[value]) & 0xc0) != 0x80;
    MINFER_REQUIRE(Input, at_char, "precompiled_charsmap: unit ", i, " leads to replacement byte ",
                   value, " of ", replacements.size());
  }
}

}  // namespace minfer
