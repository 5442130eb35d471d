#include "models/quantize/quantize_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/session.h"
#include "loaders/quantized_dir.h"
#include "loaders/sha256_sums.h"
#include "models/hf_config_text.h"
#include "models/weight_layout.h"
#include "tests/support/cpu_ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_models.h"
#include "tests/support/flipped_bits.h"
#include "tests/support/float64_llama.h"
#include "tests/support/small_models.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using namespace test;

std::string bytes_of_tensor(const Tensor& x) {
  return x ? std::string(static_cast<const char*>(x.data), size_t(x.n_bytes())) : std::string();
}

std::string bytes_of_parts(const QuantizedMatrix& q) {
  return bytes_of_tensor(q.codes) + bytes_of_tensor(q.scales) + bytes_of_tensor(q.mins);
}

class QuantizeModel : public testing::Test {
 protected:
  // Quantizes and opens what has been written.
  std::unique_ptr<TensorSource> run(const TensorSource& source, const QuantizePlan& plan,
                                    QuantizeMethod method = QuantizeMethod::Mse) {
    const auto no_progress = [](int64_t, int64_t) {};
    const auto writer = make_quantized_dir_writer({.output = output_,
                                                   .replace = true,
                                                   .tensors = plan.outputs(),
                                                   .config = hf_config_text(plan.spec, DType::F32),
                                                   .tied_output = plan.spec.tied_output,
                                                   .source_dir = source_dir_,
                                                   .metadata = {},
                                                   .progress = no_progress});
    quantize_model(source, plan, method, 2, *writer, no_progress);
    EXPECT_TRUE(writer->finish("{}\n").empty());
    return open_source(output_);
  }

  // Every tensor that is read back is what the definition makes of the source.
  void expect_round_trip(MemorySource& source, const QuantizeOptions& options) {
    const QuantizePlan plan = plan_quantization(source, options);
    const auto written = run(source, plan);
    for (const PlannedTensor& tensor : plan.tensors) {
      const TensorEntry* entry = written->find(tensor.output.name);
      ASSERT_NE(entry, nullptr) << tensor.output.name;
      HostTensor rows = source.read(*tensor.source);
      if (tensor.rope_heads > 0) {
        rows = rope_pairs_to_halves(rows, tensor.rope_heads, tensor.rotary_dim);
      }
      ASSERT_EQ(entry->quant.has_value(), tensor.output.quant.has_value()) << entry->name;
      if (!entry->quant) {
        EXPECT_EQ(bytes_of_tensor(written->read(*entry)), bytes_of_tensor(rows)) << entry->name;
        continue;
      }
      EXPECT_EQ(entry->quant->asymmetric, tensor.output.quant->asymmetric);
      const QuantizeFormat format = {.bits = entry->dtype == DType::U4 ? 4 : 8,
                                     .group = entry->quant->group,
                                     .asymmetric = entry->quant->asymmetric};
      EXPECT_EQ(bytes_of_parts(written->read_quantized(*entry).view()),
                bytes_of_parts(quantize_matrix(rows, format, QuantizeMethod::Mse, 1).view()))
          << entry->name;
    }
    EXPECT_EQ(written->tensors.size(), plan.tensors.size());
  }

  TempDir dir_;
  const std::string output_ = dir_.path() / "out";
  std::string source_dir_;
};

TEST_F(QuantizeModel, WhatIsWrittenIsReadBack) {
  MemorySource source = small_hf_llama();
  expect_round_trip(source, {.group = 8});
  expect_round_trip(source, {.group = 16});  // with fallbacks
  expect_round_trip(source, {.group = 0});
  expect_round_trip(source, {.group = 8, .asymmetric = true});
  expect_round_trip(source, {.type = StoredType::Int8, .group = 0});
  expect_round_trip(source, {.type = StoredType::Int8, .group = 8});
  QuantizeOptions mixed = {.group = 8, .asymmetric = true};
  mixed.embedding = StoredType::Int4;
  mixed.rules = {{"*v_proj*", StoredType::Int8}};
  expect_round_trip(source, mixed);
}

// Files, list of sums and all: by what `inspect --check` asks first.
TEST_F(QuantizeModel, EveryFlippedBitOfWhatIsWrittenIsFound) {
  MemorySource source = small_hf_llama();
  source.metadata.set("num_hidden_layers", int64_t{1});
  const TempDir side_files;
  side_files.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}}})");
  source_dir_ = side_files.path();
  run(source, plan_quantization(source, {.group = 8, .asymmetric = true}));
  const auto check = [&] { return check_sha256_sums(output_, [](int64_t, int64_t) {}); };
  EXPECT_EQ(check(), 4);
  const int64_t n_flips = for_flipped_bits(output_, [&](const std::string& name, int64_t bit) {
    try {
      check();
      ADD_FAILURE() << name << ", bit " << bit << " is not seen";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Input) << name << ", bit " << bit << ": " << e.what();
    }
  });
  EXPECT_GT(n_flips, 30000);
  RecordProperty("n_flips", std::to_string(n_flips));
  EXPECT_EQ(check(), 4);
}

// Rows that fill no whole words, and a last word of zero-points that has room left.
TEST_F(QuantizeModel, RowsArePaddedToWords) {
  MemorySource source = small_hf_llama();
  source.metadata.set("intermediate_size", int64_t{26});
  for (int i = 0; i < 2; ++i) {
    const std::string at = cat("model.layers.", i, ".mlp.");
    source.add(at + "gate_proj.weight", random_normal(1, {26, 16}));
    source.add(at + "up_proj.weight", random_normal(2, {26, 16}));
    source.add(at + "down_proj.weight", random_normal(3, {16, 26}));
  }
  expect_round_trip(source, {.group = 0});
  expect_round_trip(source, {.group = 0, .asymmetric = true});
}

TEST_F(QuantizeModel, GgufGetsHuggingFaceNamesAndOrder) {
  MemorySource source = small_gguf_llama();
  expect_round_trip(source, {.group = 8});
  const ModelSpec from = read_model_spec(source), to = read_model_spec(*open_source(output_));
  EXPECT_EQ(hf_config_text(from, DType::F32), hf_config_text(to, DType::F32));
}

// What config.json says of a model out of a GGUF file, and the weights that the two kinds of files
// store differently, give the logits of the GGUF file.
class QuantizeGguf : public QuantizeModel, public testing::WithParamInterface<const char*> {};

TEST_P(QuantizeGguf, LogitsStay) {
  const FixtureModel fixture = fixture_model(cat("models/", GetParam()));
  QuantizeOptions options;
  options.rules = {{"*", StoredType::Keep}};
  const auto source = open_source(fixture.path);
  run(*source, plan_quantization(*source, options));
  const auto backend = make_cpu_backend({});
  const Model model = load_model(output_, *backend);
  EXPECT_TRUE(model.warnings.empty()) << model.warnings.front();
  Session session(model, *backend, {.kv_dtype = DType::F32});
  EXPECT_LE(max_difference(session.eval_all(fixture.ids), fixture.logits) / rms(fixture.logits),
            1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizeGguf,
                         testing::Values("gguf-qwen2", "gguf-qwen3", "gguf-smollm3",
                                         "gguf-phi3-window", "gguf-gemma", "gguf-gemma2",
                                         "gguf-gemma3", "gguf-olmo2", "gguf-olmo3", "gguf-granite",
                                         "gguf-phi", "gguf-stablelm", "gguf-falcon",
                                         "gguf-starcoder2", "gguf-cohere", "gguf-cohere2",
                                         "gguf-gpt-oss", "gguf-gpt-oss-mxfp4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(QuantizeModel, ConvertsFloatTypes) {
  MemorySource source = small_hf_llama();
  QuantizeOptions options = {.group = 8};
  options.rules = {{"*", StoredType::BF16}};
  const auto written = run(source, plan_quantization(source, options));
  for (const TensorEntry& entry : written->tensors) {
    ASSERT_EQ(entry.dtype, DType::BF16);
    const HostTensor stored = written->read(entry);
    for (int64_t i = 0; i < stored.view().n_elements(); ++i) {
      ASSERT_EQ(stored.at(i), to_f32(to_bf16(source.data(entry.name).at(i)))) << entry.name;
    }
  }
  source.data("model.norm.weight").as<float>()[3] = 1e6f;
  options.rules = {{"*", StoredType::F16}};
  expect_error(ErrorKind::Input,
               "tensor model.norm.weight: element 3: 1e+06 cannot be stored as F16",
               [&] { run(source, plan_quantization(source, options)); });
}

// Fused tensors keep their names and become matrices of codes when they are loaded, also where
// ranks share their rows, where those of a head follow one another, and where rows change places.
TEST_F(QuantizeModel, FusedTensorsAreSplitWhenTheyAreLoaded) {
  for (const char* name : {"phi3-window-bf16", "gpt-neox-f16", "cohere-bf16"}) {
    const FixtureModel fixture = fixture_model(cat("models/", name));
    const auto source = open_source(fixture.path);
    const auto written = run(*source, plan_quantization(*source, {.type = StoredType::Int8}));
    const auto error_on = [&](Backend& backend) {
      const Model model = load_model(*written, backend);
      Session session(model, backend, {.kv_dtype = DType::F32});
      return max_difference(session.eval_all(fixture.ids), fixture.logits) / rms(fixture.logits);
    };
    const double error = error_on(*make_cpu_backend({}));
    EXPECT_GT(error, 1e-4);  // of the codes
    EXPECT_LE(error, 0.3);
    EXPECT_NEAR(error_on(*cpu_ranks(3)), error, 1e-4);
  }
}

// Experts become matrices of codes one by one, also from a tensor that holds all of them; routers
// stay what they are.
TEST_F(QuantizeModel, ExpertsAreQuantizedOneByOne) {
  for (const char* name :
       {"mixtral-bf16", "mixtral-stacked-f16", "qwen3-moe-stacked-bf16", "gguf-qwen2-moe",
        "gguf-mixtral", "gpt-oss-bf16", "gpt-oss-mxfp4", "gguf-gpt-oss"}) {
    SCOPED_TRACE(name);
    const FixtureModel fixture = fixture_model(cat("models/", name));
    const auto source = open_source(fixture.path);
    const QuantizePlan plan = plan_quantization(*source, {.type = StoredType::Int8});
    int64_t n_experts = 0, n_bytes = 0;
    for (const PlannedTensor& tensor : plan.tensors) {
      n_bytes += tensor.source_bytes;
      if (tensor.weight.is_router()) {
        EXPECT_FALSE(tensor.output.quant) << tensor.output.name;
      }
      if (!tensor.weight.is_of_expert() || !tensor.weight.is_matrix()) continue;
      ++n_experts;
      EXPECT_EQ(tensor.output.dtype, DType::U8) << tensor.output.name;
      EXPECT_EQ(tensor.output.shape.rank, 2) << tensor.output.name;
    }
    int64_t file_bytes = 0;
    for (const TensorEntry& entry : source->tensors) file_bytes += int64_t(entry.file_bytes);
    EXPECT_EQ(n_bytes, file_bytes);
    const auto written = run(*source, plan);
    for (const PlannedTensor& tensor : plan.tensors) {
      if (!tensor.weight.is_of_expert() || !tensor.weight.is_matrix()) continue;
      const HostTensor rows = to_f32_tensor(
          source->read_rows(*tensor.source, tensor.source_begin, tensor.output.shape[0]));
      const HostQuantizedMatrix codes = written->read_quantized(*written->find(tensor.output.name));
      std::vector<float> row(static_cast<size_t>(rows.view().shape[1]));
      float largest = 0;
      for (int64_t i = 0; i < rows.view().n_elements(); ++i) {
        largest = std::max(largest, std::abs(rows.at(i)));
      }
      for (int64_t i = 0; i < rows.view().n_elements(); ++i) {
        const auto column = static_cast<size_t>(i) % row.size();
        if (column == 0) dequantize_row(row.data(), codes.view(), i / std::ssize(row));
        ASSERT_NEAR(row[column], rows.at(i), 0.01f * largest) << tensor.output.name;
      }
    }
    const auto backend = make_cpu_backend({});
    const Model model = load_model(*written, *backend);
    int64_t n_of_spec = 0;
    for (const LayerSpec& layer : model.spec.layers) n_of_spec += 3 * layer.n_experts;
    EXPECT_EQ(n_experts, n_of_spec);
    Session session(model, *backend, {.kv_dtype = DType::F32});
    const double error =
        max_difference(session.eval_all(fixture.ids), fixture.logits) / rms(fixture.logits);
    EXPECT_GT(error, 1e-4);  // of the codes
    EXPECT_LE(error, 2);     // which may decide between experts
  }
}

TEST_F(QuantizeModel, LeavesNothingWhereItFails) {
  MemorySource source = small_hf_llama();
  source.data("model.norm.weight").as<float>()[3] = std::nanf("");
  expect_error(ErrorKind::Input, "memory: tensor model.norm.weight: element 3 is not",
               [&] { run(source, plan_quantization(source, {.group = 8})); });
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(QuantizeModel, AsksWhetherTheSourceHasChanged) {
  MemorySource source = small_hf_llama();
  run(source, plan_quantization(source, {.group = 8}));
  EXPECT_TRUE(source.checked);
}

}  // namespace
}  // namespace minfer
