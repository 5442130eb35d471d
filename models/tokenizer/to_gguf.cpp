#include <algorithm>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/normalize.h"

// Tokenizers in the keys that gguf.cpp reads.
namespace minfer {
namespace {

std::string key(std::string_view name) { return cat("tokenizer.ggml.", name); }

}  // namespace

Metadata VocabularyTokenizer::gguf_vocabulary(int64_t vocab_size) const {
  // Added tokens without a row of the embedding are never produced: they are left out.
  for (auto id = static_cast<TokenId>(vocabulary_.size()); id-- > vocab_size;) {
    const PieceKind kind = vocabulary_[id].kind;
    const bool is_added =
        kind == PieceKind::Control || kind == PieceKind::UserDefined || kind == PieceKind::Unused;
    MINFER_REQUIRE(Input, is_added && id != bos_ && id != eos_, "the tokenizer has ",
                   vocabulary_.size(), " pieces, the embedding ", vocab_size, " rows");
  }
  std::vector<std::string> texts;
  std::vector<int64_t> kinds;
  for (TokenId id = 0; id < vocab_size; ++id) {
    const bool is_hole = id >= vocabulary_.size() || vocabulary_[id].text.empty();
    texts.push_back(is_hole ? cat("[PAD", id, "]") : vocabulary_[id].text);
    kinds.push_back(static_cast<int64_t>(is_hole ? PieceKind::Unused : vocabulary_[id].kind));
  }
  Metadata metadata;
  metadata.set(key("tokens"), std::move(texts));
  metadata.set(key("token_type"), std::move(kinds));
  const auto set_id = [&](const char* name, TokenId id) {
    if (id >= 0) metadata.set(key(name), static_cast<uint64_t>(id));
  };
  set_id("bos_token_id", bos_);
  set_id("eos_token_id", eos_);
  set_id("unknown_token_id", unknown_);
  const auto other_end =
      std::ranges::find_if(end_ids_, [&](TokenId id) { return id != eos_ && id < vocab_size; });
  if (other_end != end_ids_.end()) set_id("eot_token_id", *other_end);
  metadata.set(key("add_bos_token"), adds_bos_);
  metadata.set(key("add_eos_token"), false);
  if (!chat_template_.empty()) metadata.set("tokenizer.chat_template", chat_template_);
  return metadata;
}

std::vector<double> VocabularyTokenizer::scores() const {
  std::vector<double> scores;
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    scores.push_back(double{vocabulary_[id].score});
  }
  return scores;
}

Metadata VocabularyTokenizer::gguf_sentencepiece(int64_t vocab_size,
                                                 const std::vector<double>& scores,
                                                 bool add_space_prefix) const {
  Metadata metadata = gguf_vocabulary(vocab_size);
  std::vector<double> padded = scores;
  padded.resize(static_cast<size_t>(vocab_size));
  metadata.set(key("model"), std::string("llama"));
  metadata.set(key("pre"), std::string("default"));
  metadata.set(key("scores"), std::move(padded));
  metadata.set(key("add_space_prefix"), add_space_prefix);
  return metadata;
}

std::vector<std::pair<uint64_t, Merge>> BpeTokenizer::merges_in_order() const {
  std::vector<std::pair<uint64_t, Merge>> merges(merges_.begin(), merges_.end());
  std::ranges::sort(merges, {}, [](const auto& item) { return item.second.priority; });
  return merges;
}

namespace {

using Prepend = WordStep::Prepend;

// What GGUF has a word for among normalizers and pre-tokenizers of SentencePiece-style pieces:
// blanks become ▁, and one is in front of each text and behind each token, or of none.
bool add_space_prefix_of(const BpeOptions& options) {
  const auto refuse = [](bool fits) {
    MINFER_REQUIRE(Input, fits,
                   "the tokenizer's normalizer and pre-tokenizer have no form in GGUF");
  };
  bool replaces = false, prefixes = false;
  for (const NormalizeStep& step : options.normalizer) {
    const bool is_prepend = step.kind == NormalizeStep::Kind::Prepend && step.to == kBlank;
    const bool is_replace =
        step.kind == NormalizeStep::Kind::Replace && step.from == " " && step.to == kBlank;
    refuse(is_prepend || is_replace);
    refuse(!(is_prepend && prefixes));
    prefixes = prefixes || is_prepend;
    replaces = replaces || is_replace;
  }
  for (const WordStep& step : options.words.steps()) {
    // It prepends nothing to a text that begins with a blank, and its words end at blanks.
    refuse(step.kind == WordStep::Kind::Metaspace && step.replacement == kBlank &&
           step.prepend == Prepend::Never);
    replaces = true;
  }
  refuse(replaces);
  return prefixes;
}

// Whether tokens become text as GGUF's readers do it.
bool decodes_plainly(const BpeOptions& options) {
  using Kind = DecodeStep::Kind;
  if (options.blank_between) return false;
  return std::ranges::all_of(options.decoder, [&](const DecodeStep& step) {
    if (step.kind == Kind::ByteLevel) return options.byte_level;
    if (options.byte_level) return false;
    return step.kind == Kind::ByteFallback ||
           (step.kind == Kind::Replace && step.from == kBlank && step.to == " ");
  });
}

}  // namespace

// GGUF has no list of merges for such a vocabulary: a piece comes the sooner, the earlier in the
// list it is made.
Metadata BpeTokenizer::gguf_by_scores(int64_t vocab_size) const {
  const bool prefixed = add_space_prefix_of(options_);
  MINFER_REQUIRE(Input, !options_.ignore_merges, "ignore_merges has no form in GGUF");
  std::vector<double> scores(static_cast<size_t>(n_tokens()));
  for (const auto& [pair, merge] : merges_in_order()) {
    double& score = scores[static_cast<size_t>(merge.id)];
    if (score == 0) score = -1 - merge.priority;
  }
  return gguf_sentencepiece(vocab_size, scores, prefixed);
}

Metadata BpeTokenizer::to_gguf(int64_t vocab_size) const {
  for (const AddedToken& token : added()) {
    const bool plain = !token.single_word && !token.lstrip && !token.rstrip;
    MINFER_REQUIRE(Input, plain, "single_word, lstrip and rstrip of token \"",
                   shortened(token.text), "\" have no form in GGUF");
  }
  MINFER_REQUIRE(Input, decodes_plainly(options_), "the tokenizer's decoder has no form in GGUF");
  if (!options_.byte_level) return gguf_by_scores(vocab_size);
  const std::vector<WordStep>& steps = options_.words.steps();
  const bool only_splits = steps.size() == 1 && steps[0].kind == WordStep::Kind::Split;
  const std::string pre =
      only_splits ? name_of_pre_tokenizer(steps[0].splitter, options_.ignore_merges) : "";
  MINFER_REQUIRE(Input, !pre.empty(), "the pre-tokenizer has no name in GGUF");
  const bool is_plain = std::ranges::all_of(options_.normalizer, [&](const NormalizeStep& step) {
    return step.kind == NormalizeStep::Kind::Nfc && pre == "qwen2";
  });
  MINFER_REQUIRE(Input, is_plain, "the tokenizer's normalizer has no form in GGUF");
  std::vector<std::string> lines;
  for (const auto& [pair, merge] : merges_in_order()) {
    const auto left = static_cast<TokenId>(pair >> 32), right = static_cast<TokenId>(pair);
    lines.push_back(cat(vocabulary()[left].text, " ", vocabulary()[right].text));
  }
  Metadata metadata = gguf_vocabulary(vocab_size);
  metadata.set(key("model"), std::string("gpt2"));
  metadata.set(key("pre"), pre);
  metadata.set(key("merges"), std::move(lines));
  return metadata;
}

}  // namespace minfer
