#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/decode_plan.h"
#include "models/model.h"

namespace minfer {

struct SessionOptions {
  int64_t max_seq_len = 0;      // capacity of the KV cache; 0: the trained context
  int64_t prefill_chunk = 0;    // tokens in one forward pass; 0: the backend's own choice
  DType kv_dtype = DType::F16;  // or F32, or U8: 8 bits with a scale per head and position
  bool fused_decode = true;     // by the backend's plan, where it has one
  // eval_sequences will be called: a pass may have more tokens than one sequence.
  bool several_sequences = false;
  // eval_all, score or the same of sequences will be called: there is room for their logits from
  // the beginning.
  bool all_logits = false;
  // Called as eval goes through several tokens, with the blocks done and in all. May be null.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// What such a session takes of the backend's memory, to be known before the weights are read.
// Throws Usage where the model cannot have it.
SessionMemory session_memory(const ModelSpec& spec, const Backend& backend,
                             const SessionOptions& options);

// Prefill and decode of one sequence: the KV cache and every activation buffer, allocated here and
// never again. The model and backend outlive it.
class Session {
 public:
  Session(const Model& model, Backend& backend, const SessionOptions& options);
  ~Session();

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

  struct Sequence {
    std::span<const TokenId> tokens;
    int64_t first = 0;  // with the logits of tokens[first] and all after it
  };
  // Evaluates sequences from position 0, all in one pass, and returns their logits one after
  // another, on the CPU the same bits as eval_all gives for each alone. All tokens together <=
  // prefill_chunk.
  // Nothing is cached afterwards: pos() is 0. Throws Numeric where a logit is not finite.
  std::span<const float> eval_sequences(std::span<const Sequence> sequences);

  // score() for such sequences.
  std::span<const double> score_sequences(std::span<const Sequence> sequences,
                                          std::span<const TokenId> targets);

  void truncate(int64_t n_tokens);  // forgets what lies past the first n_tokens
  int64_t pos() const { return pos_; }
  int64_t max_seq_len() const { return options_.max_seq_len; }
  int64_t prefill_chunk() const { return options_.prefill_chunk; }
  int64_t kv_bytes() const;
  const Model& model() const { return model_; }

 private:
  struct State;
  void require_fitting(std::span<const TokenId> tokens) const;
  void require_one_pass(int64_t n_tokens) const;
  DecodePlan* decode_plan();  // null where the backend has none
  std::span<const float> decode(TokenId token);
  void report_progress(int64_t n_tokens);  // of the eval that begins
  void pass_without_logits(std::span<const TokenId> tokens);
  // Logits on the device, all finite: of one sequence, and of several.
  Tensor finish(std::span<const TokenId> tokens, Tensor x, Tensor logits);
  Tensor logits_of(std::span<const TokenId> tokens, int64_t first);
  Tensor logits_of(std::span<const Sequence> sequences);
  std::span<const double> nll_of(Tensor logits, std::span<const TokenId> targets);
  Tensor all_logits(int64_t n_rows);
  std::span<const float> fetch(Tensor device);  // F32; valid until the next call
  // `row` of the tokens is the first whose result is not finite.
  [[noreturn]] void throw_non_finite(std::span<const TokenId> tokens, int64_t row);

  const Model& model_;
  Backend& backend_;
  SessionOptions options_;
  int64_t pos_ = 0;
  std::unique_ptr<State> state_;
};

}  // namespace minfer
