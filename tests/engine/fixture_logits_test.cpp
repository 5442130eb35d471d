#include <gtest/gtest.h>

#include "engine/session.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/temp_dir.h"

namespace minfer::test {
namespace {

// Small models of every supported variant with logits that transformers gave in float64; written by
// scripts/make_model_fixtures.py and make_quantized_fixtures.py.
class FixtureLogits : public testing::TestWithParam<std::string> {};

TEST_P(FixtureLogits, AgreeWithTransformers) {
  const auto [path, ids, reference] = fixture_model(GetParam());
  for (const std::string& isa : supported_isas()) {
    const auto backend = make_cpu_backend({.isa = isa});
    const Model model = load_model(path, *backend);
    const bool is_told = GetParam().ends_with("desc-act");  // that its weights are not packed
    EXPECT_EQ(model.warnings.size(), is_told ? 1 : 0) << cat(model.warnings.size());
    Session session(model, *backend, {.kv_dtype = DType::F32});
    const double error = max_difference(session.eval_all(ids), reference) / rms(reference);
    RecordProperty("error_" + isa, cat(error));
    EXPECT_LE(error, 1e-4) << isa;

    // The last logits alone, for which the last block leaves out what it can.
    session.truncate(0);
    const std::vector<double> last(reference.end() - model.spec.vocab_size, reference.end());
    EXPECT_LE(max_difference(session.eval(ids), last) / rms(last), 1e-4) << isa;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FixtureLogits, testing::ValuesIn(fixture_models()),
                         fixture_test_name);

// int8 weights by row whose maker has quantized the inputs too, token by token: floats are more
// exact than that, and are said to be another thing.
TEST(W8A8Logits, RunWithFloatsAndWithInt8Inputs) {
  const std::filesystem::path from = fixtures_dir() / "quantized/ct-int8-row";
  const auto [path, ids, reference] = fixture_model("quantized/ct-int8-row");
  auto config = nlohmann::json::parse(read_file(from / "config.json"));
  config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {
      {"num_bits", 8},       {"type", "int"},   {"symmetric", true},
      {"strategy", "token"}, {"dynamic", true}, {"observer", nullptr}};
  const TempDir dir;
  dir.write("config.json", config.dump());
  dir.write("model.safetensors", read_file(from / "model.safetensors"));
  const auto error_with = [&](Activations activations, size_t n_warnings) {
    const auto backend = make_cpu_backend({.isa = {}, .activations = activations});
    const Model model = load_model(dir.path(), *backend);
    EXPECT_EQ(model.warnings.size(), n_warnings);
    for (const std::string& warning : model.warnings) {
      EXPECT_NE(warning.find("--activations int8 "), std::string::npos) << warning;
    }
    Session session(model, *backend, {.kv_dtype = DType::F32});
    return max_difference(session.eval_all(ids), reference) / rms(reference);
  };
  EXPECT_LE(error_with(Activations::Float, 1), 1e-4);
  const double of_int8 = error_with(Activations::Int8, 0);
  EXPECT_GT(of_int8, 1e-4);
  EXPECT_LE(of_int8, 0.1);
}

// Checkpoints whose settings or flags have led readers astray.
class PublishedLogits : public testing::TestWithParam<std::string> {};

TEST_P(PublishedLogits, AgreeWithTransformers) {
  const std::filesystem::path dir = data_dir() / "found-in-use" / GetParam();
  MINFER_NEEDS(dir);
  const auto [path, ids, reference] = fixture_model_in(dir);
  const auto backend = make_cpu_backend();
  const Model model = load_model(path, *backend);
  EXPECT_TRUE(model.warnings.empty()) << model.warnings[0];
  EXPECT_EQ(model.weight_types, "U4");  // packed, as it is stored
  Session session(model, *backend, {.kv_dtype = DType::F32});
  EXPECT_LE(max_difference(session.eval_all(ids), reference) / rms(reference), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedLogits,
                         testing::Values("g-g32-desc-act-sequential", "q-ct-compression-config",
                                         "q-ct-frozen", "q-gptq-quantize-config"),
                         fixture_test_name);

}  // namespace
}  // namespace minfer::test
