#include "models/tokenizer_vocabulary.h"

#include <algorithm>
#include <charconv>

#include "models/tokenizer_normalize.h"

namespace minfer {

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
  ids_.reserve(pieces_.size());
  for (TokenId id = 0; id < size(); ++id) {
    const Piece& piece = (*this)[id];
    if (piece.text.empty()) continue;
    ids_[piece.text] = id;
    longest_bytes_ = std::max(longest_bytes_, piece.text.size());
    if (const int byte = byte_of_piece(piece.text); piece.kind == PieceKind::Byte && byte >= 0)
      byte_ids_[static_cast<size_t>(byte)] = id;
  }
  spells_bytes_ = std::ranges::find(byte_ids_, -1) == byte_ids_.end();
  spells_any_byte_ = std::ranges::any_of(byte_ids_, [](TokenId id) { return id >= 0; });
}

TokenId Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
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
