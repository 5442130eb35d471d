#include "tests/kernels/cuda/step_models.h"

namespace minfer::test {
namespace {

// Steps give the same bits while clocks are counted, and every block counts every phase.
class PersistentProfile : public testing::TestWithParam<StepCase> {};
TEST_P(PersistentProfile, CountsTheClocksOfEveryBlock) {
  SmallModel small(GetParam());
  emulated::g_static_shared_bytes = emulated::kStaticSharedBytes;
  const auto plan = plan_of(small.model(), {.few_positions = 0});
  ASSERT_TRUE(plan);
  const DecodeRow row{67, GetParam().pos, kPages};
  const auto step = [&] {
    const auto span = plan->step(row);
    return std::vector(span.begin(), span.end());
  };
  const std::vector<float> logits = step();
  for (const int n_steps : {2, 1}) {  // the second profile begins at zero
    ASSERT_TRUE(plan->start_profile());
    for (int i = 0; i < n_steps; ++i) EXPECT_EQ(step(), logits);
    const StepProfile profile = plan->end_profile();
    EXPECT_EQ(profile.n_steps, n_steps);
    ASSERT_EQ(profile.seconds.size(), size_t(emulated::kBlocksAtOnce));
    std::vector<double> clocks(profile.seconds.size());
    std::vector<std::string> names;
    double ring = 0;
    int n_attend = 0;
    for (const PhaseProfile& phase : profile.phases) {
      names.push_back(phase.name);
      ASSERT_EQ(phase.blocks.size(), clocks.size()) << phase.name;
      for (size_t block = 0; block < clocks.size(); ++block) {
        const PhaseClocks& own = phase.blocks[block];
        const bool counts = phase.name != "attention" || own.input > 0;
        n_attend += phase.name == "attention" && counts;
        EXPECT_EQ(own.input > 0, counts) << phase.name << block;
        EXPECT_EQ(own.multiply > 0, counts && phase.name != "start") << phase.name << block;
        EXPECT_EQ(own.publish > 0, counts && phase.name != "start") << phase.name << block;
        EXPECT_LE(own.ring, own.multiply) << phase.name << block;
        ring += own.ring;
        clocks[block] += own.sum();
      }
    }
    // The few weights of a small model may all come while the blocks wait for their inputs.
    EXPECT_GE(ring, GetParam().dim > 16 ? 1 : 0);
    EXPECT_GT(n_attend, 0);
    const std::vector<std::string> in_order = {"start",   "q k v", "attention", "wo",
                                               "gate up", "down",  "head"};
    EXPECT_EQ(names, in_order);
    // The emulator has one clock, in which a nanosecond is as long as a clock of an SM.
    for (size_t block = 0; block < clocks.size(); ++block) {
      const double nanoseconds = profile.seconds[block] * 1e9;
      EXPECT_NEAR(clocks[block], nanoseconds, 0.1 * nanoseconds) << block;
    }
  }
  EXPECT_EQ(step(), logits);
}

TEST_P(PersistentProfile, KnowsTheWeightsOfEveryPhase) {
  SmallModel small(GetParam());
  const DecodeModel model = small.model();
  emulated::g_static_shared_bytes = emulated::kStaticSharedBytes;
  const auto plan = plan_of(model, {.few_positions = 0});
  ASSERT_TRUE(plan && plan->start_profile());
  plan->step({67, GetParam().pos, kPages});
  int64_t n_bytes = 0, all = model.output->n_bytes;
  for (const PhaseProfile& phase : plan->end_profile().phases) {
    EXPECT_EQ(phase.weight_bytes > 0, phase.name != "start" && phase.name != "attention");
    n_bytes += phase.weight_bytes * phase.n_per_step;
  }
  for (const DecodeLayer& layer : model.layers) {
    const LayerWeights& w = *layer.weights;
    for (const Linear* linear : {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down}) {
      all += linear->weight.n_bytes;
    }
    all += w.moe.router.n_bytes;
    for (int64_t i = 0; i < layer.spec.n_active_experts; ++i) {
      const Expert& expert = w.moe.experts[size_t(i)];  // they are alike
      for (const Linear* linear : {&expert.w_gate, &expert.w_up, &expert.w_down}) {
        all += linear->weight.n_bytes;
      }
    }
  }
  EXPECT_EQ(n_bytes, all);
}

std::vector<StepCase> cases_to_profile() {
  std::vector<StepCase> cases;
  for (const StepCase& c : kCases) {
    const std::string_view name = c.name;
    if (name == "F16" || name == "FewRows" || name == "U8InRounds" || name == "Gemma2Codes" ||
        name == "Qwen3Moe") {
      cases.push_back(c);
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(, PersistentProfile, testing::ValuesIn(cases_to_profile()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer::test
