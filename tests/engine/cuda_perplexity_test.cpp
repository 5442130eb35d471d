#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "engine/perplexity.h"
#include "loaders/quantized_dir.h"
#include "models/hf_config_text.h"
#include "models/quantize/quantize_model.h"
#include "tests/engine/smollm2.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

// Perplexities of whole models on a card, and the tokens of a real one.
namespace minfer::test {
namespace {

namespace fs = std::filesystem;

class CudaPerplexity : public testing::Test {
 protected:
  void SetUp() override {
    if (n_cuda_devices() == 0) GTEST_SKIP() << "needs a CUDA card";
    backend_ = make_cuda_backend();
  }
  std::unique_ptr<Backend> backend_;
};

// Perplexity of windows, each from an empty cache.
double perplexity(const Model& model, Backend& backend, std::span<const ScoringWindow> windows,
                  DType kv_dtype) {
  Session session(model, backend,
                  {.max_seq_len = 512, .kv_dtype = kv_dtype, .several_sequences = true});
  return evaluate_perplexity(windows, std::array{&session}, nullptr, {.n_threads = 2})
      .front()
      .value();
}

void expect_perplexity(const Model& model, Backend& card, std::span<const ScoringWindow> windows,
                       double want) {
  const double ours = perplexity(model, card, windows, DType::F16);
  testing::Test::RecordProperty(cat("perplexity_", want), cat(ours));
  EXPECT_NEAR(ours / want, 1, 1e-3);
}

// A cache of int8 costs a thousandth of the perplexity at most. Single predictions change by some
// 0.02 nats either way, which of 50,000 is 1e-4.
void expect_cheap_int8_cache(const Model& model, Backend& card,
                             std::span<const ScoringWindow> windows) {
  const double of_f16 = perplexity(model, card, windows, DType::F16);
  const double of_int8 = perplexity(model, card, windows, DType::U8);
  testing::Test::RecordProperty(cat("int8_cache_", of_f16), cat(of_int8));
  EXPECT_LE(of_int8 / of_f16, 1 + 1e-3);
}

// A directory with the weights of another one as `options` say.
std::string quantized_copy(const fs::path& source_dir, const QuantizeOptions& options,
                           const std::string& output) {
  const auto no_progress = [](int64_t, int64_t) {};
  const auto source = open_source(source_dir.string());
  const QuantizePlan plan = plan_quantization(*source, options);
  const auto writer = make_quantized_dir_writer({.output = output,
                                                 .replace = false,
                                                 .tensors = plan.outputs(),
                                                 .config = hf_config_text(plan.spec, DType::BF16),
                                                 .tied_output = plan.spec.tied_output,
                                                 .source_dir = source_dir.string(),
                                                 .metadata = {},
                                                 .progress = no_progress});
  quantize_model(*source, plan, QuantizeMethod::Mse, 2, *writer, no_progress);
  EXPECT_TRUE(writer->finish("{}\n").empty());
  return output;
}

// The demonstration model, as it is and quantized, on texts that it writes.
TEST_F(CudaPerplexity, IsThatOfTheCpu) {
  const auto demo = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(demo);
  const auto cpu = make_cpu_backend();
  const TempDir dir;
  std::vector<ScoringWindow> windows;
  for (const std::string& file :
       {demo.string(),
        quantized_copy(demo, {.type = StoredType::Int8, .group = 0}, dir.path() / "int8"),
        quantized_copy(demo, {.type = StoredType::Int4, .group = 64}, dir.path() / "int4")}) {
    SCOPED_TRACE(file);
    const Model on_cpu = load_model(file, *cpu), on_card = load_model(file, *backend_);
    for (int seed = 0; seed < 16 && windows.size() < 16; ++seed) {
      GenerateOptions options;
      options.n_predict = 250;
      options.ignore_eos = true;
      options.sampler.temperature = 1;
      options.sampler.seed = uint64_t(seed);
      Session session(on_card, *backend_, {.max_seq_len = 512});
      std::vector<TokenId> text = on_card.tokenizer->encode("Once upon a time", {});
      const auto tokens = generate(session, text, options, nullptr).tokens;
      text.insert(text.end(), tokens.begin(), tokens.end());
      windows.push_back({.tokens = text, .first_scored = 1});
    }
    expect_perplexity(on_card, *backend_, windows, perplexity(on_cpu, *cpu, windows, DType::F16));
  }
}

TEST_F(CudaPerplexity, AnInt8CacheCostsLittle) {
  const auto demo = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(demo);
  MINFER_NEEDS(wikitext_path());
  const Model model = load_model(demo.string(), *backend_);
  const ScoringPlan plan =
      plan_scoring(read_file(wikitext_path()), *model.tokenizer, {.ctx = 512, .raw_text = true});
  expect_cheap_int8_cache(model, *backend_, std::span(plan.windows).first(256));
}

// Inputs of products rounded to int8 row by row, and int4 weights to int8 on their way.
TEST_F(CudaPerplexity, Int8ActivationsCostLittle) {
  const auto demo = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(demo);
  MINFER_NEEDS(wikitext_path());
  std::unique_ptr<Backend> of_codes;
  try {
    of_codes = make_cuda_backend({.activations = Activations::Int8});
  } catch (const Error& e) {
    ASSERT_EQ(e.kind(), ErrorKind::Gpu) << e.what();
    GTEST_SKIP() << e.what();
  }
  const TempDir dir;
  for (const std::string& file :
       {quantized_copy(demo, {.type = StoredType::Int8, .group = 0}, dir.path() / "int8"),
        quantized_copy(demo, {.type = StoredType::Int4, .group = 64}, dir.path() / "int4")}) {
    SCOPED_TRACE(file);
    const Model with_floats = load_model(file, *backend_), with_codes = load_model(file, *of_codes);
    const ScoringPlan plan = plan_scoring(read_file(wikitext_path()), *with_floats.tokenizer,
                                          {.ctx = 512, .raw_text = true});
    const auto windows = std::span<const ScoringWindow>(plan.windows).first(256);
    const double floats = perplexity(with_floats, *backend_, windows, DType::F16);
    const double codes = perplexity(with_codes, *of_codes, windows, DType::F16);
    testing::Test::RecordProperty(cat("int8_activations_", floats), cat(codes));
    EXPECT_NE(codes, floats);
    EXPECT_NEAR(codes / floats, 1, 5e-3);
  }
}

// A real chat model, its weights in int4 with mins.
TEST_F(CudaPerplexity, SmolLm2WritesTheReferenceTokens) {
  MINFER_NEEDS_SMOLLM2();
  const Model model = load_model(smollm2_path().string(), *backend_);
  expect_smollm2_tokens(model, *backend_, {.max_seq_len = 256});
  expect_smollm2_tokens(model, *backend_, {.max_seq_len = 256, .fused_decode = false});
}

TEST_F(CudaPerplexity, SmolLm2HasThatOfTheReference) {
  MINFER_NEEDS_SMOLLM2();
  const nlohmann::json expected = smollm2_reference().at("perplexity");
  const Model model = load_model(smollm2_path().string(), *backend_);
  const ScoringPlan plan =
      plan_scoring(read_file(wikitext_path()), *model.tokenizer,
                   {.ctx = expected.at("ctx").get<int64_t>(), .raw_text = true});
  std::vector<ScoringWindow> windows;
  MeanEstimate nll;  // of the float64 values, one for each token of a window
  for (const auto& reference : expected.at("float64_windows")) {
    windows.push_back(plan.windows[reference.at("window").get<size_t>()]);
    nll.add(reference.at("sum_nll_all_511").get<double>() / 511);
  }
  expect_perplexity(model, *backend_, windows, std::exp(nll.mean()));
  expect_cheap_int8_cache(model, *backend_, std::span(plan.windows).first(128));
}

}  // namespace
}  // namespace minfer::test
