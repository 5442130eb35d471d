#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/stop_matcher.h"
#include "kernels/decode_plan.h"
#include "models/tokenizer/tokenizer.h"

namespace minfer {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One text on its way from the prompt to its end, whoever evaluates its tokens.
class TextGeneration {
 public:
  // The model has a tokenizer; all outlive it but the prompt.
  TextGeneration(const Model& model, std::span<const TokenId> prompt,
                 const GenerateOptions& options, const OnToken& on_token);

  // The next token by the logits [vocab_size] of the one before.
  TokenId choose(std::span<const float> logits);
  // Takes the token that was chosen: the reason why the text ends with it, or none. The logits are
  // read where logprobs are asked for.
  std::optional<StopReason> accept(TokenId id, std::span<const float> logits);
  // Emits what was held back.
  GenerateResult finish(StopReason reason);

  // How a backend would choose all tokens behind the first: token i of the text has draw i, as
  // choose() has it, and first_draw is 1. None where the host has to look at logits, or the choice
  // depends on the tokens before.
  std::optional<DecodeSampling> decode_sampling() const;

  GenerateResult& result() { return result_; }  // its times are the caller's to fill in

 private:
  void emit(GeneratedToken token);
  // Rows of the embedding past the vocabulary are padding, and never chosen.
  std::span<const float> usable(std::span<const float> logits) const {
    return logits.first(static_cast<size_t>(model_.n_usable_tokens()));
  }

  const Model& model_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  const std::vector<TokenId> ends_;
  const SamplerOptions sampler_options_;
  Sampler sampler_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  std::vector<TokenId> history_;
  GenerateResult result_;
  Stopwatch since_start_;
};

}  // namespace minfer
