#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/half.h"
#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

namespace minfer {
namespace {

using namespace test;
using nlohmann::json;

constexpr int64_t kExperts = 3, kRows = 6, kColumns = 64, kBlocks = kColumns / 32;
const std::string kModule = "model.layers.0.mlp.experts.";

std::string random_bytes(uint64_t seed, int64_t n, int least = 0, int most = 255) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<int> of(least, most);
  std::string bytes;
  for (int64_t i = 0; i < n; ++i) bytes.push_back(static_cast<char>(of(engine)));
  return bytes;
}

struct Files {
  json config = {{"model_type", "gpt_oss"}, {"quantization_config", {{"quant_method", "mxfp4"}}}};
  std::map<std::string, SafetensorsTensor> tensors;

  std::unique_ptr<TensorSource> open(const TempDir& dir) const {
    dir.write("config.json", config.dump());
    dir.write("model.safetensors", safetensors_file(tensors, {}));
    return open_source(dir.path());
  }
};

// Exponents such that no value leaves f32.
Files with_blocks() {
  Files files;
  const int64_t n = kExperts * kRows * kBlocks;
  for (const std::string name : {"gate_up_proj", "down_proj"}) {
    files.tensors[kModule + name + "_blocks"] = {
        "U8", {kExperts, kRows, kBlocks, 16}, random_bytes(1, n * 16)};
    files.tensors[kModule + name + "_scales"] = {
        "U8", {kExperts, kRows, kBlocks}, random_bytes(2, n, 0, 250)};
  }
  return files;
}

// What the format says of an element.
float value_of(const Files& files, const std::string& name, int64_t expert, int64_t row,
               int64_t column) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int64_t block = (expert * kRows + row) * kBlocks + column / 32;
  const std::string& codes = files.tensors.at(kModule + name + "_blocks").data;
  const std::string& scales = files.tensors.at(kModule + name + "_scales").data;
  const auto byte = uint8_t(codes[size_t(block * 16 + column % 32 / 2)]);
  const int code = column % 2 == 0 ? byte & 15 : byte >> 4;
  const float value = std::ldexp(kValues[code & 7], uint8_t(scales[size_t(block)]) - 127);
  return code >= 8 ? -value : value;
}

// Rows of gate come first, whose places in the file are the even ones; those of down stay.
int64_t row_in_file(const std::string& name, int64_t row) {
  if (name == "down_proj") return row;
  return row < kRows / 2 ? 2 * row : 2 * (row - kRows / 2) + 1;
}

TEST(GptOssExperts, HaveTheCodesOfTheFile) {
  const TempDir dir;
  const Files files = with_blocks();
  const auto source = files.open(dir);
  EXPECT_EQ(source->format, "safetensors, mxfp4");
  EXPECT_TRUE(source->unusable.empty()) << source->unusable.begin()->first;
  ASSERT_EQ(source->tensors.size(), 2u);
  for (const std::string name : {"gate_up_proj", "down_proj"}) {
    const TensorEntry& entry = tensor_of(*source, kModule + name);
    EXPECT_EQ(entry.dtype, DType::MXFP4);
    EXPECT_EQ(entry.shape, (Shape{kExperts, kRows, kColumns}));
    const HostTensor values = to_f32_tensor(source->read(entry));
    for (int64_t i = 0; i < entry.shape.n_elements(); ++i) {
      const int64_t row = i / kColumns % kRows, expert = i / kColumns / kRows;
      ASSERT_EQ(values.at(i), value_of(files, name, expert, row_in_file(name, row), i % kColumns))
          << name << ' ' << i;
    }
  }
}

// [n_experts, in, out] with columns of gate and up in turns, and biases of both.
TEST(GptOssExperts, OfFloatsAreTurnedRound) {
  Files files;
  files.config.erase("quantization_config");
  const auto add = [&](const std::string& name, std::vector<int64_t> dims) {
    std::vector<float> values;
    int64_t n = 1;
    for (const int64_t dim : dims) n *= dim;
    for (int64_t i = 0; i < n; ++i) values.push_back(float(i));
    files.tensors[kModule + name] = {"F32", std::move(dims), bytes_of_vector(values)};
  };
  add("gate_up_proj", {kExperts, 5, kRows});
  add("gate_up_proj_bias", {kExperts, kRows});
  add("down_proj", {kExperts, kRows, 5});
  add("down_proj_bias", {kExperts, 5});
  const TempDir dir;
  const auto source = files.open(dir);
  EXPECT_EQ(source->format, "safetensors");
  const auto read = [&](const char* name, const Shape& shape) {
    const TensorEntry& entry = tensor_of(*source, kModule + name);
    EXPECT_EQ(entry.shape, shape) << name;
    return source->read(entry);
  };
  const HostTensor up = read("gate_up_proj", {kExperts, kRows, 5});
  const HostTensor down = read("down_proj", {kExperts, 5, kRows});
  const HostTensor bias = read("gate_up_proj_bias", {kExperts, kRows});
  const HostTensor down_bias = read("down_proj_bias", {kExperts, 5});
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t stored = row_in_file("gate_up_proj", row);
      ASSERT_EQ(bias.at(e * kRows + row), float(e * kRows + stored));
      for (int64_t i = 0; i < 5; ++i) {
        ASSERT_EQ(up.at((e * kRows + row) * 5 + i), float((e * 5 + i) * kRows + stored));
        ASSERT_EQ(down.at((e * 5 + i) * kRows + row), float((e * kRows + row) * 5 + i));
        ASSERT_EQ(down_bias.at(e * 5 + i), float(e * 5 + i));
      }
    }
  }
}

// Some rows are those of the whole, whatever the dims that a caller sees.
TEST(GptOssExperts, GiveRowsAlone) {
  const TempDir dir;
  Files files = with_blocks();
  files.tensors[kModule + "gate_up_proj_bias"] = {
      "BF16", {kExperts, kRows}, random_bytes(3, kExperts * kRows * 2, 0, 60)};
  const auto source = files.open(dir);
  const auto expect_rows = [&](const TensorEntry& entry) {
    const HostTensor whole = source->read(entry);
    EXPECT_EQ(whole.view().shape, entry.shape);
    for (int64_t begin = 0; begin < entry.shape[0]; ++begin) {
      for (int64_t n = 1; n <= entry.shape[0] - begin; ++n) {
        const HostTensor rows = source->read_rows(entry, begin, n);
        const Tensor want = whole.view().rows(begin, n);
        ASSERT_EQ(rows.view().shape, want.shape);
        ASSERT_EQ(std::memcmp(rows.view().data, want.data, size_t(want.n_bytes())), 0)
            << entry.name << ' ' << begin << ' ' << n;
      }
    }
  };
  for (const char* name : {"gate_up_proj", "down_proj", "gate_up_proj_bias"}) {
    TensorEntry entry = tensor_of(*source, kModule + name);
    expect_rows(entry);
    const int64_t n_rows = kExperts * kRows;
    entry.shape = entry.shape.rank == 2 ? Shape{n_rows} : Shape{n_rows, kColumns};
    expect_rows(entry);
  }
}

struct WrongExperts {
  const char* name;
  void (*change)(Files& files);
  const char* message;
};

class GptOssRefusal : public testing::TestWithParam<WrongExperts> {};

TEST_P(GptOssRefusal, NamesWhatItMet) {
  const TempDir dir;
  Files files = with_blocks();
  GetParam().change(files);
  expect_error(ErrorKind::Input, GetParam().message, [&] { files.open(dir); });
}

SafetensorsTensor& tensor(Files& files, const std::string& name) {
  return files.tensors.at(kModule + name);
}

const WrongExperts kWrongExperts[] = {
    {"NoExponents", [](Files& files) { files.tensors.erase(kModule + "down_proj_scales"); },
     "down_proj_scales: is missing"},
    {"OtherExponents",
     [](Files& files) {
       tensor(files, "down_proj_scales") = {"U8", {kExperts, kRows, 1}, std::string(18, 'x')};
     },
     "down_proj_scales: shape [3, 6, 1], expected [3, 6, 2]"},
    {"OtherBlocks",
     [](Files& files) {
       tensor(files, "down_proj_blocks").dims = {kExperts, kRows, 2 * kBlocks, 8};
     },
     "down_proj_blocks: shape [3, 6, 4, 8], expected [3, 6, 4, 16]"},
    {"FewerDims",
     [](Files& files) {
       tensor(files, "down_proj_blocks").dims = {kExperts, kRows, 32};
     },
     "down_proj_blocks: has 3 dims, expected 4"},
    {"SignedCodes", [](Files& files) { tensor(files, "down_proj_blocks").dtype = "I8"; },
     "down_proj_blocks: has dtype I8, expected U8"},
    {"OddRows",
     [](Files& files) {
       tensor(files, "gate_up_proj_blocks").dims = {2 * kExperts, 3, kBlocks, 16};
       tensor(files, "gate_up_proj_scales").dims = {2 * kExperts, 3, kBlocks};
     },
     "gate_up_proj_blocks: has 3 rows of gate and up, expected an even number"},
    {"FloatsOfCodes",
     [](Files& files) {
       files.tensors[kModule + "gate_up_proj"] = {"U8", {1, 2, 2}, "abcd"};
     },
     "gate_up_proj: has dtype U8, expected F32, F16 or BF16"},
    {"BothForms",
     [](Files& files) {
       files.tensors[kModule + "down_proj"] = {"F16", {1, 1, 2}, "abcd"};
     },
     "down_proj: is there twice"},
    {"OtherModel", [](Files& files) { files.config["model_type"] = "llama"; },
     "quant_method is \"mxfp4\": not supported for other models than gpt_oss"},
    {"OtherSettings", [](Files& files) { files.config["quantization_config"]["block_size"] = 16; },
     "key quantization_config is \"block_size\": not supported"},
    {"OtherMethod",
     [](Files& files) { files.config["quantization_config"]["quant_method"] = "fp8"; },
     "quant_method is \"fp8\": not supported"}};

INSTANTIATE_TEST_SUITE_P(Cases, GptOssRefusal, testing::ValuesIn(kWrongExperts),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace minfer
