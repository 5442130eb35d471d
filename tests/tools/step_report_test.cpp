#include "tools/step_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/documented_fields.h"

namespace minfer::test {
namespace {

using nlohmann::json;

// Two steps of two layers on two blocks at 1 GHz: 900 clocks a step in the kernel, of 1000 ns.
StepMeasurement two_steps() {
  StepMeasurement measured{.model = "llama 7B int4",
                           .backend = "cuda",
                           .kv_type = "int8",
                           .n_depth = 128,
                           .n_gen = 1,
                           .step_s = 0.8e-6,
                           .profiled_step_s = 1e-6,
                           .profile = {.n_steps = 2, .phases = {}, .seconds = {1.8e-6, 1.8e-6}}};
  const PhaseClocks first{.input = 400, .multiply = 800, .ring = 40, .publish = 200};
  const PhaseClocks second{.input = 800, .multiply = 400, .ring = 0, .publish = 200};
  measured.profile.phases = {
      {"start", 1, 0, {{.input = 200}, {.input = 200}}},
      {"q k v", 2, 5000, {first, second}},
      {"attention", 2, 0, {{.multiply = 200}, {.multiply = 200}}},
  };
  return measured;
}

TEST(StepReport, MeansOverBlocksLayersAndSteps) {
  const json object = json::parse(step_json(two_steps()));
  EXPECT_EQ(object["blocks"], 2);
  EXPECT_EQ(object["steps"], 2);
  EXPECT_EQ(object["kernel_clocks"], 900);
  EXPECT_NEAR(object["kernel_s"].get<double>(), 0.9e-6, 1e-15);
  EXPECT_NEAR(object["clocks_per_s"].get<double>(), 1e9, 1);
  EXPECT_EQ(object["weight_bytes"], 10000);
  const json& qkv = object["phases"][1];
  EXPECT_EQ(qkv["phase"], "q k v");
  EXPECT_EQ(qkv["per_step"], 2);
  EXPECT_EQ(qkv["clocks"],
            (json{{"input", 150.0}, {"multiply", 150.0}, {"ring", 5.0}, {"publish", 50.0}}));
  EXPECT_EQ(qkv["largest_clocks"],
            (json{{"input", 200.0}, {"multiply", 200.0}, {"ring", 10.0}, {"publish", 50.0}}));
  EXPECT_NEAR(qkv["step_s"].get<double>(), 0.7e-6, 1e-15);
  EXPECT_NEAR(qkv["share"].get<double>(), 0.7, 1e-9);
  EXPECT_EQ(qkv["weight_bytes"], 10000);
  EXPECT_NEAR(qkv["gb_per_s"].get<double>(), 10000 / 0.7e-6 / 1e9, 1e-6);
  EXPECT_TRUE(object["phases"][0]["gb_per_s"].is_null());
  EXPECT_NEAR(object["phases"][2]["share"].get<double>(), 0.1, 1e-9);
}

TEST(StepReport, TableAddsUpToTheStep) {
  const std::string text = step_text(two_steps());
  for (const char* line : {"0.8 us a step at depth 128, 1.0 us with the timers (+25.0 %)",
                           "kernel: 0.9 us, 900 clocks at 1.000 GHz on each of 2 blocks",
                           "| start | 1 | 100 | 0 | 0 | 0 | 0 | 0.1 | 10.0 % |  |  |",
                           "| q k v | 2 | 150 | 150 | 5 | 50 | 200 | 0.7 | 70.0 % | 0.0 | 14 |",
                           "| attention | 2 | 0 | 50 | 0 | 0 | 50 | 0.1 | 10.0 % |  |  |",
                           "| outside the kernel | 1 | | | | | | 0.1 | 10.0 % | | |",
                           "| all | | | | | | | 1.0 | 100.0 % | 0.0 | 10 |"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(StepReport, EveryFieldIsDocumented) {
  expect_documented(json::parse(step_json(two_steps())), documented("minfer bench step --json"));
}

// Before a step has run.
TEST(StepReport, DividesByNothing) {
  StepMeasurement measured = two_steps();
  measured.profile.n_steps = 0;
  measured.profiled_step_s = 0;
  EXPECT_EQ(step_json(measured).find("nan"), std::string::npos);
  EXPECT_EQ(step_text(measured).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace minfer::test
