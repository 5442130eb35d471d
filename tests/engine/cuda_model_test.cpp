#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "engine/perplexity.h"
#include "models/synthetic.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;

// First in a test that needs a card.
#define MINFER_NEEDS_CARD() \
  if (n_cuda_devices() == 0) GTEST_SKIP() << "needs a CUDA card"

// Every activation of every layer is rounded to the compute type, and weights may be: some 20
// roundings a layer of half of u each, as the root of their number 4 u for two layers of relative
// error in a logit, which random weights amplify two- to threefold; the worst of thousands of
// logits is four such deviations.
double logit_bound(DType compute) { return 48 * unit_roundoff(compute); }

std::vector<TokenId> some_ids(int64_t n, int64_t vocab_size) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(TokenId((i * 7919 + 1) % vocab_size));
  return ids;
}

// Logits of the last token by passes of `chunk` tokens.
std::vector<float> last_logits(const Model& model, Backend& backend, std::span<const TokenId> ids,
                               SessionOptions options) {
  Session session(model, backend, options);
  const auto logits = session.eval(ids);
  return {logits.begin(), logits.end()};
}

double relative_difference(std::span<const float> got, std::span<const float> want) {
  const std::vector<double> reference(want.begin(), want.end());
  return max_difference(got, reference) / rms(reference);
}

std::vector<std::string> models_for_a_card() {
  return n_cuda_devices() > 0 ? fixture_models() : std::vector<std::string>{"none"};
}

class CudaFixtures : public testing::TestWithParam<std::string> {};

// The ways to decode a token, and a name of each.
struct DecodeWay {
  const char* name;
  bool fused, persistent;
};
constexpr DecodeWay kDecodeWays[] = {
    {"one kernel", true, true}, {"a graph", true, false}, {"op by op", false, false}};

// The same small models as the CPU, with logits that transformers gave in float64: all tokens in
// one pass, then one by one in every way.
TEST_P(CudaFixtures, AgreeWithTransformers) {
  MINFER_NEEDS_CARD();
  const fs::path dir = fixtures_dir() / GetParam();
  const fs::path gguf = dir / "model.gguf";
  const auto expected = nlohmann::json::parse(read_file(dir / "expected.json"));
  const auto ids = expected.at("ids").get<std::vector<TokenId>>();
  std::vector<double> reference;
  for (const auto& row : expected.at("logits")) {
    for (const double logit : row) reference.push_back(logit);
  }
  for (const DType compute : {DType::F16, DType::BF16}) {
    const auto backend = make_cuda_backend({.compute_dtype = compute});
    const Model model = load_model((fs::exists(gguf) ? gguf : dir).string(), *backend);
    Session session(model, *backend, {});
    const double scale = rms(reference);
    const double in_one = max_difference(session.eval_all(ids), reference) / scale;
    EXPECT_LE(in_one, logit_bound(compute)) << compute;
    RecordProperty(cat("error_", compute), cat(in_one));
    for (const DecodeWay& way : kDecodeWays) {
      const auto its_backend =
          make_cuda_backend({.compute_dtype = compute, .persistent_decode = way.persistent});
      const Model its_model = load_model((fs::exists(gguf) ? gguf : dir).string(), *its_backend);
      Session by_one(its_model, *its_backend, {.fused_decode = way.fused});
      const auto width = static_cast<size_t>(model.config.vocab_size);
      for (size_t t = 0; t < ids.size(); ++t) {
        const auto logits = by_one.eval({&ids[t], 1});
        const std::vector<double> row(reference.begin() + int64_t(t * width),
                                      reference.begin() + int64_t((t + 1) * width));
        ASSERT_LE(max_difference(logits, row) / scale, logit_bound(compute))
            << compute << ", token " << t << ", " << way.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaFixtures, testing::ValuesIn(models_for_a_card()),
                         fixture_test_name);

class CudaModel : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CARD();
    backend_ = make_cuda_backend();
  }
  std::unique_ptr<Backend> backend_;
};

std::string greedy_text(const Model& model, Backend& backend, const std::string& prompt,
                        int64_t n_predict, const SessionOptions& session_options = {}) {
  Session session(model, backend, session_options);
  GenerateOptions options;
  options.n_predict = n_predict;
  options.sampler.temperature = 0;
  return generate(session, model.tokenizer->encode(prompt, {}), options, nullptr).text;
}

TEST_F(CudaModel, WritesThePublishedTexts) {
  const auto path = data_dir() / "expected/greedy-text.json";
  MINFER_NEEDS(path);
  const auto published = nlohmann::json::parse(read_file(path));
  for (const auto& test_case : published.at("cases")) {
    const auto& files = test_case.at("model");
    const auto& tokenizers = test_case.at("tokenizer");
    const std::string file = files.is_array() ? files[0] : files;
    LoadOptions options;
    if (tokenizers.is_array()) {
      options.tokenizer_path = (data_dir() / tokenizers[0].get<std::string>()).string();
    }
    const Model model = load_model((data_dir() / file).string(), *backend_, options);
    const auto expected = test_case.at("expected_text").get<std::string>();
    for (const int64_t chunk : {1, 7, 64, 512}) {
      EXPECT_EQ(greedy_text(model, *backend_, test_case.at("prompt"), test_case.at("new_tokens"),
                            {.prefill_chunk = chunk}),
                expected)
          << file << ", chunk " << chunk;
    }
    EXPECT_EQ(greedy_text(model, *backend_, test_case.at("prompt"), test_case.at("new_tokens"),
                          {.fused_decode = false}),
              expected)
        << file << ", op by op";
  }
}

TEST_F(CudaModel, RepeatsItselfToTheBit) {
  const auto path = data_dir() / "tinyllamas/stories260K/stories260K.gguf";
  MINFER_NEEDS(path);
  const Model model = load_model(path.string(), *backend_);
  std::vector<float> want;
  for (int run = 0; run < 100; ++run) {
    Session session(model, *backend_, {});
    std::vector<float> all;
    TokenId token = 1;
    for (int i = 0; i < 128; ++i) {
      const auto logits = session.eval({&token, 1});
      token = TokenId(std::ranges::max_element(logits) - logits.begin());
      all.push_back(logits[size_t(token)]);
      all.push_back(logits[7]);
    }
    if (run == 0) want = all;
    ASSERT_EQ(all, want) << "run " << run;
  }
}

// Two layers of Llama-2-7B's width, and of the same with four key/value heads.
TEST_F(CudaModel, AgreesWithTheCpuAtTheWidthOf7B) {
  ModelConfig config;
  config.dim = 4096;
  config.ffn_dim = 11008;
  config.n_layers = 2;
  config.n_heads = config.n_kv_heads = 32;
  config.head_dim = config.rotary_dim = 128;
  config.vocab_size = 1000;
  config.trained_seq_len = 1024;
  config.norm_eps = 1e-5f;
  config.rope_theta = 1e4;
  const auto cpu = make_cpu_backend();
  for (const SyntheticType& type :
       {SyntheticType{DType::F16, 0}, {DType::BF16, 0}, {DType::U8, 0}, {DType::U4, 64}}) {
    config.n_kv_heads = type.dtype == DType::U4 ? 8 : 32;
    SCOPED_TRACE(cat(type.dtype));
    const DType compute = type.dtype == DType::BF16 ? DType::BF16 : DType::F16;
    const auto card = make_cuda_backend({.compute_dtype = compute});
    const Model on_cpu = make_synthetic_model(config, type, *cpu, 1);
    const Model on_card = make_synthetic_model(config, type, *card, 1);
    const std::vector<TokenId> ids = some_ids(150, config.vocab_size);
    const auto want = last_logits(on_cpu, *cpu, ids, {});
    for (const int64_t chunk : {7, 64, 150}) {
      const double difference =
          relative_difference(last_logits(on_card, *card, ids, {.prefill_chunk = chunk}), want);
      RecordProperty(cat("chunk_", chunk, "_", type.dtype), cat(difference));
      EXPECT_LE(difference, logit_bound(compute)) << "chunk " << chunk;
    }
    for (const DecodeWay& way : kDecodeWays) {
      const auto its_card =
          make_cuda_backend({.compute_dtype = compute, .persistent_decode = way.persistent});
      const Model its_model = make_synthetic_model(config, type, *its_card, 1);
      const double difference = relative_difference(
          last_logits(its_model, *its_card, ids, {.prefill_chunk = 1, .fused_decode = way.fused}),
          want);
      RecordProperty(cat(way.name, "_", type.dtype), cat(difference));
      EXPECT_LE(difference, logit_bound(compute)) << way.name;
    }
    // Where a key or value lies between two levels the rounding before decides: of 150 positions a
    // few change by a step of 1/254 of the largest in a head.
    const SessionOptions kv8{.prefill_chunk = 64, .kv_dtype = DType::U8};
    EXPECT_LE(relative_difference(last_logits(on_card, *card, ids, kv8),
                                  last_logits(on_cpu, *cpu, ids, kv8)),
              logit_bound(compute) + 0.01)
        << "int8 cache";
  }
}

// The demonstration model through the whole of the evaluator.
TEST_F(CudaModel, HasThePerplexityOfTheCpu) {
  const auto path = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(path);
  const auto cpu = make_cpu_backend();
  const Model on_cpu = load_model(path.string(), *cpu),
              on_card = load_model(path.string(), *backend_);
  std::vector<ScoringWindow> windows;
  for (int i = 0; i < 8; ++i) {
    windows.push_back({.tokens = some_ids(200 + i, on_cpu.config.vocab_size), .first_scored = 1});
  }
  const auto perplexity = [&](const Model& model, Backend& backend, DType kv_dtype) {
    Session session(model, backend,
                    {.max_seq_len = 256, .kv_dtype = kv_dtype, .several_sequences = true});
    return evaluate_perplexity(windows, std::array{&session}, nullptr, {.n_threads = 2})
        .front()
        .nll.mean();
  };
  const double want = perplexity(on_cpu, *cpu, DType::F16);
  EXPECT_NEAR(perplexity(on_card, *backend_, DType::F16), want, 1e-3 * want);
  EXPECT_NEAR(perplexity(on_card, *backend_, DType::U8), want, 2e-3 * want);
}

}  // namespace
}  // namespace minfer::test
