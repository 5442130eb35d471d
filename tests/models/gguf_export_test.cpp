#include "models/quantize/gguf_export.h"

#include <gtest/gtest.h>

#include "engine/session.h"
#include "kernels/base/quant_codec.h"
#include "loaders/tokenizer_model.h"
#include "models/quantize/quantize_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"
#include "tests/tools/tiny_model.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;

void export_gguf(const TensorSource& source, const GgufExportOptions& options) {
  QuantizePlan plan = plan_quantization(source, {});
  choose_gguf_types(plan, options.type);
  const auto writer = make_gguf_model_writer(source, plan, options);
  quantize_model(source, plan, QuantizeMethod::Rtn, 1, *writer, [](int64_t, int64_t) {});
  EXPECT_TRUE(writer->finish("").empty());
}

// A byte-fallback vocabulary of a few pieces.
std::string small_tokenizer_model() {
  SentencePieceModel model;
  model.type = SentencePieceModel::Bpe;
  model.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  float score = 0;
  for (const char* text : {"\u2581", "a", "b", "ab", "\u2581ab"}) {
    model.pieces.push_back({text, score--, 1});
  }
  return serialize_tokenizer_model(model);
}

struct GgufExport : testing::TestWithParam<DType> {};

TEST_P(GgufExport, HoldsWhatTheSourceRoundsTo) {
  const TempDir dir;
  const auto source = open_source(dir.write("in.gguf", tiny_gguf()));
  const std::string path = dir.path() / "out.gguf";
  export_gguf(*source, {.output = path, .type = GetParam()});
  const auto made = open_source(path);
  EXPECT_EQ(made->tensors.size(), source->tensors.size());
  for (const TensorEntry& entry : made->tensors) {
    const bool is_table = entry.name == "token_embd.weight" || entry.name == "output.weight";
    const bool is_whole = entry.shape.last() % 32 == 0;  // 48 columns are one block and a half
    const DType expected = entry.shape.rank == 1                   ? DType::F32
                           : !is_whole                             ? DType::F16
                           : is_table && GetParam() == DType::Q4_0 ? DType::Q8_0
                                                                   : GetParam();
    EXPECT_EQ(entry.dtype, expected) << entry.name;
    const HostTensor values = source->read(tensor_of(*source, entry.name));
    const HostTensor found = made->read(entry);
    std::string encoded(static_cast<size_t>(found.view().n_bytes()), '\0');
    encode_row(encoded.data(), values.as<float>(), expected, values.view().n_elements());
    EXPECT_EQ(std::memcmp(encoded.data(), found.view().data, encoded.size()), 0) << entry.name;
  }
  for (const auto& [key, value] : source->metadata.all()) {
    if (key.starts_with("tokenizer.")) {
      EXPECT_EQ(made->metadata.as_text(key), source->metadata.as_text(key)) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgufExport, testing::Values(DType::F16, DType::Q8_0, DType::Q4_0),
                         [](const auto& info) { return cat(info.param); });

// Rows of queries and keys change places, scalings become tables: the logits say whether rightly.
struct GgufExportOfDirectory : testing::TestWithParam<const char*> {};

TEST_P(GgufExportOfDirectory, LogitsStay) {
  const FixtureModel fixture = fixture_model(cat("models/", GetParam()));
  const TempDir work;
  const std::string path = work.path() / "out.gguf";
  const std::string tokenizer = work.write("tokenizer.model", small_tokenizer_model());
  export_gguf(*open_source(fixture.path), {.output = path, .tokenizer_source = tokenizer});
  const auto backend = make_cpu_backend({});
  const Model model = load_model(path, *backend);
  EXPECT_TRUE(model.warnings.empty()) << model.warnings.front();
  EXPECT_EQ(model.tokenizer->encode("ab", {}), (std::vector<TokenId>{1, 7}));
  Session session(model, *backend, {.kv_dtype = DType::F32});
  const std::vector<double>& reference = fixture.logits;
  EXPECT_LE(max_difference(session.eval_all(fixture.ids), reference) / rms(reference), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Models, GgufExportOfDirectory,
    testing::Values("llama-gqa-sharded-bf16", "llama-biases-f16", "llama-tied-bf16",
                    "llama-rope-linear-f16", "llama-rope-llama3-bf16", "llama-head80-f16",
                    "qwen2-tied-bf16", "qwen3-head64-f16", "qwen2-yarn-f16",
                    "qwen3-yarn-attention-factor-bf16", "mistral-wide-heads-f16",
                    "smollm3-tied-f16", "phi3-window-bf16", "phi3-partial-f16", "phi3-longrope-f16",
                    "gemma-bf16", "gguf-gemma2", "gguf-gemma3", "gemma3-old-keys-f16", "olmo2-f16",
                    "gguf-olmo3", "granite-f16", "gpt-neox-f16", "phi-f16", "stablelm-bf16",
                    "stablelm-parallel-f16", "falcon-f16", "gguf-starcoder2", "cohere-bf16",
                    "cohere2-f16", "mixtral-bf16", "qwen2-moe-f16", "olmoe-bf16",
                    "gpt-oss-head64-f16", "gpt-oss-mxfp4", "gguf-gpt-oss"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(GgufExport, RefusesWhatItsFormatCannotSay) {
  const TempDir dir;
  const auto refuse = [&](const char* name, const char* message) {
    const std::string tokenizer = dir.write("tokenizer.model", small_tokenizer_model());
    const auto source = open_source(fixtures_dir() / "models" / name);
    expect_error(ErrorKind::Input, message, [&] {
      export_gguf(*source, {.output = dir.path() / "out.gguf", .tokenizer_source = tokenizer});
    });
    fs::remove(tokenizer);
    EXPECT_TRUE(fs::is_empty(dir.path()));
  };
  refuse("mistral-window-f16", "has an attention window of 7, which a GGUF file");
  refuse("llama-dynamic-f16", "has dynamic RoPE scaling, which a GGUF file");
  refuse("llama-yarn-mscale-f16", "has YaRN without truncation, which a GGUF file");
  refuse("smollm3-windows-bf16", "has an attention window of 5, which a GGUF file");
  // Scores are scaled by the size of the heads, but for one model.
  refuse("gemma2-caps-f16", "a layer of the model is one that a GGUF file of its architecture");

  // A limit of its own.
  refuse("gpt-oss-bf16", "a layer of the model is one that a GGUF file of its architecture");
  refuse("qwen3-moe-stacked-bf16", "has some layers with experts and some without, which a");

  // Its readers take the rotation from every fourth layer.
  const fs::path from = fixtures_dir() / "models/smollm3-tied-f16";
  auto config = nlohmann::json::parse(read_file(from / "config.json"));
  config["no_rope_layers"] = {1, 1, 0, 1, 1};
  const TempDir other;
  other.write("config.json", config.dump());
  other.write("model.safetensors", read_file(from / "model.safetensors"));
  refuse(other.path().c_str(), "a layer of the model is one that a GGUF file of its architecture");
}

TEST(GgufExport, NeedsATokenizer) {
  const TempDir dir;
  const auto source = open_source(fixtures_dir() / "models/llama-mha-f32");
  expect_error(ErrorKind::Input, "has no tokenizer, which a GGUF file needs",
               [&] { export_gguf(*source, {.output = dir.path() / "out.gguf"}); });
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace minfer::test
