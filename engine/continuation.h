#pragma once

#include <string_view>
#include <vector>

#include "engine/session.h"

namespace minfer {

// A continuation after a context, as token ids; neither is empty.
struct ContinuationTokens {
  std::vector<TokenId> context, continuation;
};

// As lm-evaluation-harness splits: white space at the end of the context goes over to the
// continuation, both are encoded as one text, and the context's tokens are as many as it has alone.
// A context without tokens becomes BOS, or EOS where there is none. Throws Input where the
// continuation has no token of its own.
ContinuationTokens encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                       std::string_view continuation);

struct ContinuationScore {
  double logprob = 0;      // natural log of the continuation's probability after the context
  bool is_greedy = false;  // each of its tokens is the most probable one, ties to the lower id
  int64_t n_tokens = 0;    // of the continuation
};

// Scores continuations one after another in one session; what a context shares with the text
// before it is not evaluated again.
class ContinuationScorer {
 public:
  // The session must be empty, and be used by nobody else.
  explicit ContinuationScorer(Session& session) : session_(session) {}

  // A context that does not fit loses its first tokens. Throws Input where the continuation alone
  // does not fit.
  ContinuationScore score(const ContinuationTokens& tokens);

 private:
  Session& session_;
  std::vector<TokenId> evaluated_;
};

}  // namespace minfer
