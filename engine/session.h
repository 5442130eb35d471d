#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace minfer {

// Prefill and decode of one sequence, on an executor of its own. The model and backend outlive it.
class Session {
 public:
  Session(const Model& model, Backend& backend, const SessionOptions& options);

  // Evaluates tokens at the next positions and returns the logits of the last one,
  // [vocab_size] f32, valid until the next call. Throws Usage where they do not fit, Numeric at the
  // first non-finite logit, with its position; Cancelled, behind the last whole chunk, where the
  // backend's flag says so.
  std::span<const float> eval(std::span<const TokenId> tokens);
  // The same with the logits of tokens[first] and all after it, [n_tokens - first, vocab_size] f32:
  // for perplexity and tests. n_tokens <= prefill_chunk; first == n_tokens gives none.
  std::span<const float> eval_all(std::span<const TokenId> tokens, int64_t first = 0);

  // A decode that feeds itself; gone before its session.
  class TokenRun {
   public:
    // Chosen from the logits of the token before, which pos() then counts; at most n_steps times.
    // Throws Numeric where one of them is not finite, with its position.
    TokenId next();

   private:
    friend Session;
    TokenRun(Session& session, TokenId token, std::unique_ptr<DecodeRun> run)
        : session_(&session), last_(token), run_(std::move(run)) {}

    Session* session_;
    TokenId last_;
    std::unique_ptr<DecodeRun> run_;
  };
  // Evaluates `token`, then the token chosen from its logits, and so on, n_steps in all; the step
  // of a token is under way before next() returns it. None where the backend has no plan that can.
  // No other call of the session until it is gone.
  std::optional<TokenRun> run_from(TokenId token, int64_t n_steps, const DecodeSampling& sampling);

  // Negative log-likelihoods of `targets`, one for each row of eval_all(tokens, first), in nats;
  // the logits stay on the device.
  std::span<const double> score(std::span<const TokenId> tokens, int64_t first,
                                std::span<const TokenId> targets);

  struct Text {
    std::span<const TokenId> tokens;
    int64_t first = 0;  // with the logits of tokens[first] and all after it
  };
  // Evaluates texts from position 0, all in one pass, and returns their logits one after another,
  // on the CPU the same bits as eval_all gives for each alone. All tokens together <=
  // prefill_chunk, their pages together <= n_pages. Nothing is cached afterwards: pos() is 0.
  // Throws Numeric where a logit is not finite.
  std::span<const float> eval_texts(std::span<const Text> texts);
  // score() for such texts.
  std::span<const double> score_texts(std::span<const Text> texts,
                                      std::span<const TokenId> targets);

  // Forgets what lies past the first n_tokens; returns how many are left: none where a window has
  // moved on from them (Sequence::truncate).
  int64_t truncate(int64_t n_tokens) { return sequence_.truncate(n_tokens); }
  int64_t pos() const { return sequence_.pos(); }
  int64_t max_seq_len() const { return executor_.max_seq_len(); }
  int64_t prefill_chunk() const { return executor_.prefill_chunk(); }
  int64_t n_pages() const { return executor_.n_pages(); }
  int64_t kv_bytes() const { return executor_.kv_bytes(); }
  const Model& model() const { return executor_.model(); }
  const Executor& executor() const { return executor_; }
  Executor& executor() { return executor_; }

 private:
  Tensor logits_of(std::span<const TokenId> tokens, int64_t first);
  Tensor logits_of(std::span<const Text> texts);
  std::span<const double> nll_of(Tensor logits, std::span<const TokenId> targets);

  Executor executor_;
  Sequence sequence_;
  std::vector<double> nll_;  // of the last score
};

}  // namespace minfer
