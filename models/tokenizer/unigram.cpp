#include "models/tokenizer/unigram.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"

namespace minfer {
namespace {

constexpr size_t kMaxPieceBytes = 512;  // work on a text is up to its bytes times this
constexpr double kUnknownPenalty = 10;  // below the worst piece

}  // namespace

UnigramTokenizer::UnigramTokenizer(TokenizerSpec spec, BpeOptions options,
                                   std::vector<double> scores)
    : BpeTokenizer(std::move(spec), std::move(options), {}), scores_(std::move(scores)) {
  MINFER_REQUIRE(Input, unknown() >= 0, "model: Unigram without unk_id is not supported");
  double worst = 0;
  for (size_t i = 0; i < scores_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& text = vocabulary()[id].text;
    worst = std::min(worst, scores_[i]);
    if (vocabulary().find(text) != id) continue;
    MINFER_REQUIRE(Input, text.size() <= kMaxPieceBytes, "model: piece ", id, " has ", text.size(),
                   " bytes, expected at most ", kMaxPieceBytes);
    sorted_.push_back(id);
  }
  unknown_score_ = worst - kUnknownPenalty;
  std::ranges::sort(sorted_, {},
                    [&](TokenId id) -> const std::string& { return vocabulary()[id].text; });
}

std::vector<UnigramTokenizer::Node> UnigramTokenizer::best_paths(std::string_view word) const {
  std::vector<Node> nodes(word.size() + 1);
  const auto offer = [&](size_t begin, size_t end, TokenId id, double score) {
    Node& node = nodes[end];
    const double whole = score + nodes[begin].score;
    if (node.id < 0 || whole > node.score) node = {whole, begin, id};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t char_bytes = utf8_char_bytes(word.substr(begin));
    bool has_character = false;
    // The pieces that begin with the first bytes, one more each time.
    auto low = sorted_.begin(), high = sorted_.end();
    for (size_t n = 0; low != high && begin + n < word.size(); ++n) {
      const auto byte_at = [&](TokenId id) {  // -1: the piece ends before
        const std::string& text = vocabulary()[id].text;
        return n < text.size() ? static_cast<int>(static_cast<unsigned char>(text[n])) : -1;
      };
      const int byte = static_cast<unsigned char>(word[begin + n]);
      const auto range = std::ranges::equal_range(low, high, byte, {}, byte_at);
      low = range.begin();
      high = range.end();
      if (low == high || vocabulary()[*low].text.size() != n + 1) continue;
      offer(begin, begin + n + 1, *low, scores_[static_cast<size_t>(*low)]);
      has_character = has_character || n + 1 == char_bytes;
    }
    if (!has_character) offer(begin, begin + char_bytes, unknown(), unknown_score_);
    begin += char_bytes;
  }
  return nodes;
}

// A piece of the model, or a run of characters without one: bytes where all of them have pieces.
void UnigramTokenizer::append(std::string_view piece, std::vector<TokenId>& ids) const {
  if (const TokenId id = model_id(piece); id >= 0) {
    ids.push_back(id);
    return;
  }
  std::vector<Symbol> bytes;
  if (append_bytes(piece, 0, bytes)) {
    for (const Symbol& byte : bytes) ids.push_back(byte.id);
  } else {
    ids.push_back(unknown());
  }
}

void UnigramTokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  const std::vector<Node> nodes = best_paths(word);
  std::vector<std::string_view> pieces;  // from the end
  bool after_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const Node& node = nodes[end];
    const bool is_unknown = node.id == unknown();
    if (is_unknown && after_unknown)  // neighbours are one
      pieces.back() = word.substr(node.begin, pieces.back().size() + end - node.begin);
    else
      pieces.push_back(word.substr(node.begin, end - node.begin));
    after_unknown = is_unknown;
    end = node.begin;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) append(*piece, ids);
}

Metadata UnigramTokenizer::to_gguf(int64_t /*vocab_size*/) const {
  throw Error(ErrorKind::Input, "a Unigram model has no form in GGUF");
}

}  // namespace minfer
