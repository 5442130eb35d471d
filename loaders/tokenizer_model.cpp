#include "loaders/tokenizer_model.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <unordered_set>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "loaders/byte_reader.h"
#include "loaders/charsmap.h"

namespace minfer {
namespace {

// Published models have up to about 262,000 pieces. SentencePiece takes 430 bytes for each.
constexpr size_t kMaxPieces = 300'000;
constexpr size_t kMaxPieceBytes = 8000;  // the limit in later versions of SentencePiece

// Wire types of protobuf; 3 and 4 were groups.
enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

uint64_t read_varint(ByteReader& in) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    const auto byte = in.read<uint8_t>();
    value |= static_cast<uint64_t>(byte & 0x7f) << std::min(shift, 63u);
    if (byte < 0x80) return value;
  }
  throw Error(ErrorKind::Input, cat("byte ", in.position(), ": a number longer than 10 bytes"));
}

// One field of a message. Known fields are taken by the getters, which check the wire type.
struct Field {
  uint64_t number = 0, wire = 0, varint = 0;
  float fixed32 = 0;
  std::string bytes;

  bool boolean() const { return integer() != 0; }
  int64_t integer() const {
    require(kVarint);
    return static_cast<int64_t>(varint);
  }
  float number32() const {
    require(kFixed32);
    return fixed32;
  }
  const std::string& text() const {
    require(kBytes);
    return bytes;
  }
  void require(uint64_t expected) const {
    MINFER_REQUIRE(Input, wire == expected, "field ", number, " has wire type ", wire,
                   ", expected ", expected);
  }
};

void for_each_field(std::string_view message, const std::function<void(const Field&)>& take) {
  ByteReader in(message);
  while (in.left() > 0) {
    const uint64_t at = in.position();
    const uint64_t key = read_varint(in);
    Field field;
    field.number = key >> 3;
    field.wire = key & 7;
    MINFER_REQUIRE(Input, field.number > 0 && field.number < (1u << 29), "byte ", at,
                   ": field number ", field.number, ", expected 1 to ", (1u << 29) - 1);
    switch (field.wire) {
      case kVarint:
        field.varint = read_varint(in);
        break;
      case kFixed64:
        in.read<uint64_t>();
        break;
      case kBytes:
        field.bytes = in.text(read_varint(in));
        break;
      case kFixed32:
        field.fixed32 = in.read<float>();
        break;
      default:
        throw Error(ErrorKind::Input,
                    cat("byte ", at, ": wire type ", field.wire, ", expected 0, 1, 2 or 5"));
    }
    take(field);
  }
}

SentencePieceModel::Piece read_piece(std::string_view message) {
  SentencePieceModel::Piece piece;
  for_each_field(message, [&](const Field& field) {
    if (field.number == 1) piece.text = field.text();
    if (field.number == 2) piece.score = field.number32();
    if (field.number == 3) {
      const int64_t kind = field.integer();
      MINFER_REQUIRE(Input, kind >= 1 && kind <= 6, "type ", kind, ", expected 1 to 6");
      piece.kind = static_cast<int>(kind);
    }
  });
  return piece;
}

void read_trainer_spec(std::string_view message, SentencePieceModel& model) {
  for_each_field(message, [&](const Field& field) {
    if (field.number == 3) model.type = field.integer();
    if (field.number == 24) model.treat_whitespace_as_suffix = field.boolean();
    if (field.number == 35) model.byte_fallback = field.boolean();
    if (field.number == 46) model.bos_piece = field.text();
    if (field.number == 47) model.eos_piece = field.text();
  });
}

void read_normalizer_spec(std::string_view message, SentencePieceModel& model) {
  for_each_field(message, [&](const Field& field) {
    if (field.number == 2) {
      check_charsmap_size(field.text());
      model.charsmap = field.text();
    }
    if (field.number == 3) model.add_dummy_prefix = field.boolean();
    if (field.number == 4) model.remove_extra_whitespaces = field.boolean();
    if (field.number == 5) model.escape_whitespaces = field.boolean();
  });
}

// "<0x" two hexadecimal digits ">"; -1 for anything else.
int byte_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>' || text[3] == '-') return -1;
  int byte = -1;
  const char* end = text.data() + 5;
  const auto [stop, fault] = std::from_chars(text.data() + 3, end, byte, 16);
  return fault == std::errc() && stop == end ? byte : -1;
}

void check_pieces(const SentencePieceModel& model) {
  // SentencePiece has two tables: one of normal, user-defined and unused pieces, one of all others.
  std::unordered_set<std::string_view> ordinary, reserved;
  std::vector<bool> bytes(256);
  size_t n_unknown = 0, n_bytes = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const auto require = [&](bool ok, const std::string& what) {
      MINFER_REQUIRE(Input, ok, "piece ", id, " \"", shortened(piece.text), "\": ", what);
    };
    require(!piece.text.empty(), "no text");
    require(piece.text.size() < kMaxPieceBytes, cat("longer than ", kMaxPieceBytes, " bytes"));
    require(is_utf8(piece.text), "not UTF-8");
    require(std::isfinite(piece.score), cat("score ", piece.score));
    const bool is_ordinary = piece.kind == 1 || piece.kind == 4 || piece.kind == 5;
    require((is_ordinary ? ordinary : reserved).insert(piece.text).second, "there twice");
    // SentencePiece looks these up in a trie whose keys end at the first NUL.
    const bool in_trie =
        is_ordinary && (model.type == SentencePieceModel::Unigram || piece.kind == 4);
    require(!in_trie || piece.text.find('\0') == std::string::npos,
            "a NUL, which only ordinary pieces of a BPE model may have");
    if (piece.kind == 2) require(++n_unknown == 1, "a second unknown piece");
    if (piece.kind != 6) continue;
    const int byte = byte_value(piece.text);
    require(byte >= 0, "a byte piece looks like <0x0A>");
    require(model.byte_fallback, "a byte piece without byte_fallback");
    require(!bytes[static_cast<size_t>(byte)], "this byte is there twice");
    bytes[static_cast<size_t>(byte)] = true;
    ++n_bytes;
  }
  MINFER_REQUIRE(Input, n_unknown == 1, "no unknown piece");
  MINFER_REQUIRE(Input, !model.byte_fallback || n_bytes == 256, "byte_fallback with ", n_bytes,
                 " byte pieces, expected 256");
}

// The functions below write what those above read.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_integer(std::string& out, uint64_t number, uint64_t value) {
  put_varint(out, number << 3 | kVarint);
  put_varint(out, value);
}

void put_bytes(std::string& out, uint64_t number, std::string_view bytes) {
  put_varint(out, number << 3 | kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_float(std::string& out, uint64_t number, float value) {
  put_varint(out, number << 3 | kFixed32);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xff);
}

}  // namespace

SentencePieceModel parse_tokenizer_model(std::string_view bytes) {
  SentencePieceModel model;
  bool has_trainer_spec = false, has_normalizer_spec = false;
  for_each_field(bytes, [&](const Field& field) {
    if (field.number == 1) {
      MINFER_REQUIRE(Input, model.pieces.size() < kMaxPieces, "more than ", kMaxPieces, " pieces");
      try {
        model.pieces.push_back(read_piece(field.text()));
      } catch (const Error& e) {
        throw e.in(cat("piece ", model.pieces.size()));
      }
    }
    if (field.number == 2) {
      read_trainer_spec(field.text(), model);
      has_trainer_spec = true;
    }
    if (field.number == 3) {
      read_normalizer_spec(field.text(), model);
      has_normalizer_spec = true;
    }
  });
  MINFER_REQUIRE(Input, has_trainer_spec, "no trainer_spec");
  MINFER_REQUIRE(Input, has_normalizer_spec, "no normalizer_spec");
  MINFER_REQUIRE(
      Input, model.type == SentencePieceModel::Unigram || model.type == SentencePieceModel::Bpe,
      "model_type ", model.type, " is not supported; supported are 1 (unigram), 2 (bpe)");
  check_pieces(model);
  if (!model.charsmap.empty()) check_charsmap(model.charsmap);
  return model;
}

std::string serialize_tokenizer_model(const SentencePieceModel& model) {
  std::string out;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    std::string message;
    put_bytes(message, 1, piece.text);
    put_float(message, 2, piece.score);
    put_integer(message, 3, static_cast<uint64_t>(piece.kind));
    put_bytes(out, 1, message);
  }
  std::string trainer_spec;
  put_integer(trainer_spec, 3, static_cast<uint64_t>(model.type));
  put_integer(trainer_spec, 24, model.treat_whitespace_as_suffix);
  put_integer(trainer_spec, 35, model.byte_fallback);
  put_bytes(out, 2, trainer_spec);
  std::string normalizer_spec;
  if (!model.charsmap.empty()) put_bytes(normalizer_spec, 2, model.charsmap);
  put_integer(normalizer_spec, 3, model.add_dummy_prefix);
  put_integer(normalizer_spec, 4, model.remove_extra_whitespaces);
  put_integer(normalizer_spec, 5, model.escape_whitespaces);
  put_bytes(out, 3, normalizer_spec);
  return out;
}

}  // namespace minfer
