#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"

namespace minfer {

// A logit bias that rules a token out.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

struct SamplerOptions {
  float temperature = 0.8f;  // 0: argmax, ties to the lower id
  int64_t top_k = 40;        // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  float repeat_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int64_t repeat_last_n = 64;  // last tokens that penalties count, prompt included; -1: all, 0: off
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;

  bool has_penalties() const {
    return repeat_last_n != 0 &&
           (repeat_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0);
  }
};

struct TokenLogprob {
  TokenId id;
  double logprob;  // natural log of the model's own probability, before penalties and sampling
};

// Chooses the next token: applies logit bias, penalties, top-k, top-p and min-p in this order, and
// the temperature last. The draw is a pure function of (logits, history, options, step).
class Sampler {
 public:
  // Throws Usage for an option out of range.
  Sampler(const SamplerOptions& options, int64_t vocab_size);

  //   logits   [vocab_size] f32; throws Numeric if one is not finite
  //   history  prompt and output so far, for the penalties
  //   step     number of tokens generated before this one
  TokenId sample(std::span<const float> logits, std::span<const TokenId> history, uint64_t step);

 private:
  std::span<const float> adjust(std::span<const float> logits, std::span<const TokenId> history);

  SamplerOptions options_;
  std::vector<float> adjusted_;                        // scratch
  std::vector<std::pair<float, TokenId>> candidates_;  // scratch
};

// The k most probable tokens with their log-probabilities, best first, ties to the lower id.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t k);
double logprob_of(std::span<const float> logits, TokenId id);

}  // namespace minfer
