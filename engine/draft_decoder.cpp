#include "engine/draft_decoder.h"

#include <algorithm>
#include <utility>

#include "engine/text_generation.h"

namespace minfer {
namespace {

// The first drafts are as long as this guess makes them worth, and only what was tried is measured.
// On an H200 8 rows of Llama-2-7B take as long as 1.3 steps of one in F16, 1.5 in int8 and 1.9 in
// int4.
PassCost guessed_cost(const Backend& backend) {
  const bool is_on_card = backend.free_device_bytes().has_value();
  return is_on_card ? PassCost{.at_once = 1.2, .row = 0.1} : PassCost{};
}

}  // namespace

int64_t most_draft_tokens(const Backend& backend) {
  return std::min(kMostDraftTokens, backend.preferred_decode_rows() - 1);
}

DraftDecoder::DraftDecoder(Session& session, std::span<const TokenId> prompt,
                           std::optional<DecodeSampling> sampling)
    : session_(session),
      pos_(session.pos()),
      sampling_(std::move(sampling)),
      costs_(guessed_cost(session.executor().backend()), kMostDraftTokens) {
  MINFER_CHECK(pos_ == std::ssize(prompt), "a prompt of ", prompt.size(), " tokens, ", pos_,
               " are evaluated");
  for (const TokenId token : prompt) lookup_.push(token);
  if (sampling_) sampling_->first_draw -= uint64_t(pos_);
}

DraftDecoder::NextToken DraftDecoder::eval(TokenId token, int64_t n_more) {
  lookup_.push(token);
  if (next_ < draft_.size() && draft_[next_] == token) {
    ++n_accepted_;
    ++pos_;
    return behind(++next_);
  }
  take_back();
  int64_t most = std::min(
      {kMostDraftTokens, session_.max_seq_len() - pos_ - 1, session_.executor().decode_rows() - 1});
  if (n_more >= 0) most = std::min(most, n_more);
  std::vector<TokenId> tokens = {token};
  draft_ = lookup_.draft(most, costs_.fitted());
  tokens.insert(tokens.end(), draft_.begin(), draft_.end());
  const Stopwatch since_start;
  evaluate(tokens);
  measure(tokens.size(), since_start.seconds());
  next_ = 0;
  ++pos_;
  ++n_passes_;
  n_drafted_ += std::ssize(draft_);
  return behind(0);
}

void DraftDecoder::evaluate(std::span<const TokenId> tokens) {
  chosen_ = {};
  if (sampling_) {
    DecodeSampling sampling = *sampling_;
    sampling.first_draw += uint64_t(pos_);
    chosen_ = session_.choose(tokens, sampling);
  }
  if (chosen_.empty()) logits_ = session_.decode(tokens);
}

void DraftDecoder::measure(size_t n_rows, double seconds) {
  // The first pass of so many rows may also make its step (a CUDA graph).
  if (!std::exchange(has_run_[n_rows], true)) return;
  if (n_rows == 1) {
    if (pass_seconds_ == 0) pass_seconds_ = seconds;
    pass_seconds_ += (seconds - pass_seconds_) / 8;  // a running mean
  } else if (pass_seconds_ > 0) {
    costs_.add(int64_t(n_rows) - 1, seconds / pass_seconds_);
  }
}

}  // namespace minfer
