#include "tools/bench_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/support/specs.h"
#include "tools/kernel_report.h"
#include "tools/statistics.h"

namespace minfer::test {
namespace {

using nlohmann::json;

std::vector<BenchRow> two_rows() {
  BenchRow prefill;
  prefill.model = "llama \"1B\", it's F16";
  prefill.model_bytes = int64_t{1} << 30;
  prefill.n_params = 5'000'000;
  prefill.backend = "cpu base, 2 threads";
  prefill.n_prompt = 512;
  prefill.samples_s = {4, 2};
  prefill.step_s = {4.0 / 512, 2.0 / 512};
  BenchRow decode = prefill;
  decode.n_prompt = 0;
  decode.n_gen = 10;
  decode.n_depth = 4096;
  decode.samples_s = {2, 2};
  decode.step_s = {0.1, 0.2, 0.3, 0.4};
  decode.bytes_per_token = 100;
  decode.read_bytes_per_second = 1000;
  return {prefill, decode};
}

TEST(BenchReport, NamesTestsAsLlamaBench) {
  EXPECT_EQ(two_rows()[0].test(), "pp512");
  EXPECT_EQ(two_rows()[1].test(), "tg10 @ d4096");
}

TEST(BenchReport, JsonHasEveryFieldOfARow) {
  const json rows = json::parse(format_rows(two_rows(), "json"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["samples_ts"], json({128.0, 256.0}));
  EXPECT_EQ(rows[0]["avg_ts"], 192.0);
  EXPECT_NEAR(rows[0]["stddev_ts"].get<double>(), 90.5097, 1e-3);
  EXPECT_EQ(rows[1]["read_share"], 0.5);  // 5 tokens/s of 100 bytes, of 1000 bytes/s
  EXPECT_EQ(rows[1]["p50_s"], 0.2);
  EXPECT_EQ(rows[1]["p90_s"], 0.4);
  EXPECT_EQ(rows[1]["p99_s"], 0.4);
  for (const char* field :
       {"n_prompt", "n_gen", "n_depth", "n_parallel", "bytes_per_token", "first_token_s"}) {
    EXPECT_TRUE(rows[0][field].is_number()) << field;
  }
  EXPECT_EQ(rows[0]["activations"], "float");
  EXPECT_EQ(rows[0]["gemm"], "own");
}

TEST(BenchReport, CountsTokensOfDrafts) {
  BenchRow row = two_rows()[1];
  row.n_draft = 6;
  row.accepted_share = 0.5;
  row.pass_s = {0.1, 0.3};
  EXPECT_EQ(row.tokens_per_pass(), 4);
  EXPECT_EQ(row.test(), "tg10 + 6 drafted (50 % taken) @ d4096");
  const json rows = json::parse(format_rows({row, two_rows()[1]}, "json"));
  EXPECT_EQ(rows[0]["n_draft"], 6);
  EXPECT_EQ(rows[0]["accepted_share"], 0.5);
  EXPECT_EQ(rows[0]["pass_s"], 0.2);
  EXPECT_EQ(rows[1]["n_draft"], 0);
  EXPECT_TRUE(rows[1]["accepted_share"].is_null());
  EXPECT_TRUE(rows[1]["pass_s"].is_null());
}

// Arithmetic is what bounds a prefill that uses more of it than of the bandwidth.
TEST(BenchReport, NamesTheLimitThatBinds) {
  std::vector<BenchRow> rows = two_rows();
  EXPECT_EQ(json::parse(format_rows(rows, "json"))[0]["arithmetic_share"], nullptr);  // not known
  rows[0].flops_per_token = 1e9;
  rows[0].flops_per_second = 384e9;
  rows[1].flops_per_token = 1e9;
  rows[1].flops_per_second = 10e9;
  const json object = json::parse(format_rows(rows, "json"));
  EXPECT_EQ(object[0]["limit"], "arithmetic");
  EXPECT_EQ(object[0]["limit_share"], 0.5);  // 192 tokens/s
  EXPECT_EQ(object[1]["limit"], "read");     // decode, whatever the arithmetic
  EXPECT_EQ(object[1]["limit_share"], 0.5);
  const std::string text = format_rows(rows, "md");
  EXPECT_NE(text.find("| 50 % of arithmetic |"), std::string::npos) << text;
  EXPECT_NE(text.find("| 50 % of read bandwidth |"), std::string::npos) << text;
  EXPECT_NE(text.find("| 1.07 GB |"), std::string::npos) << text;
}

// Two layers of products, attention over 3 positions on average, logits once for the run.
TEST(BenchReport, CountsOperations) {
  const ModelSpec spec = test::llama_spec(
      {.dim = 4, .ffn_dim = 6, .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .vocab_size = 10});
  const double products = 2 * 4 * 4 + 2 * 4 * 2 + 3 * 4 * 6, attention = 2 * 4 * 3;
  EXPECT_DOUBLE_EQ(flops_per_token(spec, 5, 0, false), 2 * (2 * (products + attention) + 8));
  EXPECT_DOUBLE_EQ(flops_per_token(spec, 1, 2, true), 2 * (2 * (products + attention) + 40));
}

TEST(BenchReport, CountsTheWindowAlone) {
  for (const auto& [n, n_depth, most] :
       {std::tuple{5, 0, 0}, {5, 3, 6}, {5, 3, 2}, {1, 9, 4}, {4, 2, 9}}) {
    double n_seen = 0;
    for (int i = 1; i <= n; ++i) {
      n_seen += most == 0 ? n_depth + i : std::min(n_depth + i, most);
    }
    EXPECT_DOUBLE_EQ(mean_positions_seen(n, n_depth, most), n_seen / n) << n << ' ' << most;
  }
  ModelSpec spec = test::llama_spec(
      {.dim = 4, .ffn_dim = 6, .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .vocab_size = 10});
  const double of_all = flops_per_token(spec, 1, 9, true);
  spec.layers[1].window = 4;  // of 10 positions
  EXPECT_DOUBLE_EQ(of_all - flops_per_token(spec, 1, 9, true), 2 * 2 * 4 * 6);
}

TEST(BenchReport, CountsTheExpertsOfAToken) {
  ModelSpec spec = test::llama_spec(
      {.dim = 4, .ffn_dim = 6, .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .vocab_size = 10});
  for (LayerSpec& layer : spec.layers) {
    layer.n_experts = 5;
    layer.n_active_experts = 2;
  }
  const double products = 2 * 4 * 4 + 2 * 4 * 2 + 5 * 4 + 2 * 3 * 4 * 6, attention = 2 * 4 * 3;
  EXPECT_DOUBLE_EQ(flops_per_token(spec, 5, 0, false), 2 * (2 * (products + attention) + 8));
}

TEST(BenchReport, OtherFormatsHaveOneLineARow) {
  const std::string markdown = format_rows(two_rows(), "md");
  EXPECT_EQ(std::ranges::count(markdown, '\n'), 4);
  EXPECT_NE(markdown.find("| pp512 | 192.00 ± 90.51 |"), std::string::npos) << markdown;
  EXPECT_EQ(std::ranges::count(format_rows(two_rows(), "csv"), '\n'), 3);
  EXPECT_NE(format_rows(two_rows(), "csv").find(R"("llama ""1B"", it's F16")"), std::string::npos);
  EXPECT_EQ(std::ranges::count(format_rows(two_rows(), "jsonl"), '\n'), 2);
  EXPECT_EQ(std::ranges::count(format_rows(two_rows(), "sql"), '\n'), 3);
  EXPECT_NE(format_rows(two_rows(), "sql").find(R"('llama "1B", it''s F16')"), std::string::npos);
}

// A column has one type for all rows, also if the first one has no value there.
TEST(BenchReport, SqlTypesColumnsByTheirValues) {
  BenchRow drafted = two_rows()[1];
  drafted.n_draft = 3;
  drafted.accepted_share = 0.5;
  drafted.pass_s = {0.1};
  const std::string text = format_rows({two_rows()[0], drafted}, "sql");
  const std::string table = text.substr(0, text.find('\n'));
  EXPECT_NE(table.find(R"("accepted_share" REAL)"), std::string::npos) << table;
  EXPECT_NE(table.find(R"("n_draft" INTEGER)"), std::string::npos) << table;
  EXPECT_NE(table.find(R"("model" TEXT)"), std::string::npos) << table;
  const std::string without = format_rows(two_rows(), "sql");
  EXPECT_NE(without.find(R"("pass_s" REAL)"), std::string::npos) << without;
}

MachineLimits limits_of_a_card() {
  MachineLimits limits;
  limits.cuda = CudaLimits{.card = "a card",
                           .read_bytes_per_second = 4e12,
                           .copy_bytes_per_second = 2e12,
                           .hgemm = {{4096, 500e12}, {8192, 400e12}}};
  return limits;
}
std::vector<KernelTiming> two_kernels() {
  return {{"rms_norm", "2 x 4 f32", Bound::Copy, 1e-6, {1e6, 5e5}},
          {"gemm_store", "2 x 4 x 8 f16", Bound::Flops, 2e-6, {2e6, 5e8}, 1e-6}};
}

TEST(KernelReport, SharesOfTheLimitThatBounds) {
  const json object = json::parse(kernels_json(limits_of_a_card(), two_kernels()));
  EXPECT_EQ(object["limits"]["cuda"]["hgemm_flops_per_s"]["8192"], 400e12);
  const json& norm = object["results"][0];
  EXPECT_EQ(norm["shape"], "2 x 4 f32");
  EXPECT_DOUBLE_EQ(norm["us"], 1);
  EXPECT_DOUBLE_EQ(norm["gb_per_s"], 1000);
  EXPECT_EQ(norm["limit"], "copy");
  EXPECT_DOUBLE_EQ(norm["limit_share"], 0.5);
  EXPECT_DOUBLE_EQ(norm["flops_per_byte"], 0.5);
  EXPECT_EQ(norm["bound"], "memory");
  EXPECT_TRUE(norm["tflops"].is_null() && norm["of_cublas"].is_null());
  const json& gemm = object["results"][1];
  EXPECT_DOUBLE_EQ(gemm["tflops"], 250);
  EXPECT_EQ(gemm["limit"], "hgemm");
  EXPECT_DOUBLE_EQ(gemm["limit_share"], 0.5);  // of the better one
  EXPECT_DOUBLE_EQ(gemm["of_cublas"], 0.5);
  EXPECT_DOUBLE_EQ(gemm["flops_per_byte"], 250);
  EXPECT_EQ(gemm["bound"], "arithmetic");
  const std::string table = kernels_text(limits_of_a_card(), two_kernels());
  EXPECT_NE(
      table.find(
          "| gemm_store | 2 x 4 x 8 f16 | 2.00 |  | 250 | 250 | arithmetic | 50 % hgemm | 0.500 |"),
      std::string::npos)
      << table;
}

// Below half of its limit a kernel waits for something else.
TEST(KernelReport, LatencyBoundsWhatIsFarBelowItsLimit) {
  std::vector<KernelTiming> kernels = two_kernels();
  for (KernelTiming& kernel : kernels) kernel.seconds *= 1.01;
  const json object = json::parse(kernels_json(limits_of_a_card(), kernels));
  for (const json& kernel : object["results"]) EXPECT_EQ(kernel["bound"], "latency");
}

TEST(KernelReport, WithoutCublasThereIsNoShare) {
  MachineLimits limits = limits_of_a_card();
  limits.cuda->hgemm.clear();
  limits.cuda->no_cublas = "cuBLAS was not found: libcublas.so.13";
  const json object = json::parse(kernels_json(limits, two_kernels()));
  EXPECT_TRUE(object["limits"]["cuda"]["hgemm_flops_per_s"].is_null());
  EXPECT_TRUE(object["results"][1]["limit_share"].is_null());
  EXPECT_EQ(object["results"][1]["bound"], "arithmetic");
  EXPECT_NE(limits_text(limits).find("unknown: cuBLAS was not found"), std::string::npos);
}

TEST(Statistics, OfFewSamples) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({3}, 0.99), 3);
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(standard_deviation({1}), 0);
}

}  // namespace
}  // namespace minfer::test
