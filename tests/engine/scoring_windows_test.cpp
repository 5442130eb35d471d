#include "engine/scoring_windows.h"

#include "tests/engine/scoring_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

TEST(ScoringWindows, BosWhereTheTokenizerAddsOne) {
  const auto with = scoring_tokenizer(true), without = scoring_tokenizer(false);
  const std::string text = some_text(39);
  for (const Convention convention : {Convention::Gptq, Convention::HfStride}) {
    const ScoringOptions options = {.convention = convention, .ctx = 10, .stride = 10};
    const ScoringPlan plan = plan_scoring(text, *with, options);
    EXPECT_EQ(plan.bos, "first-only");
    EXPECT_EQ(plan.n_tokens, 40);
    EXPECT_EQ(plan.windows[0].tokens.front(), kBos);
    EXPECT_EQ(plan.windows[1].tokens.front(), text[9]);
    const ScoringPlan bare = plan_scoring(text, *without, options);
    EXPECT_EQ(bare.bos, "none");
    EXPECT_EQ(bare.windows[0].tokens.front(), text[0]);
  }
  const ScoringOptions options = {.convention = Convention::LlamaCpp, .ctx = 10};
  const ScoringPlan plan = plan_scoring(text, *with, options);
  EXPECT_EQ(plan.bos, "each-window");
  ASSERT_EQ(plan.windows.size(), 4u);
  for (const ScoringWindow& window : plan.windows) EXPECT_EQ(window.tokens.front(), kBos);
  EXPECT_EQ(plan.windows[1].tokens[1], text[10]);  // in place of a token, not before it
  const ScoringPlan bare = plan_scoring(text, *without, options);
  EXPECT_EQ(bare.bos, "none");
  EXPECT_EQ(bare.windows[1].tokens.front(), text[10]);
}

TEST(ScoringWindows, TextFormFollowsTheConvention) {
  const auto tokenizer = scoring_tokenizer(false);
  const std::string text =
      "c\n \n \nd\n";  // joined, seven line ends stand together; two are a token
  const auto n_tokens = [&](const ScoringOptions& options) {
    return plan_scoring(text, *tokenizer, options).n_tokens;
  };
  EXPECT_EQ(n_tokens({.convention = Convention::Gptq, .ctx = 4}), 7);
  EXPECT_EQ(n_tokens({.convention = Convention::Gptq, .ctx = 4, .raw_text = true}), 8);
  EXPECT_EQ(plan_scoring(text, *tokenizer, {.ctx = 4}).text_form, "hf-join");
  EXPECT_EQ(plan_scoring(text, *tokenizer, {.ctx = 4, .raw_text = true}).text_form, "raw");
  const ScoringPlan pages =
      plan_scoring(" = A = \nx", *tokenizer, {.convention = Convention::LmEval, .ctx = 4});
  EXPECT_EQ(pages.text_form, "pages");
  EXPECT_EQ(pages.n_tokens, std::ssize(std::string_view(" = A =\nx")));
  EXPECT_EQ(pages.n_words, 5);
  EXPECT_EQ(pages.n_bytes, 9);
  EXPECT_EQ(pages.windows.front().tokens.front(), kBos);  // also where the tokenizer adds none
}

TEST(ScoringWindows, RefusesWhatCannotBe) {
  const auto tokenizer = scoring_tokenizer(false);
  const auto expect_refused = [&](ErrorKind kind, const char* words, size_t n_chars,
                                  const ScoringOptions& options) {
    expect_error(kind, words, [&] { plan_scoring(some_text(n_chars), *tokenizer, options); });
  };
  expect_refused(ErrorKind::Input, "9 tokens, expected 10", 9, {.ctx = 10});
  expect_refused(ErrorKind::Input, "19 tokens, expected 20", 19,
                 {.convention = Convention::LlamaCpp, .ctx = 10});
  expect_refused(ErrorKind::Input, "1 tokens, expected 2", 1, {.convention = Convention::HfStride});
  expect_refused(ErrorKind::Input, "0 tokens, expected 1", 0, {.convention = Convention::LmEval});
  expect_refused(ErrorKind::Usage, "a stride of 11 tokens", 20,
                 {.convention = Convention::HfStride, .ctx = 10, .stride = 11});
  expect_refused(ErrorKind::Usage, "windows of 1 tokens, expected 2", 20, {.ctx = 1});
  expect_refused(ErrorKind::Usage, "expected 4", 20,
                 {.convention = Convention::LlamaCpp, .ctx = 3});
  expect_refused(ErrorKind::Usage, "pages", 20,
                 {.convention = Convention::LmEval, .raw_text = true});
}

// Counts that others published for this text and tokenizer.
TEST(ScoringWindows, CountsOfLlama2OnWikitext2) {
  const auto tokenizer_path = data_dir() / "llama2-tokenizer/tokenizer.model";
  const auto text_path = data_dir() / "wikitext-2-raw/wiki.test.raw";
  MINFER_NEEDS(tokenizer_path);
  MINFER_NEEDS(text_path);
  const auto tokenizer = load_tokenizer(tokenizer_path);
  const std::string text = read_file(text_path);
  const auto plan = [&](Convention convention, int64_t ctx) {
    return plan_scoring(text, *tokenizer, {.convention = convention, .ctx = ctx});
  };
  const auto n_scored = [](const ScoringPlan& made) {
    int64_t n = 0;
    for (const ScoringWindow& window : made.windows) {
      n += std::ssize(window.tokens) - window.first_scored;
    }
    return n;
  };
  const ScoringPlan gptq = plan(Convention::Gptq, 2048);
  EXPECT_EQ(gptq.n_tokens, 341469);
  EXPECT_EQ(gptq.windows.size(), 166u);
  EXPECT_EQ(n_scored(gptq), 339802);
  const ScoringPlan strided = plan(Convention::HfStride, 4096);
  EXPECT_EQ(strided.windows.size(), 660u);
  EXPECT_EQ(n_scored(strided), 341468);
  const ScoringPlan pages = plan(Convention::LmEval, 4096);
  EXPECT_EQ(pages.n_pages, 62);
  EXPECT_EQ(pages.n_words, 241335);
  EXPECT_EQ(pages.n_tokens, 322149);  // SentencePiece on the same pages, from Python
  EXPECT_EQ(pages.windows.size(), 113u);
  EXPECT_EQ(n_scored(pages), 322149);
}

}  // namespace
}  // namespace minfer::test
