#include "models/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>

#include "models/tokenizer/normalize.h"

namespace minfer {
namespace {

uint32_t hash_of(std::string_view text) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(text));
}

}  // namespace

int byte_of_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int byte = -1;
  const char* end = text.data() + 5;
  const auto [stop, fault] = std::from_chars(text.data() + 3, end, byte, 16);
  return fault == std::errc() && stop == end && byte >= 0 ? byte : -1;
}

std::string sentencepiece_bytes(const Piece& piece) {
  if (piece.kind == PieceKind::Byte) return {static_cast<char>(byte_of_piece(piece.text))};
  return replace_all(piece.text, kBlank, " ");
}

Vocabulary::Vocabulary(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  byte_ids_.fill(-1);
  slots_.resize(std::bit_ceil(2 * pieces_.size() + 1));
  for (TokenId id = 0; id < size(); ++id) {
    const Piece& piece = (*this)[id];
    if (piece.text.empty()) continue;
    const uint32_t hash = hash_of(piece.text);
    slots_[slot_of(piece.text, hash)] = {hash, id};
    longest_bytes_ = std::max(longest_bytes_, piece.text.size());
    if (const int byte = byte_of_piece(piece.text); piece.kind == PieceKind::Byte && byte >= 0)
      byte_ids_[static_cast<size_t>(byte)] = id;
  }
  spells_bytes_ = std::ranges::find(byte_ids_, -1) == byte_ids_.end();
  spells_any_byte_ = std::ranges::any_of(byte_ids_, [](TokenId id) { return id >= 0; });
}

size_t Vocabulary::slot_of(std::string_view text, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id >= 0 && (slots_[at].hash != hash || (*this)[slots_[at].id].text != text))
    at = (at + 1) & mask;
  return at;
}

TokenId Vocabulary::find(std::string_view text) const {
  return slots_[slot_of(text, hash_of(text))].id;
}

TokenId Vocabulary::find_mergeable(std::string_view text) const {
  const TokenId id = find(text);
  if (id < 0) return -1;
  const PieceKind kind = (*this)[id].kind;
  const bool reserved =
      kind == PieceKind::Unknown || kind == PieceKind::Control || kind == PieceKind::Byte;
  return reserved ? -1 : id;
}

}  // namespace minfer
