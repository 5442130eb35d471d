#include "engine/scoring_windows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/wikitext.h"
#include "kernels/base/error.h"

namespace minfer {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::array<std::pair<Convention, const char*>, 4> kNames = {
    {{Convention::Gptq, "gptq"},
     {Convention::LlamaCpp, "llamacpp"},
     {Convention::HfStride, "hf-stride"},
     {Convention::LmEval, "lm-eval"}}};

void require_tokens(int64_t n_tokens, int64_t needed) {
  MINFER_REQUIRE(Input, n_tokens >= needed, "the text has ", n_tokens, " tokens, expected ", needed,
                 " or more");
}

Tokens slice(const Tokens& tokens, int64_t begin, int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

std::vector<ScoringWindow> windows_side_by_side(const Tokens& tokens, int64_t ctx,
                                                int64_t first_scored) {
  std::vector<ScoringWindow> windows;
  for (int64_t begin = 0; begin + ctx <= std::ssize(tokens); begin += ctx) {
    windows.push_back({slice(tokens, begin, begin + ctx), first_scored});
  }
  return windows;
}

std::vector<ScoringWindow> strided_windows(const Tokens& tokens, int64_t ctx, int64_t stride) {
  std::vector<ScoringWindow> windows;
  const int64_t n_tokens = std::ssize(tokens);
  int64_t scored_end = 0;
  for (int64_t begin = 0; scored_end < n_tokens; begin += stride) {
    const int64_t end = std::min(begin + ctx, n_tokens);
    // No window predicts its own first token.
    windows.push_back({slice(tokens, begin, end), std::max<int64_t>(1, scored_end - begin)});
    scored_end = end;
  }
  return windows;
}

// `tokens` begins with the prefix token, which is not of the text. A window evaluates ctx tokens
// and predicts ctx: the first after the prefix, the next after one token of context, the last after
// as much as fits.
void add_rolling_windows(std::vector<ScoringWindow>& windows, const Tokens& tokens, int64_t ctx) {
  const int64_t n_tokens = std::ssize(tokens);
  for (int64_t begin = 1; begin < n_tokens; begin += ctx) {
    const int64_t end = std::min(begin + ctx, n_tokens);
    const int64_t first = std::max<int64_t>(0, end - ctx - 1);
    windows.push_back({slice(tokens, first, end), begin - first});
  }
}

void plan_pages(ScoringPlan& plan, std::string_view text, const Tokenizer& tokenizer, int64_t ctx) {
  const TokenId prefix = prefix_token(tokenizer);
  for (std::string& page : wikitext_pages(with_universal_newlines(text))) {
    ++plan.n_pages;
    plan.n_words += count_words(page);
    plan.n_bytes += std::ssize(page);
    Tokens tokens = tokenizer.encode(detokenized(std::move(page)), {.add_bos = false});
    plan.n_tokens += std::ssize(tokens);
    tokens.insert(tokens.begin(), prefix);
    add_rolling_windows(plan.windows, tokens, ctx);
  }
  require_tokens(plan.n_tokens, 1);
}

}  // namespace

Convention convention_by_name(std::string_view name) {
  const auto found = std::ranges::find(
      kNames, name, [](const auto& entry) { return std::string_view(entry.second); });
  MINFER_REQUIRE(Usage, found != kNames.end(), "no convention ", shortened(name));
  return found->first;
}

const char* convention_name(Convention convention) {
  return std::ranges::find(kNames, convention, &decltype(kNames)::value_type::first)->second;
}

int64_t default_ctx(Convention convention) {
  switch (convention) {
    case Convention::Gptq:
      return 2048;
    case Convention::LlamaCpp:
      return 512;
    case Convention::HfStride:
    case Convention::LmEval:
      break;
  }
  return 0;
}

TokenId prefix_token(const Tokenizer& tokenizer) {
  const TokenId prefix = tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eos();
  MINFER_REQUIRE(Input, prefix >= 0, "the tokenizer has neither BOS nor EOS to begin a text with");
  return prefix;
}

ScoringPlan plan_scoring(std::string_view text, const Tokenizer& tokenizer,
                         const ScoringOptions& options) {
  const Convention convention = options.convention;
  const int64_t ctx = options.ctx;
  ScoringPlan plan;
  if (convention == Convention::LmEval) {
    MINFER_REQUIRE(Usage, ctx >= 1, "windows of ", ctx, " tokens, expected 1 or more");
    MINFER_REQUIRE(Usage, !options.raw_text, "lm-eval takes pages and not the raw text");
    plan.text_form = "pages";
    plan.bos = "each-page";
    plan_pages(plan, text, tokenizer, ctx);
    return plan;
  }

  const int64_t min_ctx = convention == Convention::LlamaCpp ? 4 : 2;
  MINFER_REQUIRE(Usage, ctx >= min_ctx, "windows of ", ctx, " tokens, expected ", min_ctx,
                 " or more");
  const bool joined = convention != Convention::LlamaCpp && !options.raw_text;
  const Tokens tokens = joined ? tokenizer.encode(hf_join(with_universal_newlines(text)), {})
                               : tokenizer.encode(text, {});
  plan.text_form = joined ? "hf-join" : "raw";
  plan.n_tokens = std::ssize(tokens);
  plan.bos = tokenizer.adds_bos() ? "first-only" : "none";
  switch (convention) {
    case Convention::Gptq:
      require_tokens(plan.n_tokens, ctx);
      plan.windows = windows_side_by_side(tokens, ctx, 1);
      break;
    case Convention::LlamaCpp:
      require_tokens(plan.n_tokens, 2 * ctx);
      plan.windows = windows_side_by_side(tokens, ctx, ctx / 2 + 1);
      if (!tokenizer.adds_bos()) break;
      plan.bos = "each-window";
      for (ScoringWindow& window : plan.windows) window.tokens.front() = tokenizer.bos();
      break;
    case Convention::HfStride:
      MINFER_REQUIRE(Usage, options.stride >= 1 && options.stride <= ctx, "a stride of ",
                     options.stride, " tokens, expected 1 to the window of ", ctx);
      require_tokens(plan.n_tokens, 2);
      plan.windows = strided_windows(tokens, ctx, options.stride);
      break;
    case Convention::LmEval:
      break;
  }
  return plan;
}

}  // namespace minfer
