#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace minfer {

// Evaluates one sequence, prefill and decode, on an executor of its own. The model and backend must
// outlive it.
class Session {
 public:
  Session(const Model& model, Backend& backend, const SessionOptions& options);

  // Evaluates tokens at the next positions and returns the logits of the last one,
  // [vocab_size] f32, valid until the next call. Throws Usage if they do not fit; Numeric at the
  // first non-finite logit, with its position; Cancelled if the backend's flag is set, with the
  // chunks finished so far in the cache.
  std::span<const float> eval(std::span<const TokenId> tokens);
  // As eval(), but returns the logits of tokens[first] and all after it, [n_tokens - first,
  // vocab_size] f32: for perplexity and tests. n_tokens <= prefill_chunk; first == n_tokens gives
  // none.
  std::span<const float> eval_all(std::span<const TokenId> tokens, int64_t first = 0);

  // As eval_all(), but by a fused step where the backend has one for so few tokens: those that
  // Executor::decode_rows() says at most. Its logits may differ from those of eval_all() in their
  // rounding.
  std::span<const float> decode(std::span<const TokenId> tokens);

  // As decode(), but the backend chooses the token behind each: those, or none, with nothing
  // evaluated, if it cannot (Executor::choose).
  std::span<const TokenId> choose(std::span<const TokenId> tokens, const DecodeSampling& sampling);

  // A decode in which the backend chooses each token and evaluates it next. It must be destroyed
  // before its session.
  class TokenRun {
   public:
    // Returns the token chosen from the logits of the token before it, which pos() then counts. May
    // be called n_steps times. Throws Numeric if one of these logits is not finite, with its
    // position.
    TokenId next();

   private:
    friend Session;
    TokenRun(Session& session, TokenId token, std::unique_ptr<DecodeRun> run)
        : session_(&session), last_(token), run_(std::move(run)) {}

    Session* session_;
    TokenId last_;
    std::unique_ptr<DecodeRun> run_;
  };
  // Starts to evaluate `token`, then the token chosen from its logits, and so on, n_steps in all.
  // The step that evaluates a token has begun before next() returns that token. Returns none if the
  // backend has no plan that can do this. Until the run is destroyed, the session must neither
  // evaluate nor truncate.
  std::optional<TokenRun> run_from(TokenId token, int64_t n_steps, const DecodeSampling& sampling);

  // Evaluates as eval_all(tokens, first) does and returns the negative log-likelihoods of
  // `targets`, one for each row of logits, in nats. The logits stay on the device.
  std::span<const double> score(std::span<const TokenId> tokens, int64_t first,
                                std::span<const TokenId> targets);

  struct Text {
    std::span<const TokenId> tokens;
    int64_t first = 0;  // logits are wanted of tokens[first] and all after it
  };
  // Evaluates texts from position 0, all in one pass, and returns their logits one text after
  // another; on the CPU they have the same bits as eval_all() gives for each text alone. All texts
  // together may have prefill_chunk tokens and n_pages pages. Nothing is cached afterwards: pos()
  // is 0. Throws Numeric if a logit is not finite.
  std::span<const float> eval_texts(std::span<const Text> texts);
  // Does what score() does, for such texts.
  std::span<const double> score_texts(std::span<const Text> texts,
                                      std::span<const TokenId> targets);

  // Forgets what lies past the first n_tokens and returns how many are left: 0 if the attention
  // window has moved on and a page that the next token needs was given back (Sequence::truncate).
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
  std::vector<double> nll_;  // the last result of score() or score_texts()
};

}  // namespace minfer
