#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "engine/session.h"

namespace minfer {

enum class StopReason { Eos, Stop, Length, Context, Interrupted };

struct GenerateOptions {
  int64_t n_predict = 128;  // -1: to end of text or context; 0: evaluate the prompt only
  SamplerOptions sampler;
  std::vector<std::string> stop;  // the text ends before the first of these strings
  std::vector<TokenId> end_ids;   // more tokens that end the text (a chat's end of turn)
  bool ignore_eos = false;
  bool drafts = false;        // decode with drafts of prompt lookup: DraftDecoder
  int64_t n_logprobs = 0;     // best tokens to report at each step; 0: none
  bool show_special = false;  // control tokens appear in the text
  // Checked before each step: if true, generation ends as Interrupted, as it does when the backend
  // is cancelled. May be null.
  const std::atomic<bool>* interrupted = nullptr;
};

struct GeneratedToken {
  TokenId id;
  // The text that this token made certain: whole characters, without any part of a stop string.
  std::string text;
  double logprob = 0;  // with n_logprobs > 0
  std::vector<TokenLogprob> top;
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;        // without the end token
  std::vector<GeneratedToken> steps;  // with n_logprobs > 0, one for each of `tokens`
  StopReason stop_reason = StopReason::Length;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // prompt tokens that the KV cache already held
  // decode_seconds: from the first token to the last, with what the caller does with each; of texts
  // side by side, the passes and choices of their steps alone.
  double prefill_seconds = 0, first_token_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;                         // forward passes in that time
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // with `drafts`

  int64_t evaluated_tokens() const { return prompt_tokens - reused_tokens; }
  // That decode_seconds covers: one for each pass, and those of drafts.
  int64_t decoded_tokens() const { return decode_steps + accepted_tokens; }
};

const char* stop_reason_name(
    StopReason reason);  // "eos", "stop", "length", "context", "interrupted"

// Called once for each generated token, and once at the end with id -1 where text was held back
// until then. May be null.
using OnToken = std::function<void(const GeneratedToken&)>;

// Generates text from a prompt. The tokens that the session already holds must be a prefix of the
// prompt that leaves at least one token; they are not evaluated again. Afterwards the session's
// cache holds the first pos() tokens of the sequence of prompt and generated tokens.
GenerateResult generate(Session& session, std::span<const TokenId> prompt,
                        const GenerateOptions& options, const OnToken& on_token);

}  // namespace minfer
