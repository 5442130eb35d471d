#include "kernels/cuda/decode/cluster/cluster_step.h"

#include "tests/kernels/cuda/step_models.h"

namespace minfer::test {
namespace {

// The input of the output matrix is rounded to F16, by at most 2^-11 of each number, and hardly
// anything is lost before that.
constexpr double kMostClusterError = 0x1p-11;

std::unique_ptr<DecodePlan> cluster_plan_of(const DecodeModel& model, int64_t few_positions) {
  std::vector<std::unique_ptr<cuda::CapturedStep>> steps;
  steps.push_back(cuda::ClusterStep::make(stream(), DType::F16, model, few_positions));
  if (!steps.front()) return nullptr;
  return std::make_unique<cuda::CapturedPlan>(std::move(steps));
}

class ClusterStep : public testing::TestWithParam<StepCase> {};

// The first step is one of few positions, the second one of many.
TEST_P(ClusterStep, ComputesTheModel) {
  const StepCase& c = GetParam();
  SmallModel small(c);
  const auto plan = cluster_plan_of(small.model(), c.pos + 1);
  ASSERT_TRUE(plan);
  expect_two_steps(*plan, small, c, kMostClusterError);
}

Format int4(int64_t group, bool has_mins = false) {
  return of_group(DType::U4, DType::F16, has_mins, group);
}
// Clusters have 4, 8 or 16 blocks, by the rows of the narrowest matrix. At 300 positions a block
// has more rows than it asks for at once, with one query head (192) and with three (48).
const StepCase kClusterCases[] = {
    {"First", int4(64), DType::F16, 128, 192, 2, 2, 64, 0},
    {"Few", int4(64), DType::F16, 128, 192, 2, 1, 64, 2},
    {"HalfPieces", int4(32), DType::F16, 128, 192, 4, 2, 64, 127},
    {"LongGroups", int4(128), DType::F16, 256, 384, 4, 4, 64, 140},
    {"FourBlocks", int4(32), DType::F16, 64, 192, 4, 1, 64, 5},
    {"Mins", int4(32, true), DType::F16, 128, 192, 4, 1, 64, 30},
    {"MinsOfLongGroups", int4(128, true), DType::F16, 256, 384, 4, 2, 64, 63},
    {"LikeSmolLM2", int4(64), DType::F16, 576, 1536, 9, 3, 64, 300},
    {"Wide", int4(64), DType::F16, 768, 1344, 4, 4, 64, 300},
};
INSTANTIATE_TEST_SUITE_P(, ClusterStep, testing::ValuesIn(kClusterCases),
                         [](const auto& info) { return std::string(info.param.name); });

// What it has no code for is left to others.
TEST(ClusterSteps, AreRefused) {
  const auto has_plan = [](const StepCase& c) {
    SmallModel small(c);
    return cluster_plan_of(small.model(), 1) != nullptr;
  };
  const StepCase taken = {"Taken", int4(64), DType::F16, 128, 192, 2, 2, 64, 0};
  EXPECT_TRUE(has_plan(taken));
  const auto with = [&](auto set) {
    StepCase c = taken;
    set(c);
    return has_plan(c);
  };
  EXPECT_FALSE(with([](StepCase& c) { c.format = {}; })) << "floats";
  EXPECT_FALSE(with([](StepCase& c) { c.format = int4(kRow); })) << "scales of rows";
  EXPECT_FALSE(with([](StepCase& c) { c.format = of_group(DType::U8, DType::F16, false, 64); }));
  EXPECT_FALSE(with([](StepCase& c) { c.cache = DType::U8; })) << "an int8 cache";
  EXPECT_FALSE(with([](StepCase& c) { c.change = with_biases; }));
  EXPECT_FALSE(with([](StepCase& c) { c.change = like_granite; }));
  EXPECT_FALSE(with([](StepCase& c) { c.head_dim = 128; })) << "large heads";
  EXPECT_FALSE(with([](StepCase& c) { c.ffn_dim = 4096; })) << "too wide";
  EXPECT_FALSE(with([](StepCase& c) { c.n_heads = 5, c.n_kv_heads = 1; })) << "five queries";
  EXPECT_FALSE(with([](StepCase& c) { c.n_heads = c.n_kv_heads = 8; })) << "one block a head";
}

}  // namespace
}  // namespace minfer::test
