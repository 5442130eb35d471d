#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

namespace minfer {
namespace {

using namespace test;

void expect_counting(const TensorSource& source, const std::string& name, const Shape& shape) {
  const TensorEntry& entry = tensor_of(source, name);
  EXPECT_EQ(entry.shape, shape) << name;
  const HostTensor tensor = source.read(entry);
  EXPECT_EQ(tensor.at(0), 0.0f) << name;
  const int64_t last = shape.n_elements() - 1;
  EXPECT_EQ(tensor.at(last), float(last) / 8) << name;
}

void expect_all_tensors(const TensorSource& source, bool tied) {
  EXPECT_EQ(source.tensors.size(), tied ? 20u : 21u);
  expect_counting(source, "token_embd.weight", {16, 8});
  expect_counting(source, "output_norm.weight", {8});
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const auto name = [&](const char* part) { return cat(layer, part, ".weight"); };
    expect_counting(source, name("attn_norm"), {8});
    expect_counting(source, name("attn_q"), {8, 8});
    expect_counting(source, name("attn_k"), {4, 8});
    expect_counting(source, name("attn_v"), {4, 8});
    expect_counting(source, name("attn_output"), {8, 8});
    expect_counting(source, name("ffn_norm"), {8});
    expect_counting(source, name("ffn_gate"), {12, 8});
    expect_counting(source, name("ffn_down"), {8, 12});
    expect_counting(source, name("ffn_up"), {12, 8});
  }
  if (!tied) expect_counting(source, "output.weight", {16, 8});
}

TEST(Llama2c, ReadsFloatsOfBothVersions) {
  const TempDir dir;
  for (const bool tied : {true, false}) {
    Llama2cSizes sizes;
    sizes.tied = tied;
    const auto legacy = open_source(dir.write("0.bin", llama2c_legacy_file(sizes)));
    EXPECT_EQ(legacy->format, "llama2.c v0");
    expect_all_tensors(*legacy, tied);
    const auto v1 = open_source(dir.write("1.bin", llama2c_v1_file(sizes)));
    EXPECT_EQ(v1->format, "llama2.c v1");
    expect_all_tensors(*v1, tied);
  }
}

TEST(Llama2c, ReadsGroupsThatCrossRows) {
  const TempDir dir;
  const auto source = open_source(dir.write("2.bin", llama2c_v2_file({}, 8)));  // rows of 12
  EXPECT_EQ(source->format, "llama2.c v2");
  const TensorEntry down = tensor_of(*source, "blk.1.ffn_down.weight");
  EXPECT_EQ(down.dtype, DType::F32);
  EXPECT_EQ(down.file_bytes, 96u + 12 * 4);
  const HostTensor tensor = source->read(down);
  for (int i = 0; i < 96; ++i) EXPECT_EQ(tensor.at(i), float(i % 64) / 2) << i;
  expect_counting(*source, "blk.1.ffn_norm.weight", {8});
}

TEST(Llama2c, TellsItsSizesInTheKeysOfGguf) {
  const TempDir dir;
  const Metadata m = open_source(dir.write("m.bin", llama2c_legacy_file({})))->metadata;
  EXPECT_EQ(m.text("general.architecture"), "llama");
  EXPECT_EQ(m.integer("llama.embedding_length", 0, 99), 8);
  EXPECT_EQ(m.integer("llama.feed_forward_length", 0, 99), 12);
  EXPECT_EQ(m.integer("llama.block_count", 0, 99), 2);
  EXPECT_EQ(m.integer("llama.attention.head_count", 0, 99), 2);
  EXPECT_EQ(m.integer("llama.attention.head_count_kv", 0, 99), 1);
  EXPECT_EQ(m.integer("llama.context_length", 0, 99), 4);
  EXPECT_EQ(m.integer("llama.vocab_size", 0, 99), 16);
  EXPECT_EQ(m.number("llama.attention.layer_norm_rms_epsilon", 0, 1), 1e-5);
  EXPECT_EQ(m.number("llama.rope.freq_base", 0, 1e6), 10000);
}

struct BrokenLlama2c {
  const char* name;
  const char* message;
  std::function<std::string()> bytes;
};

class Llama2cRefuses : public testing::TestWithParam<BrokenLlama2c> {};

TEST_P(Llama2cRefuses, WithTheNameOfTheFile) {
  const TempDir dir;
  const std::string path = dir.write("m.bin", GetParam().bytes());
  expect_error(ErrorKind::Input, GetParam().message, [&] { open_source(path); });
  expect_error(ErrorKind::Input, path + ": ", [&] { open_source(path); });
}

// Version 1 with the field at this index of the header (0: dim) set.
std::string v1_with(size_t field, int32_t value) {
  return llama2c_v1_file({}).replace(8 + 4 * field, 4, bytes_of_values(value));
}

const BrokenLlama2c kBrokenLlama2c[] = {
    {"LegacyShort", "the file has",
     [] {
       const std::string bytes = llama2c_legacy_file({});
       return bytes.substr(0, bytes.size() - 1);
     }},
    {"LegacyLong", "the file has", [] { return llama2c_legacy_file({}) + "x"; }},
    {"LegacyImplausible", "is no model",
     [] { return llama2c_legacy_file({}).replace(0, 4, bytes_of_values(-8)); }},
    {"V1Short", "the file has",
     [] {
       const std::string bytes = llama2c_v1_file({});
       return bytes.substr(0, bytes.size() - 1);
     }},
    {"V1Long", "the file has", [] { return llama2c_v1_file({}) + "x"; }},
    {"V2Long", "the file has", [] { return llama2c_v2_file({}, 4) + "x"; }},
    {"HeaderCut", "bytes wanted", [] { return llama2c_v1_file({}).substr(0, 20); }},
    {"Version3", "version 3, supported: 1, 2", [] { return v1_with(0, 8).replace(4, 1, "\3"); }},
    {"DimZero", "header: dim is 0", [] { return v1_with(0, 0); }},
    {"HiddenNegative", "header: hidden_dim is -1", [] { return v1_with(1, -1); }},
    {"LayersMany", "header: n_layers is 2147483647", [] { return v1_with(2, INT32_MAX); }},
    {"HeadsZero", "header: n_heads is 0", [] { return v1_with(3, 0); }},
    {"HeadsDoNotDivide", "header: dim is 8", [] { return v1_with(3, 3); }},
    {"KvHeadsZero", "header: n_kv_heads is 0", [] { return v1_with(4, 0); }},
    {"KvHeadsAboveHeads", "header: n_kv_heads is 3", [] { return v1_with(4, 3); }},
    {"KvHeadsDoNotDivide", "no multiple of 3",
     [] { return v1_with(3, 4).replace(8 + 16, 4, bytes_of_values(3)); }},
    {"VocabNegative", "header: vocab_size is -16", [] { return v1_with(5, -16); }},
    {"ContextZero", "header: seq_len is 0", [] { return v1_with(6, 0); }},
    {"SharedClassifier2", "shared_classifier is 2",
     [] { return llama2c_v1_file({}).replace(36, 1, "\2"); }},
    {"GroupZero", "header: group_size is 0",
     [] { return llama2c_v2_file({}, 8).replace(37, 4, bytes_of_values(0)); }},
    {"GroupDoesNotDivide", "no whole groups of 7",
     [] { return llama2c_v2_file({}, 8).replace(37, 4, bytes_of_values(7)); }},
    {"AsksForMoreThanThereIs", "its header asks for", [] { return v1_with(5, 1 << 24); }},
};

INSTANTIATE_TEST_SUITE_P(Rules, Llama2cRefuses, testing::ValuesIn(kBrokenLlama2c),
                         [](const auto& info) { return info.param.name; });

TEST(OpenSource, NamesWhatIsNoModel) {
  const TempDir dir;
  expect_error(ErrorKind::Input, "m: is empty", [&] { open_source(dir.write("m", "")); });
  expect_error(ErrorKind::Input, "is a ggml file from before GGUF; convert it",
               [&] { open_source(dir.write("m", "lmgg12345678")); });
  expect_error(ErrorKind::Input, "is a zip archive",
               [&] { open_source(dir.write("m", "PK\x03\x04....")); });
  expect_error(ErrorKind::Input, "cannot open", [&] { open_source(dir.path() / "none"); });
  expect_error(ErrorKind::Input, "not a regular file", [&] { open_source("/dev/zero"); });
}

}  // namespace
}  // namespace minfer
