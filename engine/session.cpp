#include "engine/session.h"

namespace minfer {

Session::Session(const Model& model, Backend& backend, const SessionOptions& options)
    : executor_(model, backend, options), sequence_(executor_.make_sequence()) {}

std::span<const float> Session::eval(std::span<const TokenId> tokens) {
  executor_.require_fitting(sequence_, tokens);
  if (tokens.size() == 1 && executor_.decode_plan() != nullptr) return decode(tokens);
  return executor_.fetch(executor_.evaluate_all(sequence_, tokens));
}

std::span<const float> Session::eval_all(std::span<const TokenId> tokens, int64_t first) {
  const Tensor logits = logits_of(tokens, first);
  return logits ? executor_.fetch(logits) : std::span<const float>();
}

std::span<const float> Session::decode(std::span<const TokenId> tokens) {
  const SequenceTokens part{&sequence_, tokens, std::ssize(tokens)};
  return executor_.decode({&part, 1});
}

std::span<const TokenId> Session::choose(std::span<const TokenId> tokens,
                                         const DecodeSampling& sampling) {
  const SequenceTokens part{&sequence_, tokens, std::ssize(tokens)};
  return executor_.choose({&part, 1}, {&sampling, 1});
}

std::span<const float> Session::eval_texts(std::span<const Text> texts) {
  return executor_.fetch(logits_of(texts));
}

std::span<const double> Session::score(std::span<const TokenId> tokens, int64_t first,
                                       std::span<const TokenId> targets) {
  return nll_of(logits_of(tokens, first), targets);
}

std::span<const double> Session::score_texts(std::span<const Text> texts,
                                             std::span<const TokenId> targets) {
  return nll_of(logits_of(texts), targets);
}

std::span<const double> Session::nll_of(Tensor logits, std::span<const TokenId> targets) {
  nll_.resize(targets.size());
  if (!targets.empty()) executor_.backend().negative_log_likelihoods(nll_, logits, targets);
  executor_.check_ranks();
  return nll_;
}

Tensor Session::logits_of(std::span<const TokenId> tokens, int64_t first) {
  const SequenceTokens part{&sequence_, tokens, std::ssize(tokens) - first};
  return executor_.evaluate({&part, 1});
}

Tensor Session::logits_of(std::span<const Text> texts) {
  truncate(0);
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < texts.size(); ++i) sequences.push_back(executor_.make_sequence());
  std::vector<SequenceTokens> parts;
  for (size_t i = 0; i < texts.size(); ++i) {
    parts.push_back({&sequences[i], texts[i].tokens, std::ssize(texts[i].tokens) - texts[i].first});
  }
  return executor_.evaluate(parts);
}

std::optional<Session::TokenRun> Session::run_from(TokenId token, int64_t n_steps,
                                                   const DecodeSampling& sampling) {
  executor_.require_fitting(sequence_, {&token, 1});
  MINFER_CHECK(n_steps >= 1 && n_steps <= max_seq_len() - pos(), n_steps, " steps at ", pos(),
               " of ", max_seq_len());
  DecodePlan* const plan = executor_.decode_plan();
  if (plan == nullptr) return std::nullopt;
  sequence_.reserve(n_steps);
  std::unique_ptr<DecodeRun> run =
      plan->start({token, pos(), sequence_.pages()}, n_steps, sampling);
  if (run == nullptr) return std::nullopt;
  return TokenRun(*this, token, std::move(run));
}

TokenId Session::TokenRun::next() {
  MINFER_CHECK(run_ != nullptr, "a token of a run that has failed");
  const TokenId id = run_->next();
  if (id < 0) {
    run_.reset();  // nothing may be under way when the pass runs again
    session_->executor_.throw_non_finite(session_->sequence_, {&last_, 1}, 0);
  }
  session_->sequence_.advance(1);
  return last_ = id;
}

}  // namespace minfer
