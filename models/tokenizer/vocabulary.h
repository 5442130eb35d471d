#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.h"

namespace minfer {

// Numbered as SentencePiece and GGUF do.
enum class PieceKind : uint8_t {
  Normal = 1,
  Unknown = 2,      // stands for what the vocabulary cannot spell
  Control = 3,      // markers such as <s>: no part of the text
  UserDefined = 4,  // always one token, whatever is around it
  Unused = 5,
  Byte = 6,  // "<0x0A>": one byte of a character that has no piece
};

struct Piece {
  std::string text;
  PieceKind kind = PieceKind::Normal;
  float score = 0;  // the higher, the earlier it is merged; SentencePiece vocabularies only
};

// The byte that "<0x0A>" stands for, or -1 where the text has another form.
int byte_of_piece(std::string_view text);
// What an ordinary or byte piece of a SentencePiece vocabulary adds to a text.
std::string sentencepiece_bytes(const Piece& piece);

// Pieces by id and by text.
class Vocabulary {
 public:
  // If two pieces have the same text, find() returns the later one. A piece without text (a hole in
  // the numbering) is never found.
  explicit Vocabulary(std::vector<Piece> pieces);

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  bool contains(TokenId id) const { return id >= 0 && id < size(); }
  const Piece& operator[](TokenId id) const { return pieces_[static_cast<size_t>(id)]; }
  void set_kind(TokenId id, PieceKind kind) { pieces_[static_cast<size_t>(id)].kind = kind; }

  TokenId find(std::string_view text) const;            // -1: none
  TokenId find_mergeable(std::string_view text) const;  // no unknown, control or byte piece
  TokenId byte_id(unsigned char byte) const { return byte_ids_[byte]; }  // -1: none
  bool spells_bytes() const { return spells_bytes_; }                    // has all 256 byte pieces
  bool spells_any_byte() const { return spells_any_byte_; }
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  // Ids by text, in a hash table with linear probing that is at most half full. It has no copies of
  // the texts, and compares only texts whose hashes are equal, because pieces may be long.
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;  // -1: free
  };
  // The slot that has `text`, or the free one where it would be.
  size_t slot_of(std::string_view text, uint32_t hash) const;

  std::vector<Piece> pieces_;
  std::vector<Slot> slots_;
  std::array<TokenId, 256> byte_ids_;
  bool spells_bytes_ = false, spells_any_byte_ = false;
  size_t longest_bytes_ = 0;
};

}  // namespace minfer
