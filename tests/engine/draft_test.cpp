#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "engine/draft_decoder.h"
#include "engine/generate.h"
#include "models/synthetic.h"
#include "tests/engine/toy_tokenizer.h"
#include "tests/support/fixture_models.h"
#include "tests/support/half_backend.h"
#include "tests/support/specs.h"

namespace minfer::test {
namespace {

std::vector<TokenId> draft_after(const std::vector<TokenId>& text, int64_t most, double row_cost,
                                 double at_once = 1) {
  PromptLookup lookup;
  for (const TokenId token : text) lookup.push(token);
  return lookup.draft(most, {at_once, row_cost});
}
using Ids = std::vector<TokenId>;

TEST(PromptLookup, ForeseesWhatFollowedTheSameTokens) {
  const Ids text = {1, 2, 3, 4, 5, 6, 9, 8, 1, 2, 3};
  EXPECT_EQ(draft_after(text, 2, 0.1), (Ids{4, 5}));
  EXPECT_EQ(draft_after(text, 0, 0.1), Ids());
  EXPECT_EQ(draft_after(text, 15, 10), Ids());              // it would not pay
  EXPECT_EQ(draft_after(text, 2, 0.1, 2.5), Ids());         // nor so
  EXPECT_EQ(draft_after({1, 2, 3, 4, 1, 2}, 4, 0), Ids());  // two tokens agree
  EXPECT_EQ(draft_after({1, 2, 3, 4, 9, 2, 3}, 4, 0), Ids());
  EXPECT_EQ(draft_after({1, 2}, 4, 0), Ids());
}

TEST(PromptLookup, TakesTheLastPlace) {
  EXPECT_EQ(draft_after({1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3}, 1, 0), Ids{5});
}

// Behind the end of the text a repetition goes on.
TEST(PromptLookup, GoesOnWithItself) {
  EXPECT_EQ(draft_after({7, 8, 7, 8, 7, 8, 7}, 5, 0), (Ids{8, 7, 8, 7, 8}));
}

// The longer it has been right, the longer is the draft; after mistakes it is shorter.
TEST(PromptLookup, DraftsAsMuchAsPays) {
  PromptLookup right, wrong;
  Ids text;
  for (TokenId i = 0; i < 60; ++i) text.push_back(i);
  for (const TokenId token : text) right.push(token), wrong.push(token);
  size_t before = 0;
  for (TokenId i = 0; i < 30; ++i) {
    right.push(i);
    const size_t n = right.draft(15, {1, 0.3}).size();
    EXPECT_GE(n, before) << i;
    before = n;
  }
  EXPECT_EQ(before, 15u);
  // The same three tokens, and something else behind them each time.
  for (TokenId i = 0; i < 30; ++i) {
    for (const TokenId token : {1, 2, 3, 100 + i}) wrong.push(token);
  }
  for (const TokenId token : {1, 2, 3}) wrong.push(token);
  EXPECT_EQ(wrong.draft(15, {1, 0.3}), Ids());
}

TEST(PassCost, IsALineThroughWhatWasMeasured) {
  PassCostFit fit(PassCost(), 15);
  for (const int64_t n : {1, 5, 15}) EXPECT_NEAR(fit.fitted().of(n), 1 + 0.5 * double(n), 1e-9);
  EXPECT_EQ(fit.fitted().of(0), 1);
  for (int i = 0; i < 400; ++i) fit.add(1 + i % 7, 1.7 + 0.3 * (1 + i % 7));
  for (const int64_t n : {1, 5, 15}) EXPECT_NEAR(fit.fitted().of(n), 1.7 + 0.3 * double(n), 1e-6);
  // Drafts of one length alone, that cost less than a pass at last.
  for (int i = 0; i < 400; ++i) fit.add(4, 3);
  EXPECT_NEAR(fit.fitted().of(4), 3, 1e-6);
  for (int i = 0; i < 400; ++i) fit.add(4, 0.5);
  EXPECT_NEAR(fit.fitted().of(4), 0.5, 1e-6);
  EXPECT_EQ(fit.fitted().row, 0);
}

// Texts with drafts have the tokens and log-probabilities of those without, whatever the draft
// was, greedy and drawn, also where layers have windows, penalties look back, and a cache of 8 bits
// keeps what was evaluated.
class Drafts : public testing::TestWithParam<std::string> {};

TEST_P(Drafts, ChangeNoTextAndNoBit) {
  const auto backend = make_cpu_backend();
  const FixtureModel fixture = fixture_model(GetParam());
  Model model = load_model(fixture.path, *backend);
  std::vector<std::string> words;
  for (int64_t i = 0; i < model.spec.vocab_size; ++i) words.push_back(cat(' ', i));
  model.tokenizer = std::make_unique<ToyTokenizer>(std::move(words));
  // A prompt that repeats itself, and a text that is made of the same four tokens.
  std::vector<TokenId> prompt;
  while (std::ssize(prompt) < 30) prompt.insert(prompt.end(), {5, 6, 7, 8, 5, 6, 7});
  int64_t n_accepted = 0, n_drafted = 0;
  for (const DType kv_dtype : {DType::F16, DType::U8}) {
    for (const float temperature : {0.0f, 0.7f}) {
      for (const float penalty : {1.0f, 1.3f}) {
        for (const int64_t n_predict : {40, -1}) {
          const int64_t context = std::min<int64_t>(model.spec.trained_seq_len, 100);
          GenerateOptions options;
          options.n_predict = n_predict;
          options.n_logprobs = 1;
          options.ignore_eos = true;
          options.sampler.temperature = temperature;
          options.sampler.top_k = 3;
          options.sampler.repeat_penalty = penalty;
          for (TokenId id = 5; id < 9; ++id) options.sampler.logit_bias.emplace_back(id, 20.0f);
          const auto run = [&](bool drafts) {
            options.drafts = drafts;
            Session session(model, *backend, {.max_seq_len = context, .kv_dtype = kv_dtype});
            const std::span<const TokenId> begin =
                std::span(prompt).first(std::min(prompt.size(), size_t(context) / 2));
            GenerateResult result = generate(session, begin, options, nullptr);
            EXPECT_LE(session.pos(), std::ssize(begin) + std::ssize(result.tokens));
            return std::pair(std::move(result), session.pos());
          };
          const auto [plain, plain_pos] = run(false);
          const auto [drafted, drafted_pos] = run(true);
          EXPECT_EQ(drafted.tokens, plain.tokens);
          EXPECT_EQ(drafted.stop_reason, plain.stop_reason);
          EXPECT_EQ(drafted_pos, plain_pos);
          ASSERT_EQ(drafted.steps.size(), plain.steps.size());
          for (size_t i = 0; i < plain.steps.size(); ++i) {
            EXPECT_EQ(drafted.steps[i].logprob, plain.steps[i].logprob) << i;
          }
          EXPECT_EQ(drafted.decoded_tokens(), plain.decode_steps);
          EXPECT_EQ(plain.drafted_tokens, 0);
          n_accepted += drafted.accepted_tokens;
          n_drafted += drafted.drafted_tokens;
        }
      }
    }
  }
  EXPECT_GT(n_accepted, 0);
  EXPECT_GT(n_drafted, n_accepted);  // some were wrong, too
}

constexpr int64_t kVocabOfPlan = 16;
ModelSpec small_spec() {
  return llama_spec({.dim = 32,
                     .ffn_dim = 32,
                     .n_heads = 2,
                     .n_kv_heads = 2,
                     .head_dim = 16,
                     .vocab_size = kVocabOfPlan,
                     .trained_seq_len = 200});
}
// A step that takes 1 ms, but 50 ms when it has so many rows for the first time, as CUDA graphs
// that must be made. Behind token 5 comes 6, then 7, 8 and 5 again.
struct SlowAtFirst final : RowsPlan {
  explicit SlowAtFirst(int64_t& n_choices) : n_choices_(n_choices) {}
  int64_t max_rows() const override { return 8; }
  std::span<const float> step(std::span<const DecodeRow> rows) override {
    return step_of_sequence(rows);
  }
  std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) override {
    const bool is_first = rows.size() > 1 && !std::exchange(has_run_[rows.size()], true);
    std::this_thread::sleep_for(std::chrono::milliseconds(is_first ? 50 : 1));
    logits_.assign(rows.size() * 16, 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) {
      logits_[i * 16 + 5 + size_t(rows[i].token - 4) % 4] = 1;
    }
    return logits_;
  }
  std::span<const TokenId> choose(std::span<const DecodeRow>,
                                  std::span<const DecodeSampling>) override {
    return {};
  }
  std::span<const TokenId> choose_of_sequence(std::span<const DecodeRow> rows,
                                              const DecodeSampling& sampling) override {
    EXPECT_EQ(sampling.temperature, 0.5f);
    // Behind a prompt of two tokens, draw 1 is for the token behind the first one of the text.
    EXPECT_EQ(int64_t(sampling.first_draw), rows.front().pos - 1);
    ++n_choices_;
    step_of_sequence(rows);
    chosen_.clear();
    for (const DecodeRow& row : rows) chosen_.push_back(5 + (row.token - 4) % 4);
    return chosen_;
  }
  int64_t& n_choices_;  // passes whose tokens it has chosen
  std::array<bool, 9> has_run_{};
  std::vector<float> logits_;
  std::vector<TokenId> chosen_;
};
struct SlowAtFirstBackend final : HalfBackend {
  SlowAtFirstBackend() : HalfBackend(DType::F16) {}
  int64_t n_choices = 0;
  int64_t preferred_decode_rows() const override { return 8; }
  std::optional<int64_t> free_device_bytes() const override { return 1 << 30; }
  std::unique_ptr<RowsPlan> plan_rows(const DecodeModel&) override {
    return std::make_unique<SlowAtFirst>(n_choices);
  }
};

// On a card a few passes tell that drafts cost next to nothing, however long it took to make the
// steps. No pass has more rows than the step takes. Who chooses the tokens makes no difference.
TEST(DraftDecoder, DoesNotCountTheMakingOfAStep) {
  SlowAtFirstBackend backend;
  const Model model = make_synthetic_model(small_spec(), DType::F16, backend, 1);
  EXPECT_EQ(most_draft_tokens(backend), 7);
  const DecodeSampling by_plan{.temperature = 0.5f, .first_draw = 1, .banned = {}};
  for (const auto& sampling : {std::optional<DecodeSampling>(), std::optional(by_plan)}) {
    Session session(model, backend, {});
    const Ids prompt = {1, 2};  // nothing is drafted until the text repeats itself
    session.eval(prompt);
    DraftDecoder decoder(session, prompt, sampling);
    TokenId token = 5;
    for (int i = 0; i < 150; ++i) {
      const auto [chosen, logits] = decoder.eval(token, -1);
      ASSERT_EQ(chosen.has_value(), sampling.has_value());
      ASSERT_EQ(logits.empty(), chosen.has_value());
      const TokenId next =
          chosen ? *chosen : TokenId(std::ranges::max_element(logits) - logits.begin());
      ASSERT_EQ(next, token == 8 ? 5 : token + 1);
      token = next;
    }
    EXPECT_EQ(decoder.passes() + decoder.accepted(), 150);
    EXPECT_LT(decoder.passes(), 40);
    EXPECT_GT(decoder.accepted(), 110);
  }
}

// A drawn text whose tokens the backend chooses: the plan checks the draws. With penalties the host
// chooses, by logits.
TEST(DraftDecoder, GeneratesATextThatTheBackendChooses) {
  SlowAtFirstBackend backend;
  Model model = make_synthetic_model(small_spec(), DType::F16, backend, 1);
  std::vector<std::string> words;
  for (int64_t i = 0; i < kVocabOfPlan; ++i) words.push_back(cat(' ', i));
  model.tokenizer = std::make_unique<ToyTokenizer>(std::move(words));
  GenerateOptions options;
  options.n_predict = 60;
  options.drafts = true;
  options.ignore_eos = true;
  options.sampler.temperature = 0.5f;
  options.sampler.logit_bias.emplace_back(4, kNever);
  for (const float penalty : {1.0f, 1.1f}) {
    options.sampler.repeat_penalty = penalty;
    Session session(model, backend, {});
    const GenerateResult result = generate(session, Ids{1, 2}, options, nullptr);
    ASSERT_EQ(result.tokens.size(), 60u);
    EXPECT_EQ(std::ssize(result.tokens), 1 + result.decoded_tokens());
    EXPECT_EQ(std::exchange(backend.n_choices, 0), penalty == 1 ? result.decode_steps : 0);
    if (penalty != 1) continue;
    for (size_t i = 1; i < result.tokens.size(); ++i) {
      EXPECT_EQ(result.tokens[i], 5 + (result.tokens[i - 1] - 4) % 4) << i;
    }
    EXPECT_GT(result.accepted_tokens, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Drafts,
                         testing::Values("models/llama-mqa-f16", "models/mistral-window-f16",
                                         "models/gpt2-f32", "models/qwen3-head16-bf16"),
                         fixture_test_name);

}  // namespace
}  // namespace minfer::test
