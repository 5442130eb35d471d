#include "engine/continuation.h"

#include <algorithm>
#include <string>

#include "engine/sampler.h"
#include "engine/scoring_windows.h"
#include "engine/white_space.h"

namespace minfer {

ContinuationTokens encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                       std::string_view continuation) {
  const std::string whole = std::string(context).append(continuation);
  ContinuationTokens tokens;
  tokens.context = tokenizer.encode(without_trailing_space(context), {});
  std::vector<TokenId> ids = tokenizer.encode(whole, {});
  const size_t n_context = std::min(tokens.context.size(), ids.size());
  tokens.continuation.assign(ids.begin() + static_cast<ptrdiff_t>(n_context), ids.end());
  MINFER_REQUIRE(Input, !tokens.continuation.empty(), "the continuation ", shortened(continuation),
                 " has no token of its own");
  if (tokens.context.empty()) tokens.context = {prefix_token(tokenizer)};
  return tokens;
}

ContinuationScore ContinuationScorer::score(const ContinuationTokens& tokens) {
  const int64_t n_continuation = std::ssize(tokens.continuation), limit = session_.max_seq_len();
  MINFER_REQUIRE(Input, n_continuation <= limit, "the continuation has ", n_continuation,
                 " tokens, the context holds ", limit);
  const int64_t n_rows = session_.model().spec.vocab_size;
  for (const TokenId id : tokens.continuation) {
    MINFER_REQUIRE(Input, id < n_rows, "token ", id, " of the continuation has no logit: the ",
                   "embedding has ", n_rows, " rows");
  }
  std::vector<TokenId> ids = tokens.context;
  ids.insert(ids.end(), tokens.continuation.begin(), tokens.continuation.end());
  const int64_t surplus = std::ssize(ids) - 1 - limit;  // the last token is not evaluated
  if (surplus > 0) ids.erase(ids.begin(), ids.begin() + surplus);
  const int64_t n_context = std::ssize(ids) - n_continuation;

  const auto differ = std::ranges::mismatch(ids, evaluated_).in1;
  // The context's last token gives the logits of the first token that is scored.
  const int64_t n_kept =
      session_.truncate(std::min({differ - ids.begin(), n_context - 1, session_.pos()}));
  evaluated_.assign(ids.begin(), ids.end() - 1);

  ContinuationScore result{.logprob = 0, .is_greedy = true, .n_tokens = n_continuation};
  const auto vocab_size = static_cast<size_t>(session_.model().spec.vocab_size);
  const int64_t chunk = session_.prefill_chunk();
  for (int64_t begin = n_kept; begin < std::ssize(evaluated_); begin += chunk) {
    const int64_t n_tokens = std::min(chunk, std::ssize(evaluated_) - begin);
    const int64_t first = std::clamp<int64_t>(n_context - 1 - begin, 0, n_tokens);
    const auto logits = session_.eval_all({&evaluated_[size_t(begin)], size_t(n_tokens)}, first);
    for (int64_t i = first; i < n_tokens; ++i) {
      const auto row = logits.subspan(size_t(i - first) * vocab_size, vocab_size);
      const TokenId target = ids[size_t(begin + i + 1)];
      result.logprob += logprob_of(row, target);
      if (std::ranges::max_element(row) - row.begin() != target) result.is_greedy = false;
    }
  }
  return result;
}

}  // namespace minfer
