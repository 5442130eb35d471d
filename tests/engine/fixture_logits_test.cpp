#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/session.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;

// Small models of every supported variant with logits that transformers gave in float64; written by
// scripts/make_model_fixtures.py and make_quantized_fixtures.py.
class FixtureLogits : public testing::TestWithParam<std::string> {};

TEST_P(FixtureLogits, AgreeWithTransformers) {
  const fs::path dir = fixtures_dir() / GetParam();
  const fs::path gguf = dir / "model.gguf";
  const auto expected = nlohmann::json::parse(read_file(dir / "expected.json"));
  const auto ids = expected.at("ids").get<std::vector<TokenId>>();
  std::vector<double> reference;
  for (const auto& row : expected.at("logits")) {
    for (const double logit : row) reference.push_back(logit);
  }

  for (const std::string& isa : supported_isas()) {
    const auto backend = make_cpu_backend({.isa = isa});
    const Model model = load_model((fs::exists(gguf) ? gguf : dir).string(), *backend);
    const bool is_told = GetParam().ends_with("desc-act");  // that its weights are not packed
    EXPECT_EQ(model.warnings.size(), is_told ? 1 : 0) << cat(model.warnings.size());
    Session session(model, *backend, {.kv_dtype = DType::F32});
    const double error = max_difference(session.eval_all(ids), reference) / rms(reference);
    RecordProperty("error_" + isa, cat(error));
    EXPECT_LE(error, 1e-4) << isa;

    // The last logits alone, for which the last block leaves out what it can.
    session.truncate(0);
    const std::vector<double> last(reference.end() - model.config.vocab_size, reference.end());
    EXPECT_LE(max_difference(session.eval(ids), last) / rms(last), 1e-4) << isa;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FixtureLogits, testing::ValuesIn(fixture_models()),
                         fixture_test_name);

}  // namespace
}  // namespace minfer::test
