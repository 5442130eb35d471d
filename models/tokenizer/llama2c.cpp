#include <cmath>

#include "kernels/base/error.h"
#include "loaders/byte_reader.h"
#include "loaders/file.h"
#include "models/tokenizer/formats.h"
#include "models/tokenizer/normalize.h"
#include "models/tokenizer/spm.h"

namespace minfer {
namespace {

constexpr size_t kFirstByte = 3;  // pieces 3 to 258 are the bytes, 0 to 2 unknown, BOS and EOS
constexpr size_t kFirstOrdinary = kFirstByte + 256;
constexpr size_t kMaxLlama2cPieces = 500'000;

}  // namespace

// The file is i32 length of the longest piece, then per piece f32 score, i32 length and the text,
// with blanks as they are and a line end on both sides of BOS and EOS.
std::unique_ptr<Tokenizer> load_llama2c(const std::string& path) {
  const File file(path);
  MINFER_REQUIRE(Input, file.size() <= kMaxTokenizerBytes, file.size(), " bytes, expected at most ",
                 kMaxTokenizerBytes);
  ByteReader in(file);
  const auto longest = in.read<int32_t>();
  TokenizerSpec spec;
  while (in.left() > 0) {
    const size_t id = spec.pieces.size();
    MINFER_REQUIRE(Input, id < kMaxLlama2cPieces, "more than ", kMaxLlama2cPieces, " pieces");
    Piece piece;
    piece.score = in.read<float>();
    const auto n_bytes = in.read<int32_t>();
    MINFER_REQUIRE(Input, n_bytes >= 0 && n_bytes <= longest, "piece ", id, " has ", n_bytes,
                   " bytes, expected 0 to ", longest);
    MINFER_REQUIRE(Input, std::isfinite(piece.score), "piece ", id, ": score ", piece.score);
    piece.text = replace_all(in.text(static_cast<uint64_t>(n_bytes)), " ", kBlank);
    if (id < kFirstByte) {
      constexpr const char* kNames[] = {"<unk>", "<s>", "</s>"};
      piece.text = kNames[id];
      piece.kind = id == 0 ? PieceKind::Unknown : PieceKind::Control;
    } else if (id < kFirstOrdinary) {
      piece.kind = PieceKind::Byte;
      MINFER_REQUIRE(Input, byte_of_piece(piece.text) == static_cast<int>(id - kFirstByte),
                     "piece ", id, " is \"", shortened(piece.text), "\", expected byte ",
                     id - kFirstByte, " in the form <0x0A>");
    }
    spec.pieces.push_back(std::move(piece));
  }
  MINFER_REQUIRE(Input, spec.pieces.size() >= kFirstOrdinary, spec.pieces.size(),
                 " pieces, expected at least ", kFirstOrdinary);
  spec.kind = "llama2.c";
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.adds_bos = true;
  return std::make_unique<SpmTokenizer>(std::move(spec), true);
}

}  // namespace minfer
