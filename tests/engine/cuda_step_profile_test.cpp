#include <algorithm>
#include <chrono>

#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"
#include "tests/support/specs.h"

namespace minfer::test {
namespace {

constexpr int64_t kDepth = 128, kSteps = 64;

// Eight layers of Llama-2-7B's width: a step takes 0.3 ms or more on an H100.
ModelSpec wide_spec() {
  return llama_spec({.dim = 4096,
                     .ffn_dim = 11008,
                     .n_layers = 8,
                     .n_heads = 32,
                     .n_kv_heads = 32,
                     .head_dim = 128,
                     .vocab_size = 32000,
                     .trained_seq_len = 256});
}

// Seconds of a step, the mean of kSteps behind kDepth.
double seconds_of_step(Session& session) {
  session.truncate(std::min(session.pos(), kDepth));
  if (session.pos() < kDepth) session.eval(some_ids(kDepth - session.pos(), 32000));
  const auto start = std::chrono::steady_clock::now();
  auto run = session.run_from(1, kSteps, {.n_tokens = 32000, .banned = {}});
  EXPECT_TRUE(run);
  for (int64_t i = 0; run && i < kSteps; ++i) run->next();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         double(kSteps);
}

class CudaStepProfile : public CudaModel, public testing::WithParamInterface<SyntheticType> {};

// By the clock of each block and by that of the host.
TEST_P(CudaStepProfile, PartsAddUpToTheStepAndCostLittle) {
  const Model model = make_synthetic_model(wide_spec(), GetParam(), *backend_, 1);
  Session session(model, *backend_, {});
  DecodePlan* const plan = session.executor().decode_plan();
  ASSERT_NE(plan, nullptr);
  if (!plan->start_profile()) GTEST_SKIP() << "the persistent kernel runs on Hopper alone";
  plan->end_profile();

  // In turns, so that both have the same clock; the fastest of each.
  double plain_s = 1, profiled_s = 1, last_s = 1;
  StepProfile profile;
  for (int i = 0; i < 10; ++i) {
    seconds_of_step(session);  // captures the step
    plain_s = std::min(plain_s, seconds_of_step(session));
    ASSERT_TRUE(plan->start_profile());
    seconds_of_step(session);
    last_s = seconds_of_step(session);
    profiled_s = std::min(profiled_s, last_s);
    profile = plan->end_profile();
  }
  RecordProperty("plain_us", cat(plain_s * 1e6));
  RecordProperty("profiled_us", cat(profiled_s * 1e6));
  EXPECT_LT(profiled_s, plain_s * 1.02);

  EXPECT_EQ(profile.n_steps, 2 * kSteps);
  std::vector<double> hertz;
  for (size_t block = 0; block < profile.seconds.size(); ++block) {
    double clocks = 0;
    for (const PhaseProfile& phase : profile.phases) {
      clocks += phase.blocks[block].sum();
      EXPECT_LE(phase.blocks[block].ring, phase.blocks[block].multiply) << phase.name << block;
    }
    const double kernel_s = profile.seconds[block] / double(profile.n_steps);
    // The rest of a step is its launch, the embedding and the choice of a token.
    EXPECT_LT(kernel_s, last_s * 1.03) << block;
    EXPECT_GT(kernel_s, last_s * 0.9) << block;
    hertz.push_back(clocks / profile.seconds[block]);
  }
  // All SMs have one clock, so a block that loses some of its time has another rate.
  const auto [least, most] = std::ranges::minmax(hertz);
  EXPECT_GT(least, most * 0.98);
  EXPECT_GT(least, 0.9e9);
  EXPECT_LT(most, 2.2e9);
}

TEST_F(CudaModel, OnlyThePersistentStepHasAProfile) {
  const auto backend = make_cuda_backend({.persistent_decode = false});
  const Model model = make_synthetic_model("tiny:f16", *backend);
  Session session(model, *backend, {});
  DecodePlan* const plan = session.executor().decode_plan();
  ASSERT_NE(plan, nullptr);
  EXPECT_FALSE(plan->start_profile());
}

INSTANTIATE_TEST_SUITE_P(, CudaStepProfile,
                         testing::Values(SyntheticType{DType::F16}, SyntheticType{DType::U8},
                                         SyntheticType{DType::U4, 64}),
                         [](const auto& info) { return cat(info.param.dtype); });

}  // namespace
}  // namespace minfer::test
