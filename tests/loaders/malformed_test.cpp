#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/support/allocation_meter.h"
#include "tests/support/load_everything.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"

// Every prefix of a sound file, and every byte of its headers changed: each either loads or ends in
// one Input error of one line, in bounded time and memory.
namespace minfer {
namespace {

using namespace test;

struct Sample {
  const char* name;
  std::string file;  // the one that is damaged
  std::string bytes;
  size_t header_bytes;                                           // what comes before the data
  std::vector<std::pair<std::string, std::string>> others = {};  // name and bytes
};

std::string gguf_bytes(bool split) {
  GgufBuilder file;
  file.pair("general.alignment", kU32, bytes_of_values(uint32_t{32}))
      .pair("llama.rope.freq_base", kF32, bytes_of_values(1e4f))
      .pair("flag", kBool, "\1")
      .texts("tokenizer.ggml.tokens", {"<s>", "a", ""})
      .array<float>("tokenizer.ggml.scores", kF32, {0, -1, -2});
  if (split) {
    file.pair("split.no", kU16, bytes_of_values(uint16_t{0}))
        .pair("split.count", kU16, bytes_of_values(uint16_t{2}))
        .pair("split.tensors.count", kI32, bytes_of_values(int32_t{3}));
  }
  file.tensor({"a", {3, 2}, 0, bytes_of_vector(counting_floats(6))})
      .tensor({"q", {32, 2}, 8, std::string(68, '\1')});
  return file.build();
}

std::string second_gguf_part() {
  GgufBuilder file;
  file.pair("split.no", kU16, bytes_of_values(uint16_t{1}))
      .pair("split.count", kU16, bytes_of_values(uint16_t{2}))
      .pair("split.tensors.count", kI32, bytes_of_values(int32_t{3}))
      .tensor({"b", {1}, 0, bytes_of_values(1.0f)});
  return file.build();
}

const std::string kConfig = R"({"model_type": "llama", "hidden_size": 64, "tie": true,
 "rope_scaling": {"type": "linear", "factor": 2.0}, "eos": [1, 2], "eps": 1e-05})";
const std::string kShardHeader =
    R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3],
 "data_offsets": [0, 24]}, "i": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}})";
const std::string kShard = safetensors_file(kShardHeader, std::string(32, '\0'));
const std::string kIndex =
    R"({"metadata": {"total_size": 32}, "weight_map": {"a": "m-1.safetensors", "i": "m-1.safetensors"}})";

std::vector<Sample> samples() {
  Llama2cSizes untied;
  untied.tied = false;
  const std::string index_name = "model.safetensors.index.json";
  return {
      {"Gguf", "m.gguf", gguf_bytes(false), 400},
      {"GgufSplit",
       "m-00001-of-00002.gguf",
       gguf_bytes(true),
       512,
       {{"m-00002-of-00002.gguf", second_gguf_part()}}},
      {"Safetensors", "m.safetensors", kShard, 8 + kShardHeader.size()},
      {"HfShard", "model.safetensors", kShard, 8 + kShardHeader.size(), {{"config.json", kConfig}}},
      {"HfConfig", "config.json", kConfig, kConfig.size(), {{"model.safetensors", kShard}}},
      {"HfIndex",
       index_name,
       kIndex,
       kIndex.size(),
       {{"config.json", kConfig}, {"m-1.safetensors", kShard}}},
      {"Llama2cLegacy", "m.bin", llama2c_legacy_file(untied), 28},
      {"Llama2cV1", "m.bin", llama2c_v1_file(untied), 256},
      {"Llama2cV2", "m.bin", llama2c_v2_file(untied, 8), 256},
  };
}

class Malformed : public testing::TestWithParam<Sample> {
 protected:
  Malformed() {
    for (const auto& [name, bytes] : GetParam().others) dir_.write(name, bytes);
    const bool directory =
        std::filesystem::exists(dir_.path() / "config.json") || GetParam().file == "config.json";
    path_ = directory ? dir_.path() : dir_.path() / GetParam().file;
  }

  // Loads the sample with these bytes; says whether it was accepted.
  bool load(const std::string& bytes, const std::string& what) {
    dir_.write(GetParam().file, bytes);
    uint64_t all_bytes = bytes.size();
    for (const auto& [name, other] : GetParam().others) all_bytes += other.size();
    const auto start = std::chrono::steady_clock::now();
    const size_t held = held_bytes();
    reset_peak();
    bool accepted = true;
    try {
      load_everything(path_);
    } catch (const Error& e) {
      accepted = false;
      EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(ErrorKind::Input)) << what << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with(dir_.path().string())) << what << e.what();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_LE(peak_bytes() - held, 2 * all_bytes + (16 << 20)) << what;
    EXPECT_LE(taken.count(), 1.0) << what;
    return accepted;
  }

  TempDir dir_;
  std::string path_;
};

TEST_P(Malformed, SoundFileLoads) { EXPECT_TRUE(load(GetParam().bytes, "sound")); }

TEST_P(Malformed, EveryPrefixIsHandled) {
  const std::string& bytes = GetParam().bytes;
  for (size_t n = 0; n < bytes.size(); ++n) load(bytes.substr(0, n), cat("prefix ", n, ": "));
}

TEST_P(Malformed, EveryHeaderByteIsHandled) {
  std::string bytes = GetParam().bytes;
  for (size_t i = 0; i < std::min(GetParam().header_bytes, bytes.size()); ++i) {
    const char original = bytes[i];
    std::vector<int> values = {0x00, 0xff};
    for (int bit = 0; bit < 8; ++bit) values.push_back(original ^ (1 << bit));
    for (const int value : values) {
      bytes[i] = static_cast<char>(value);
      load(bytes, cat("byte ", i, " = ", value, ": "));
    }
    bytes[i] = original;
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, Malformed, testing::ValuesIn(samples()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer
