#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <new>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "loaders/tokenizer_model.h"
#include "models/tokenizer/base.h"
#include "models/tokenizer/boundaries.h"
#include "models/tokenizer/formats.h"
#include "models/tokenizer/hf_side_files.h"
#include "models/tokenizer/normalize.h"

namespace minfer {
namespace {

// How much text the library is given at a time where it can be cut: its work on a book as one piece
// is three times slower.
constexpr size_t kChunkBytes = 8192;

class SentencePieceTokenizer : public VocabularyTokenizer {
 public:
  SentencePieceTokenizer(TokenizerSpec spec, SentencePieceModel model)
      : SentencePieceTokenizer(spec.legacy, spec.add_prefix_space, std::move(spec),
                               std::move(model)) {}

  bool strips_leading_space() const override { return has_dummy_prefix_ && prefixes_start_; }
  Metadata to_gguf(int64_t vocab_size) const override {
    MINFER_REQUIRE(Input, is_bpe_, "a SentencePiece unigram model has no form in GGUF");
    MINFER_REQUIRE(Input, prefixes_behind_tokens_ || !has_dummy_prefix_ || !prefixes_start_,
                   "a blank in front of a text but not behind a token (\"legacy\": false) has no "
                   "form in GGUF");
    return gguf_sentencepiece(vocab_size, scores(), has_dummy_prefix_ && prefixes_start_);
  }

 protected:
  void encode_text(std::string_view text, TextPlace place,
                   std::vector<TokenId>& ids) const override {
    const bool prefixed = place.at_start ? prefixes_start_ : prefixes_behind_tokens_;
    if (!can_cut_)
      return encode_chunk(prefixed || !unprefixed_ ? processor_ : *unprefixed_, text, ids);
    const std::string whole = cat(has_dummy_prefix_ && prefixed ? " " : "", text);
    std::string_view rest = whole;
    while (!rest.empty()) {
      const size_t end = chunk_end(rest);
      encode_chunk(processor_, rest.substr(0, end), ids);
      rest.remove_prefix(end);
    }
  }

  std::string plain_bytes(const Piece& piece) const override { return sentencepiece_bytes(piece); }

 private:
  using Processor = sentencepiece::SentencePieceProcessor;

  SentencePieceTokenizer(bool legacy, bool add_prefix_space, TokenizerSpec spec,
                         SentencePieceModel model)
      : VocabularyTokenizer(std::move(spec)),
        boundaries_(vocabulary()),
        is_bpe_(model.type == SentencePieceModel::Bpe),
        prefixes_behind_tokens_(legacy),
        prefixes_start_(legacy || add_prefix_space),
        has_dummy_prefix_(model.add_dummy_prefix && !model.treat_whitespace_as_suffix),
        // The rules for a character must not depend on its neighbours, and no run of unknown
        // characters be torn.
        can_cut_(model.charsmap.empty() && !model.remove_extra_whitespaces &&
                 !model.treat_whitespace_as_suffix && model.escape_whitespaces &&
                 model.byte_fallback) {
    if (can_cut_)
      model.add_dummy_prefix = false;  // encode_text puts it in front of the first chunk
    // The files beside the model may have made control tokens of others.
    for (size_t id = 0; id < model.pieces.size(); ++id)
      model.pieces[id].kind = static_cast<int>(vocabulary()[static_cast<TokenId>(id)].kind);
    load(processor_, model);
    if (can_cut_ || !has_dummy_prefix_ || prefixes_behind_tokens_) return;
    model.add_dummy_prefix = false;
    unprefixed_ = std::make_unique<Processor>();
    load(*unprefixed_, model);
  }

  static void load(Processor& processor, const SentencePieceModel& model) {
    try {
      const auto status = processor.LoadFromSerializedProto(serialize_tokenizer_model(model));
      MINFER_REQUIRE(Input, status.ok(), "SentencePiece: ", shortened(status.ToString(), 200));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {  // of the trie inside, which has limits of its own
      throw Error(ErrorKind::Input, shortened(e.what(), 200));
    }
  }

  static void encode_chunk(const Processor& processor, std::string_view text,
                           std::vector<TokenId>& ids) {
    std::vector<int> encoded;
    const auto status = processor.Encode(text, &encoded);
    MINFER_REQUIRE(Input, status.ok(), "SentencePiece: ", shortened(status.ToString(), 200));
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }

  // The first place past kChunkBytes that no piece reaches over; else the end.
  size_t chunk_end(std::string_view text) const {
    size_t at = std::min(kChunkBytes, text.size());
    std::string_view left;  // the character in front of `at`; empty where it is none
    while (at < text.size()) {
      const size_t n_bytes = utf8_char_bytes(text.substr(at));
      const std::string_view right = text[at] == ' ' ? kBlank : text.substr(at, n_bytes);
      if (!left.empty() && !right.empty() && boundaries_.between(left, right)) return at;
      left = right;
      at += std::max<size_t>(n_bytes, 1);
    }
    return text.size();
  }

  Processor processor_;
  std::unique_ptr<Processor> unprefixed_;  // where it differs and processor_ puts the prefix
  Boundaries boundaries_;
  bool is_bpe_, prefixes_behind_tokens_, prefixes_start_, has_dummy_prefix_, can_cut_;
};

TokenId find_control(const std::vector<Piece>& pieces, const std::string& text) {
  const auto found = std::ranges::find_if(pieces, [&](const Piece& piece) {
    return piece.kind == PieceKind::Control && piece.text == text;
  });
  return found == pieces.end() ? -1 : static_cast<TokenId>(found - pieces.begin());
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const SmallFiles& beside) {
  SentencePieceModel model = parse_tokenizer_model(bytes);
  TokenizerSpec spec;
  spec.kind = model.type == SentencePieceModel::Bpe ? "SentencePiece BPE" : "SentencePiece unigram";
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.kind == static_cast<int>(PieceKind::Unknown))
      spec.unknown = static_cast<TokenId>(spec.pieces.size());
    spec.pieces.push_back({piece.text, static_cast<PieceKind>(piece.kind), piece.score});
  }
  spec.bos = find_control(spec.pieces, model.bos_piece);
  spec.eos = find_control(spec.pieces, model.eos_piece);
  spec.adds_bos = true;
  spec.first_found_user_defined = static_cast<TokenId>(spec.pieces.size());
  PieceIndex index(spec);
  apply_hf_side_files(beside, index, spec);
  return std::make_unique<SentencePieceTokenizer>(std::move(spec), std::move(model));
}

}  // namespace minfer
