#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// The part of a SentencePiece `tokenizer.model` that affects encoding. Field names are those of
// sentencepiece_model.proto.
struct SentencePieceModel {
  enum Type { Unigram = 1, Bpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    int kind = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  };
  std::vector<Piece> pieces;
  int64_t type = Unigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;  // normalization rules, compiled into a double-array trie; or empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Reads and checks the file's bytes; throws Input.
SentencePieceModel parse_tokenizer_model(std::string_view bytes);

// Writes the model anew. SentencePiece gets these bytes instead of the file, so that it sees only
// what has been checked.
std::string serialize_tokenizer_model(const SentencePieceModel& model);

}  // namespace minfer
