#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "models/tokenizer/bpe.h"
#include "models/tokenizer/spm.h"

namespace minfer {
namespace {

constexpr int64_t kMaxGgufPieces = 1 << 24;

// -1 where the file names none; converters write the largest 32-bit number for that too.
TokenId special_id(const Metadata& metadata, const std::string& name, TokenId fallback) {
  const std::string key = "tokenizer.ggml." + name;
  if (!metadata.has(key)) return fallback;
  const int64_t id = metadata.integer(key, -1, std::numeric_limits<uint32_t>::max());
  if (id == -1 || id == std::numeric_limits<uint32_t>::max()) return -1;
  const auto n_pieces = static_cast<int64_t>(metadata.texts("tokenizer.ggml.tokens").size());
  MINFER_REQUIRE(Input, id < n_pieces, key, " is ", id, ", the vocabulary has ", n_pieces,
                 " pieces");
  return static_cast<TokenId>(id);
}

void require_length(const char* key, size_t length, size_t n_pieces) {
  MINFER_REQUIRE(Input, length == n_pieces, key, " has ", length,
                 " elements, tokenizer.ggml.tokens ", n_pieces);
}

std::vector<Piece> read_pieces(const Metadata& metadata) {
  const std::vector<std::string>& texts = metadata.texts("tokenizer.ggml.tokens");
  MINFER_REQUIRE(Input, !texts.empty() && texts.size() <= kMaxGgufPieces,
                 "tokenizer.ggml.tokens has ", texts.size(), " elements, expected 1 to ",
                 kMaxGgufPieces);
  std::vector<Piece> pieces(texts.size());
  const bool has_kinds = metadata.has("tokenizer.ggml.token_type");
  for (size_t i = 0; i < texts.size(); ++i) {
    pieces[i].text = texts[i];
    if (!has_kinds && byte_of_piece(texts[i]) >= 0) pieces[i].kind = PieceKind::Byte;
  }
  if (metadata.has("tokenizer.ggml.scores")) {
    const std::vector<double>& scores = metadata.numbers("tokenizer.ggml.scores");
    require_length("tokenizer.ggml.scores", scores.size(), texts.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      MINFER_REQUIRE(Input, std::isfinite(scores[i]), "tokenizer.ggml.scores[", i, "] is ",
                     scores[i]);
      pieces[i].score = static_cast<float>(scores[i]);
    }
  }
  if (has_kinds) {
    const std::vector<int64_t>& kinds = metadata.integers("tokenizer.ggml.token_type");
    require_length("tokenizer.ggml.token_type", kinds.size(), texts.size());
    for (size_t i = 0; i < kinds.size(); ++i) {
      MINFER_REQUIRE(Input, kinds[i] >= 1 && kinds[i] <= 6, "tokenizer.ggml.token_type[", i,
                     "] is ", kinds[i], ", expected 1 to 6");
      pieces[i].kind = static_cast<PieceKind>(kinds[i]);
      MINFER_REQUIRE(Input, pieces[i].kind != PieceKind::Byte || byte_of_piece(texts[i]) >= 0,
                     "tokenizer.ggml.tokens[", i, "] is \"", shortened(texts[i]),
                     "\", a byte piece looks like <0x0A>");
    }
  }
  return pieces;
}

TokenizerSpec read_spec(const Metadata& metadata, bool adds_bos) {
  TokenizerSpec spec;
  spec.pieces = read_pieces(metadata);
  spec.bos = special_id(metadata, "bos_token_id", -1);
  spec.eos = special_id(metadata, "eos_token_id", -1);
  spec.unknown = special_id(metadata, "unknown_token_id", -1);
  spec.adds_bos = metadata.boolean_or("tokenizer.ggml.add_bos_token", adds_bos);
  spec.end_ids = {special_id(metadata, "eot_token_id", -1),
                  special_id(metadata, "eom_token_id", -1)};
  spec.chat_template = metadata.text_or("tokenizer.chat_template", "");
  return spec;
}

std::vector<std::pair<std::string, std::string>> read_merges(const Metadata& metadata) {
  const std::vector<std::string>& lines = metadata.texts("tokenizer.ggml.merges");
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(lines.size());
  for (const std::string& line : lines) {
    const size_t blank = line.find(' ', 1);
    MINFER_REQUIRE(Input, blank != line.npos, "tokenizer.ggml.merges[", merges.size(), "] is \"",
                   shortened(line), "\", expected two pieces with a blank between them");
    merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
  }
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> make_gguf_tokenizer(const Metadata& metadata) {
  const std::string& model = metadata.text("tokenizer.ggml.model");
  if (model == "llama") {
    TokenizerSpec spec = read_spec(metadata, true);
    spec.kind = "llama SPM";
    return std::make_unique<SpmTokenizer>(
        std::move(spec), metadata.boolean_or("tokenizer.ggml.add_space_prefix", true));
  }
  if (model == "gpt2") {
    const std::string name = metadata.text_or("tokenizer.ggml.pre", "default");
    PreTokenizer pre = pre_tokenizer_by_name(name);
    TokenizerSpec spec = read_spec(metadata, pre.adds_bos);
    spec.kind = "gpt2 BPE, " + name;
    if (!metadata.has("tokenizer.ggml.pre"))
      spec.warnings.push_back(
          "the file names no pre-tokenizer (tokenizer.ggml.pre), so llama.cpp's default is taken; "
          "if it is not the model's, texts are cut into other tokens than it was trained with");
    spec.unknown = -1;  // a byte without a piece is left out; the id is that of an ordinary marker
    BpeOptions options;
    options.byte_level = true;
    options.ignore_merges = pre.ignore_merges;
    options.decoder = {{.kind = DecodeStep::Kind::ByteLevel}};
    options.words.add(std::move(pre.splitter));
    return std::make_unique<BpeTokenizer>(std::move(spec), std::move(options),
                                          read_merges(metadata));
  }
  throw Error(ErrorKind::Input, cat("tokenizer.ggml.model \"", shortened(model),
                                    "\" is not supported; supported are llama, gpt2"));
}

}  // namespace minfer
