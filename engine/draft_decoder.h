#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prompt_lookup.h"
#include "engine/session.h"

namespace minfer {

// The most tokens of a draft on any backend.
constexpr int64_t kMostDraftTokens = 15;

// The most that a pass of decode on this backend takes: kMostDraftTokens or fewer.
int64_t most_draft_tokens(const Backend& backend);

// Decodes a text of one session with drafts: each pass evaluates a token and the draft of those
// behind it. What comes of a draft that turns out wrong is dropped, so the text is that of a decode
// token by token where the backend gives a row the same bits whatever rows stand beside it. That is
// so on the CPU. On a card, a pass of several rows runs other kernels than a pass of one, whose
// logits differ by their rounding: a text may then go another way where two tokens are as good as
// each other within that.
class DraftDecoder {
 public:
  // The session holds all of the prompt.
  //   sampling  how the backend may choose tokens behind those of the text, if at all; its
  //             first_draw is for the one behind the first
  DraftDecoder(Session& session, std::span<const TokenId> prompt,
               std::optional<DecodeSampling> sampling = {});
  DraftDecoder(const DraftDecoder&) = delete;
  DraftDecoder& operator=(const DraftDecoder&) = delete;
  ~DraftDecoder() { take_back(); }

  // What a pass tells of the token behind one of the text.
  struct NextToken {
    std::optional<TokenId> chosen;  // by the backend
    // [vocab_size], valid until the next call; none if it has chosen.
    std::span<const float> logits;
  };
  // Evaluates the next token of the text.
  //   n_more  tokens of the text that may follow it; -1: any number
  NextToken eval(TokenId token, int64_t n_more);

  int64_t pos() const { return pos_; }  // tokens of the text that the session holds
  int64_t drafted() const { return n_drafted_; }
  int64_t accepted() const { return n_accepted_; }
  int64_t passes() const { return n_passes_; }

 private:
  void evaluate(std::span<const TokenId> tokens);
  NextToken behind(size_t i) const {  // token i of the last pass
    if (!chosen_.empty()) return {chosen_[i], {}};
    const size_t n = logits_.size() / (draft_.size() + 1);
    return {std::nullopt, logits_.subspan(i * n, n)};
  }
  void take_back() { session_.truncate(pos_); }
  void measure(size_t n_rows, double seconds);

  Session& session_;
  PromptLookup lookup_;
  std::vector<TokenId> draft_;  // of the last pass
  size_t next_ = 0;             // of its tokens, the first that the text has not come to
  // Behind each token of the last pass: those that the backend chose, or, where it did not, logits
  // [1 + draft_.size(), vocab_size].
  std::span<const TokenId> chosen_;
  std::span<const float> logits_;
  int64_t pos_;
  std::optional<DecodeSampling> sampling_;  // first_draw: that at position 0, modulo 2^64
  int64_t n_drafted_ = 0, n_accepted_ = 0, n_passes_ = 0;
  double pass_seconds_ = 0;                           // of one row; 0: not measured yet
  std::array<bool, kMostDraftTokens + 2> has_run_{};  // a pass of so many rows
  PassCostFit costs_;                                 // of passes with a draft
};

}  // namespace minfer
