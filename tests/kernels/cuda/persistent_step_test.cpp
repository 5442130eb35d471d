#include "tests/kernels/cuda/step_models.h"

namespace minfer::test {
namespace {

// The second one reads what the first one has appended to the cache.
constexpr int64_t kSteps = 2;

class PersistentStep : public testing::TestWithParam<StepCase> {};

// Several blocks share the positions from 129 on, since the emulator takes long for more.
cuda::PersistentStep::Tuning tuning_of(const StepCase& c, int64_t few_positions) {
  return {.few_positions = few_positions, .elements_alone = 128 * c.head_dim};
}

void expect_steps(const StepCase& c, const cuda::PersistentStep::Tuning& tuning, bool has_room) {
  SmallModel small(c);
  emulated::g_static_shared_bytes = has_room ? 32 << 10 : emulated::kStaticSharedBytes;
  const auto plan = plan_of(small.model(), tuning);
  ASSERT_TRUE(plan);
  expect_two_steps(*plan, small, c, kMostError);
}

// Where query heads share a head of keys and values, a block has one of them in the first step, and
// several behind it.
TEST_P(PersistentStep, ComputesTheModel) {
  const StepCase& c = GetParam();
  // The staged input of a wide down, and stages with upper bits of codes, leave little room.
  const bool needs_room = c.ffn_dim > 4096 || c.mix != nullptr;
  expect_steps(c, tuning_of(c, c.n_heads > c.n_kv_heads ? c.pos + 1 : 0), needs_room);
}

INSTANTIATE_TEST_SUITE_P(, PersistentStep, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Several query heads in a block at every position.
TEST(PersistentVariants, OneIsEnough) {
  for (const StepCase& c : kCases) {
    const std::string_view name = c.name;
    if (name != "F16" && name != "Gemma2" && name != "Qwen3Moe") continue;
    SCOPED_TRACE(name);
    ASSERT_GT(c.n_heads, c.n_kv_heads);
    expect_steps(c, tuning_of(c, 0), false);
  }
}

// 256 positions of heads of 64 elements, and one more. There are blocks for several of each head.
TEST(PersistentVariants, FewPositionsGoToOneBlock) {
  expect_steps(
      {"U4", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 192, 2, 2, 64, 255}, {},
      false);
}

// Whole stages of Q5_K would be too few. K splits of gate and up begin within a row, and a stage of
// down has columns of two experts.
TEST(PersistentStages, AreShortWhereMemoryIsShort) {
  const StepCase c = {"Q5KExperts", {}, DType::F16,   1024,     256, 4, 2,
                      64,           2,  like_mixtral, like_q5_k};
  int room = 0;
  MINFER_CUDA_CHECK(
      cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, /*device=*/0));
  room -= emulated::kStaticSharedBytes + 2 * cuda::kScratchFloats * int{sizeof(float)} +
          cuda::staged_bytes(int(c.dim), /*is_float=*/false);
  const int records = cuda::packed_layout(5, 16, 1024, 32, true, true).record_bytes() * 4;
  ASSERT_LT(room / (cuda::stage_bytes(cuda::StepFormat::U5) + records), 2 * cuda::kStepProducers);
  expect_steps(c, tuning_of(c, 0), false);
}

// As of rows with more columns than the emulator has rows of wo: all phases take parts of rows.
TEST(PersistentStages, HavePartsOfLongRows) {
  for (const StepCase& c : kCases) {
    const std::string_view name = c.name;
    if (name != "F16" && name != "F16InRounds" && name != "Granite") continue;
    SCOPED_TRACE(name);
    cuda::PersistentStep::Tuning tuning = tuning_of(c, 0);
    tuning.has_several_rows = false;
    expect_steps(c, tuning, false);
  }
}

// Their scales, or minimums, would be those of the layer's first expert.
TEST(PersistentExperts, HaveNoScalesOfRowsAndNoMinimums) {
  const auto one_of_two = [](int, LayerSpec& spec, EdgeSpec&) {
    spec.n_experts = 2;
    spec.n_active_experts = 1;
  };
  emulated::g_static_shared_bytes = emulated::kStaticSharedBytes;
  const auto has_plan = [&](const Format& format) {
    SmallModel small({"OneOfTwo", format, DType::F16, 64, 128, 1, 1, 64, 2, one_of_two});
    return plan_of(small.model(), {.few_positions = 0}) != nullptr;
  };
  EXPECT_TRUE(has_plan(of_group(DType::U8, DType::F16, false, 32)));
  EXPECT_FALSE(has_plan(of_group(DType::U8, DType::F16, false, kRow)));
  EXPECT_FALSE(has_plan(of_group(DType::U8, DType::F16, true, 32)));
}

// Ranks that share the model, all at once. They may have unequal slices.
struct RanksCase {
  StepCase of;
  int n_ranks;
  bool cuts_output;
};
std::ostream& operator<<(std::ostream& out, const RanksCase& c) { return out << c.of.name; }

class PersistentRanks : public testing::TestWithParam<RanksCase> {};

// The sums over the ranks lose as much as another vector each: nine in place of seven.
TEST_P(PersistentRanks, ComputeTheModelOnAllRanks) {
  const auto& [c, n_ranks, cuts_output] = GetParam();
  SmallModel small(c);
  emulated::g_static_shared_bytes = c.mix != nullptr ? 32 << 10 : emulated::kStaticSharedBytes;
  std::vector<std::unique_ptr<SmallModel::Rank>> ranks;
  std::vector<std::unique_ptr<cuda::PersistentStep>> steps;
  for (int rank = 0; rank < n_ranks; ++rank) {
    ranks.push_back(small.rank(rank, n_ranks, cuts_output));
    steps.push_back(cuda::PersistentStep::make(stream(), DType::F16, ranks.back()->model));
    ASSERT_TRUE(steps.back()) << rank;
  }
  cuda::PersistentStep::connect(steps);
  std::vector<const cuda::CapturedStep*> of_rank;
  for (const auto& step : steps) of_rank.push_back(step.get());
  cuda::CapturedPlan plan(
      {std::make_move_iterator(steps.begin()), std::make_move_iterator(steps.end())});
  EXPECT_FALSE(plan.start_profile());
  emulated::set_cards(n_ranks);
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto token = TokenId(i * 67 % kVocab);
    const DecodeRow row{token, c.pos + i, kPages};
    const auto span = plan.step(row);
    const std::vector<float> logits(span.begin(), span.end());
    for (int rank = 0; rank < n_ranks; ++rank) {
      small.take_cache(rank, *ranks[size_t(rank)]);
      const auto own = of_rank[size_t(rank)]->host_logits();
      EXPECT_EQ(std::vector(own.begin(), own.end()), logits) << "rank " << rank;
    }
    // The ranks have the same residual stream.
    for (int64_t k = kVocab; k < std::ssize(logits); ++k) {
      ASSERT_EQ(logits[size_t(k)], logits[size_t(k % kVocab)]) << k;
    }
    const double error = error_of(logits, small.logits(token, c.pos + i));
    EXPECT_LE(error, kMostError * 9 / 7) << "step " << i;
    RecordProperty(cat("error_", i), cat(error));
    const auto again = plan.step(row);
    EXPECT_EQ(std::vector(again.begin(), again.end()), logits) << "step " << i;
  }
  emulated::set_cards(1);
}

const RanksCase kRanksCases[] = {
    {{"F16", {}, DType::F16, 64, 96, 4, 2, 32, 2}, 2, true},
    {{"U4Unequal", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 96, 2, 2, 64, 200},
     2,
     false},
    {{"U8Three", of_group(DType::U8, DType::F16, false, kRow), DType::U8, 64, 112, 6, 3, 64, 127},
     3,
     false},
    {{"Gemma3", of_group(DType::U8, DType::F16, false, kRow), DType::F16, 96, 256, 4, 2, 64, 160,
      like_gemma_3},
     2,
     true},
    {{"Q4KM", {}, DType::F16, 256, 1024, 8, 4, 64, 130, nullptr, like_q4_k_m}, 2, true},
    {{"Experts", of_group(DType::U4, DType::F16, false, 32), DType::F16, 64, 1536, 4, 2, 64, 2,
      like_qwen3_moe},
     2,
     true},
    {{"Q4KMExperts", {}, DType::F16, 256, 1024, 8, 4, 64, 2, like_mixtral, like_q4_k_m_of_mixtral},
     2,
     true},
    {{"Q41", {}, DType::F16, 64, 512, 2, 2, 64, 2, nullptr, like_q4_1}, 2, false},
    {{"Biases", {}, DType::F16, 64, 96, 4, 2, 64, 2, with_biases}, 2, true},
};
INSTANTIATE_TEST_SUITE_P(, PersistentRanks, testing::ValuesIn(kRanksCases),
                         [](const auto& info) { return std::string(info.param.of.name); });

}  // namespace
}  // namespace minfer::test
