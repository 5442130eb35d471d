#include "tests/kernels/cuda/step_models.h"

// The persistent step of two tokens of a sequence.
namespace minfer::test {
namespace {

constexpr int64_t kSteps = 2;

cuda::PersistentStep::Tuning tuning_of(const StepCase& c) {
  // In the first step a block has one query head of those that share keys and values.
  return {.few_positions = c.n_heads > c.n_kv_heads ? c.pos + 1 : 0,
          .elements_alone = 128 * c.head_dim,
          .n_tokens = 2};
}

const StepCase& case_named(std::string_view name) {
  return *std::ranges::find(kCases, name, &StepCase::name);
}

// What a step leaves of its logits.
std::vector<float> run(cuda::CapturedStep& step, std::span<const DecodeRow> rows) {
  const std::span<const float> logits = step.run(rows);
  return {logits.begin(), logits.end()};
}

// Several query heads in a block with an F16 cache, over two pages; the last positions; and more
// columns of down than are staged at once, of three tiles in a block, which are two groups.
const Format kU4 = of_group(DType::U4, DType::F16, false, 32);
const StepCase kGrouped = {"U4Grouped", kU4, DType::F16, 64, 192, 8, 2, 64, kPagePositions - 1};
const StepCase kLast = {"U4Last", kU4, DType::F16, 64, 96, 2, 2, 64, kContext - 2};
const StepCase kDownInParts = {"U4DownInParts",
                               of_group(DType::U4, DType::F16, false, 64),
                               DType::U8,
                               256,
                               8256,
                               4,
                               2,
                               64,
                               127};
const StepCase kU8DownInParts = {"U8DownInParts",
                                 of_group(DType::U8, DType::F16, false, kRow),
                                 DType::F16,
                                 64,
                                 4672,
                                 2,
                                 2,
                                 64,
                                 2};

class TwoTokens : public testing::TestWithParam<StepCase> {};

// Each token as by itself: it sees the keys and values of those in front of it and none behind it.
TEST_P(TwoTokens, AreComputedAtOnce) {
  const StepCase& c = GetParam();
  SmallModel small(c);
  emulated::g_static_shared_bytes = 40 << 10;
  const auto two = cuda::PersistentStep::make(stream(), DType::F16, small.model(), tuning_of(c));
  ASSERT_TRUE(two);
  for (int64_t i = 0; i < kSteps; ++i) {
    const int64_t pos = c.pos + 2 * i;
    if (pos + 2 > kContext) break;
    const DecodeRow rows[] = {{TokenId(i * 67 % kVocab), pos, kPages},
                              {TokenId((i * 31 + 5) % kVocab), pos + 1, kPages}};
    const std::vector<float> logits = run(*two, rows);
    ASSERT_EQ(std::ssize(logits), 2 * kVocab);
    for (int64_t t = 0; t < 2; ++t) {
      const std::span<const float> own(logits.data() + t * kVocab, kVocab);
      const double error =
          error_of(std::vector(own.begin(), own.end()), small.logits(rows[t].token, rows[t].pos));
      EXPECT_LE(error, kMostError) << "step " << i << ", token " << t;
    }
    EXPECT_EQ(run(*two, rows), logits) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, TwoTokens,
                         testing::Values(case_named("U4"), case_named("FewRows"),
                                         case_named("Int4U8Output"), case_named("U8InParts"),
                                         case_named("U4QkvInRounds"), case_named("U8InRounds"),
                                         case_named("U4ManyColumns"), kGrouped, kLast, kDownInParts,
                                         kU8DownInParts),
                         [](const auto& info) { return info.param.name; });

TEST(TwoTokensOf, FloatsMixesAndOtherBlocksAreNotThere) {
  for (const char* name : {"F16", "U8F16Output", "Qwen", "Q4KM", "Gemma2"}) {
    SmallModel small(case_named(name));
    EXPECT_FALSE(cuda::PersistentStep::make(stream(), DType::F16, small.model(),
                                            tuning_of(case_named(name))))
        << name;
  }
}

}  // namespace
}  // namespace minfer::test
