#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensor_of.h"
#include "tests/support/test_data.h"

// Files that other projects wrote.
namespace minfer {
namespace {

using test::data_dir;
using test::expect_error;
using test::tensor_of;

std::unique_ptr<TensorSource> open_sample(const std::string& name) {
  return open_source(data_dir() / "format-samples" / name);
}

TEST(FormatSamples, ValidOnesAreRead) {
  MINFER_NEEDS(data_dir() / "format-samples");
  EXPECT_EQ(open_sample("valid/empty.safetensors")->tensors.size(), 0u);
  EXPECT_EQ(open_sample("valid/no-tensors.gguf")->tensors.size(), 0u);
  EXPECT_EQ(open_sample("valid/f16-llama-names.safetensors")->tensors.size(), 5u);

  const auto all = open_sample("valid/all-dtypes.safetensors");
  EXPECT_EQ(all->tensors.size(), 3u);
  EXPECT_EQ(all->unusable.size(), 7u);
  for (const TensorEntry& entry : all->tensors) EXPECT_EQ(entry.shape, (Shape{3, 2})) << entry.name;

  const auto padded = open_sample("valid/f16-padded-header.safetensors");
  ASSERT_EQ(padded->tensors.size(), 1u);
  const HostTensor rows = padded->read(padded->tensors[0]);
  for (int i = 0; i < 16 * 8; ++i) EXPECT_EQ(rows.at(i), float(i / 8));
}

TEST(FormatSamples, MalformedOnesAreRefused) {
  MINFER_NEEDS(data_dir() / "format-samples");
  const auto refuses = [](const std::string& name, std::string_view message) {
    expect_error(ErrorKind::Input, message, [&] { open_sample("malformed/" + name); });
  };
  refuses("trailing-bytes.safetensors", "the tensors end at 32768 in the data");
  refuses("tensor-data-missing.gguf", "of the data, which has 0");
  refuses("nonstandard-header.gguf", "byte 24: a key of 962072674336 bytes");
}

// These are sound as containers; the keys that a model needs are missing or of another type.
TEST(FormatSamples, KeysThatMakeNoModelAreRefusedByTheirGetters) {
  MINFER_NEEDS(data_dir() / "format-samples");
  const auto text = open_sample("malformed/tokens-as-string.gguf");
  expect_error(ErrorKind::Input, "key tokenizer.ggml.tokens is text, expected an array of texts",
               [&] { text->metadata.texts("tokenizer.ggml.tokens"); });
  const auto bare = open_sample("malformed/llama-without-dims-or-tensors.gguf");
  expect_error(ErrorKind::Input, "key llama.block_count is missing",
               [&] { bare->metadata.integer("llama.block_count", 1, 1024); });
  const auto other = open_sample("malformed/other-architecture.gguf");
  EXPECT_EQ(other->metadata.text("general.architecture"), "t5");
}

TEST(TinyStories656K, HasThePublishedValues) {
  const auto values_file = data_dir() / "expected/TinyStories-656K-spot-values.json";
  MINFER_NEEDS(values_file);
  const auto expected = nlohmann::json::parse(test::read_file(values_file));
  for (const char* variant : {"hf-fp32", "hf-bf16"}) {
    const auto source = open_source(data_dir() / "tinyllamas/TinyStories-656K" / variant);
    for (const auto& value : expected["values"]) {
      std::string name = value[0];
      if (name.starts_with("embed_tokens")) {  // tied: one of the two is stored
        name = source->find("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight";
      }
      const HostTensor tensor = source->read(tensor_of(*source, name));
      EXPECT_NEAR(tensor.at(value[1].get<int64_t>()), value[2].get<double>(),
                  expected["tolerance"].get<double>())
          << variant << " " << name;
    }
  }
}

// The same model in four files: the f32 ones agree in every bit, the int8 one within half a step.
TEST(Stories260K, IsTheSameFromEveryFormat) {
  const auto dir = data_dir() / "tinyllamas/stories260K";
  MINFER_NEEDS(dir);
  const auto legacy = open_source(dir / "stories260K.bin");
  const auto v1 = open_source(dir / "stories260K-v1.bin");
  const auto q80 = open_source(dir / "stories260K-q80.bin");
  const auto gguf = open_source(dir / "stories260K.gguf");
  ASSERT_EQ(legacy->tensors.size(), 47u);
  for (const TensorEntry& entry : legacy->tensors) {
    const HostTensor values = legacy->read(entry);
    for (const auto* other : {v1.get(), gguf.get()}) {
      const HostTensor same = other->read(tensor_of(*other, entry.name));
      ASSERT_EQ(same.view().shape, entry.shape) << entry.name;
      EXPECT_EQ(std::memcmp(same.view().data, values.view().data,
                            static_cast<size_t>(values.view().n_bytes())),
                0)
          << entry.name << " of " << other->format;
    }
    const HostTensor rounded = q80->read(tensor_of(*q80, entry.name));
    constexpr int64_t kGroup = 8;
    for (int64_t i = 0; i < entry.shape.n_elements(); ++i) {
      float largest = 0;
      for (int64_t j = i / kGroup * kGroup; j < (i / kGroup + 1) * kGroup; ++j) {
        largest = std::max(largest, std::abs(values.at(j)));
      }
      // Scale largest / 127, rounded to a whole step; the product is rounded once more.
      ASSERT_LE(std::abs(rounded.at(i) - values.at(i)), largest / 254 * 1.00001f) << entry.name;
    }
  }
}

TEST(Gguf, OpensALargeVocabularyAtOnce) {
  const auto file = data_dir() / "vocab-tests/ggml-vocab-llama-bpe.gguf";
  MINFER_NEEDS(file);
  const std::clock_t start = std::clock();
  const auto source = open_source(file);
  const double taken = double(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(source->metadata.texts("tokenizer.ggml.tokens").size(), 128256u);
  EXPECT_LT(taken, 1.0);  // about 0.02 s; quadratic work would take minutes
}

TEST(Gguf, ReadsSmolLm2) {
  MINFER_NEEDS(test::smollm2_path());
  const auto source = open_source(test::smollm2_path());
  EXPECT_EQ(source->tensors.size(), 272u);
  EXPECT_TRUE(source->warnings.empty());
  const TensorEntry embedding = tensor_of(*source, "token_embd.weight");
  EXPECT_EQ(embedding.dtype, DType::Q8_0);
  EXPECT_EQ(embedding.shape, (Shape{49152, 576}));
}

}  // namespace
}  // namespace minfer
