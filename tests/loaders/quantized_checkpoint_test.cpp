#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "loaders/checksum.h"
#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/load_everything.h"
#include "tests/support/packed_directory.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using namespace test;
using nlohmann::json;
namespace fs = std::filesystem;

HostTensor values_of(const TensorSource& source, const TensorEntry& entry) {
  return entry.quant ? dequantized(source.read_quantized(entry).view()) : source.read(entry);
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(fixtures_dir() / "quantized")) {
    names.push_back(item.path().filename());
  }
  return names;
}

// Packed by others: scripts/make_quantized_fixtures.py.
class QuantizedFixture : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedFixture, MeansTheSameValues) {
  const fs::path dir = fixtures_dir() / "quantized" / GetParam();
  const auto source = open_source(dir);
  EXPECT_TRUE(source->unusable.empty()) << source->unusable.begin()->first;
  const json expected = json::parse(read_file(dir / "expected.json"))["sha256"];
  ASSERT_EQ(expected.size(), 7u);
  EXPECT_EQ(source->tensors.size(), 11u);
  for (const auto& [name, hash] : expected.items()) {
    const TensorEntry& entry = tensor_of(*source, name);
    EXPECT_EQ(entry.quant.has_value(), !GetParam().ends_with("desc-act"));
    const HostTensor values = values_of(*source, entry);
    EXPECT_EQ(sha256_hex({static_cast<const char*>(values.view().data),
                          static_cast<size_t>(values.view().n_bytes())}),
              hash.get<std::string>())
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, QuantizedFixture, testing::ValuesIn(fixture_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::unique_ptr<TensorSource> open(const TempDir& dir, const PackedDirectory& packed) {
  dir.write("config.json", packed.config_text());
  dir.write("model.safetensors", packed.tensors_file());
  return open_source(dir.path());
}

std::vector<float> row_of(const PackedDirectory& packed, int64_t row) {
  const TempDir dir;
  const auto source = open(dir, packed);
  const TensorEntry& entry = tensor_of(*source, "m.weight");
  const HostTensor values = values_of(*source, entry);
  const float* begin = values.as<const float>() + row * entry.shape.last();
  return {begin, begin + entry.shape.last()};
}

TEST(QuantizedCheckpoint, SaysWhatItHolds) {
  const TempDir dir;
  PackedDirectory packed = packed_compressed_tensors();
  packed.tensors["n.weight"] = {"F16", {1}, bytes_of_values(kHalfTwo)};
  packed.tensors["other"] = {"I32", {1}, std::string(4, '\0')};
  const auto source = open(dir, packed);
  EXPECT_EQ(source->format, "safetensors, compressed-tensors int4 g4");
  ASSERT_EQ(source->tensors.size(), 2u);
  const TensorEntry& entry = tensor_of(*source, "m.weight");
  EXPECT_EQ(entry.dtype, DType::U4);
  EXPECT_EQ(entry.shape, (Shape{2, 8}));
  EXPECT_EQ(entry.file_bytes, 8u + 8 + 16);
  EXPECT_EQ(type_text(entry), "int4 g4");
  EXPECT_EQ(source->read(tensor_of(*source, "n.weight")).at(0), 2.0f);
  EXPECT_EQ(source->unusable.size(), 1u);
  EXPECT_TRUE(source->unusable.contains("other"));
}

TEST(QuantizedCheckpoint, ReadsEachPacking) {
  using Row = std::vector<float>;
  EXPECT_EQ(row_of(packed_compressed_tensors(), 0), (Row{-8, -7, -6, -5, -8, -6, -4, -2}));
  EXPECT_EQ(row_of(packed_compressed_tensors(), 1), (Row{14, 12, 10, 8, 3, 2, 1, 0}));
  EXPECT_EQ(row_of(asymmetric_compressed_tensors(), 0),
            (Row{-13, -12, -11, -10, -18, -16, -14, -12}));
  EXPECT_EQ(row_of(packed_gptq(), 3), (Row{-8, -7, -6, -5, -4, -3, -2, -1}));
  EXPECT_EQ(row_of(packed_awq(), 5), (Row{4, 4, 4, 4}));
}

TEST(QuantizedCheckpoint, LastWordOfARowMayBeFilledUp) {
  PackedDirectory packed = packed_compressed_tensors();
  packed.quantization["config_groups"]["group_0"]["weights"]["group_size"] = 3;
  packed.tensors["m.weight_shape"].data = bytes_of_values(int64_t{2}, int64_t{6});
  EXPECT_EQ(row_of(packed, 1), (std::vector<float>{14, 12, 10, 4, 3, 2}));
}

// `packed` with random words [in / along_in][out / along_out] as codes in one group, scales 1 and
// zero-points 8; expects code(words, row, column) - 8 everywhere.
template <typename Code>
void expect_codes(PackedDirectory packed, int64_t out_dim, int64_t in_dim, int64_t along_out,
                  int64_t along_in, uint32_t zeros, Code code) {
  std::mt19937 engine(1);
  std::vector<uint32_t> words(size_t(out_dim / along_out * (in_dim / along_in)));
  for (uint32_t& word : words) word = uint32_t(engine());
  packed.quantization["group_size"] = -1;
  packed.tensors.erase("m.g_idx");
  packed.tensors["m.qweight"] = {
      "I32", {in_dim / along_in, out_dim / along_out}, bytes_of_vector(words)};
  packed.tensors["m.qzeros"] = {
      "I32", {1, out_dim / 8}, bytes_of_vector(std::vector<uint32_t>(size_t(out_dim / 8), zeros))};
  packed.tensors["m.scales"] = {
      "F16", {1, out_dim}, bytes_of_vector(std::vector<uint16_t>(size_t(out_dim), kHalfOne))};
  const TempDir dir;
  const auto source = open(dir, packed);
  const HostTensor values = values_of(*source, tensor_of(*source, "m.weight"));
  for (int64_t row = 0; row < out_dim; ++row) {
    for (int64_t column = 0; column < in_dim; ++column) {
      ASSERT_EQ(values.at(row * in_dim + column), float(code(words, row, column)) - 8)
          << "row " << row << ", column " << column;
    }
  }
}

// More than one tile of the loops, and not whole ones, against the definition.
TEST(QuantizedCheckpoint, CodesOfLargeMatricesKeepTheirPlaces) {
  constexpr int64_t kOut = 152;
  using Words = std::vector<uint32_t>;
  expect_codes(packed_gptq(), kOut, 136, 1, 8, 0x77777777,
               [](const Words& words, int64_t row, int64_t column) {
                 return words[size_t(column / 8 * kOut + row)] >> column % 8 * 4 & 15;
               });
  expect_codes(packed_awq(), kOut, 134, 8, 1, 0x88888888,
               [](const Words& words, int64_t row, int64_t column) {
                 constexpr int kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};
                 return words[size_t(column * (kOut / 8) + row / 8)] >> kPlaces[row % 8] * 4 & 15;
               });
}

// A zero-point of 0, less one, has wrapped around.
TEST(QuantizedCheckpoint, GptqZeroWrapsAround) {
  PackedDirectory packed = packed_gptq();
  packed.quantization["sym"] = false;
  packed.tensors["m.qzeros"].data = std::string(8, '\xff');
  EXPECT_EQ(row_of(packed, 0)[7], 7.0f);
  packed.quantization["checkpoint_format"] = "gptq_v2";
  EXPECT_EQ(row_of(packed, 0)[7], 7.0f - 15.0f);
}

// Left behind where an adapter was merged: the weights are plain.
TEST(QuantizedCheckpoint, TakesPlainWeightsBesideSettingsOfBitsandbytes) {
  const std::map<std::string, SafetensorsTensor> plain = {
      {"m.weight", {"F16", {1, 2}, bytes_of_values(kHalfOne, kHalfTwo)}}};
  PackedDirectory packed{{{"quant_method", "bitsandbytes"},
                          {"load_in_4bit", true},
                          {"_load_in_4bit", true},
                          {"bnb_4bit_quant_type", "nf4"},
                          {"llm_int8_threshold", 6.0}},
                         plain};
  const TempDir dir;
  const auto write = [&] {
    dir.write("config.json", packed.config_text());
    dir.write("model.safetensors", packed.tensors_file());
  };
  write();
  const auto source = open_source(dir.path());
  EXPECT_EQ(source->read(tensor_of(*source, "m.weight")).at(1), 2.0f);
  ASSERT_EQ(source->warnings.size(), 1u);
  EXPECT_NE(source->warnings[0].find("bitsandbytes, describes no tensor"), std::string::npos);
  packed.tensors["m.weight.absmax"] = {"F32", {1}, std::string(4, '\0')};
  write();
  expect_error(ErrorKind::Input, "tensor m.weight.absmax: weights as bitsandbytes packs them",
               [&] { load_everything(dir.path()); });
}

TEST(QuantizedCheckpoint, NamesMlx) {
  const TempDir dir;
  const json settings = {{"group_size", 64}, {"bits", 4}};
  PackedDirectory packed{settings,
                         {{"m.weight", {"U32", {1, 1}, std::string(4, '\0')}},
                          {"m.scales", {"F16", {1, 1}, bytes_of_values(kHalfOne)}}}};
  dir.write("model.safetensors", packed.tensors_file());
  json config = json::parse(packed.config_text());
  config["quantization"] = settings;
  for (const bool twice : {true, false}) {
    if (!twice) config.erase("quantization_config");
    dir.write("config.json", config.dump());
    expect_error(ErrorKind::Input,
                 "tensor m.scales and key quantization: weights as MLX packs them",
                 [&] { load_everything(dir.path()); });
  }
}

struct Refusal {
  const char* name;
  PackedDirectory packed;
  std::string message;
  std::string config_pointer = "";  // in quantization_config
  json config_value = nullptr;
  std::string tensor = "";
  std::optional<SafetensorsTensor> changed = {};  // nothing: the tensor is taken away
};

class QuantizedRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(QuantizedRefusal, NamesWhatItMet) {
  const Refusal& refusal = GetParam();
  PackedDirectory packed = refusal.packed;
  if (!refusal.config_pointer.empty()) {
    packed.quantization[json::json_pointer(refusal.config_pointer)] = refusal.config_value;
  }
  if (!refusal.tensor.empty()) {
    packed.tensors.erase(refusal.tensor);
    if (refusal.changed) packed.tensors[refusal.tensor] = *refusal.changed;
  }
  const TempDir dir;
  dir.write("config.json", packed.config_text());
  dir.write("model.safetensors", packed.tensors_file());
  const auto load = [&] { load_everything(dir.path()); };
  expect_error(ErrorKind::Input, refusal.message, load);
  expect_error(ErrorKind::Input, dir.path().string() + ": ", load);
}

std::vector<Refusal> refusals() {
  const PackedDirectory ct = packed_compressed_tensors(), gptq = packed_gptq(), awq = packed_awq();
  const PackedDirectory ct_zeros = asymmetric_compressed_tensors();
  const std::string group = "/config_groups/group_0", weights = group + "/weights";
  const auto text = [](size_t n) { return std::string(n, '\0'); };
  const std::string g_idx_7 = text(28);
  std::vector<Refusal> list = {
      {"Method", ct, "quant_method is \"hqq\": not supported (supported: compressed-",
       "/quant_method", "hqq"},
      {"Format", ct, "format is \"float-quantized\"", "/format", "float-quantized"},
      {"GroupFormat", ct, "format is \"marlin-24\"", group + "/format", "marlin-24"},
      {"Status", ct, "quantization_status is \"calibration\"", "/quantization_status",
       "calibration"},
      {"OutputActivations",
       ct,
       "output_activations is there",
       group + "/output_activations",
       {{"num_bits", 8}}},
      {"CacheScheme", ct, "kv_cache_scheme is there", "/kv_cache_scheme", {{"num_bits", 8}}},
      {"Rotation", ct, "transform_config is there", "/transform_config", {{"type", "hadamard"}}},
      {"Sparsity",
       ct,
       "sparsity_config.format is \"sparse-24",
       "/sparsity_config",
       {{"format", "sparse-24-bitmask"}}},
      {"ThreeBits", ct, "num_bits is 3: not supported (supported: 4, 8)", weights + "/num_bits", 3},
      {"FloatType", ct, "weights.type is \"float\"", weights + "/type", "float"},
      {"ActOrder", ct, "actorder is \"random\"", weights + "/actorder", "random"},
      {"Dynamic", ct, "dynamic is true", weights + "/dynamic", true},
      {"Strategy", ct, "strategy is \"block\"", weights + "/strategy", "block"},
      {"NoGroupSize", ct, "group_size is -1, expected more than 0", weights + "/group_size",
       nullptr},
      {"NoGroups", ct, "config_groups is missing", "/config_groups", json::object()},
      {"OtherGroup", ct, "tensor m.weight: has int4 g4, config_groups have int4 g8",
       weights + "/group_size", 8},
      {"MissingScale", ct, "tensor m.weight_scale: is missing", "", {}, "m.weight_scale"},
      {"MissingShape", ct, "tensor m.weight_shape: is missing", "", {}, "m.weight_shape"},
      {"MissingZero",
       ct_zeros,
       "tensor m.weight_zero_point: is missing",
       "",
       {},
       "m.weight_zero_point"},
      {"ZeroShape",
       ct_zeros,
       "m.weight_zero_point: shape [2], expected [2, 2]",
       "",
       {},
       "m.weight_zero_point",
       {{"I8", {2}, text(2)}}},
      {"ZeroRange",
       ct_zeros,
       "zero-point 3 is 8, expected -8 to 7",
       "",
       {},
       "m.weight_zero_point",
       {{"I8", {2, 2}, std::string("\1\1\1\x08")}}},
      {"PackedShape",
       ct,
       "m.weight_packed: shape [2, 2], expected [2, 1]",
       "",
       {},
       "m.weight_packed",
       {{"I32", {2, 2}, text(16)}}},
      {"PackedType",
       ct,
       "m.weight_packed: has dtype F32, expected I32",
       "",
       {},
       "m.weight_packed",
       {{"F32", {2, 1}, text(8)}}},
      {"OtherShape",
       ct,
       "m.weight_packed: shape [2, 1], expected [3, 1]",
       "",
       {},
       "m.weight_shape",
       {{"I64", {2}, bytes_of_values(int64_t{3}, int64_t{8})}}},
      {"NegativeShape",
       ct,
       "m.weight_shape: has -8, expected 1 to",
       "",
       {},
       "m.weight_shape",
       {{"I64", {2}, bytes_of_values(int64_t{2}, int64_t{-8})}}},
      {"ScaleType",
       ct,
       "m.weight_scale: has dtype I16, expected F32, F16 or BF16",
       "",
       {},
       "m.weight_scale",
       {{"I16", {2, 2}, text(8)}}},
      {"ScaleRows",
       ct,
       "m.weight_scale: shape [1, 2], expected [2, 2]",
       "",
       {},
       "m.weight_scale",
       {{"F16", {1, 2}, text(4)}}},
      {"GroupDoesNotDivide",
       ct,
       "m.weight_scale: has 3 scales for 8 columns",
       "",
       {},
       "m.weight_scale",
       {{"F16", {2, 3}, text(12)}}},
      {"GroupIndex",
       ct,
       "m.weight_g_idx: element 4 is 0, columns out of order are not supported",
       "",
       {},
       "m.weight_g_idx",
       {{"I32", {8}, text(32)}}},
      {"BytesWithoutScale",
       ct,
       "tensor n.weight_scale: is missing",
       "",
       {},
       "n.weight",
       {{"I8", {2, 2}, text(4)}}},

      {"GptqBits", gptq, "bits is 3: not supported by GPTQ", "/bits", 3},
      {"GptqFormat", gptq, "checkpoint_format is \"marlin\"", "/checkpoint_format", "marlin"},
      {"GptqMarlin", gptq, "is_marlin_format is true", "/is_marlin_format", true},
      {"GptqDynamic", gptq, "dynamic is there", "/dynamic", {{"+:.*", {{"bits", 8}}}}},
      {"GptqGroupZero", gptq, "group_size is 0", "/group_size", 0},
      {"GptqGroup", gptq, "groups of 3 do not divide its 8 rows", "/group_size", 3},
      {"GptqConvention", gptq, "zero-point of row 0, group 0 is 7, expected 8",
       "/checkpoint_format", "gptq_v2"},
      {"GptqZeros", gptq, "tensor m.qzeros: is missing", "", {}, "m.qzeros"},
      {"GptqScales",
       gptq,
       "m.scales: shape [1, 8], expected [2, 8]",
       "",
       {},
       "m.scales",
       {{"F16", {1, 8}, text(16)}}},
      {"GptqIndexRange",
       gptq,
       "tensor m.g_idx: element 7 is 2, expected 0 to 1",
       "",
       {},
       "m.g_idx",
       {{"I32", {8}, g_idx_7 + bytes_of_values(2)}}},
      {"GptqIndexNegative",
       gptq,
       "tensor m.g_idx: element 7 is -1, expected 0 to 1",
       "",
       {},
       "m.g_idx",
       {{"I32", {8}, g_idx_7 + bytes_of_values(-1)}}},
      {"GptqIndexLength",
       gptq,
       "m.g_idx: shape [7], expected [8]",
       "",
       {},
       "m.g_idx",
       {{"I32", {7}, g_idx_7}}},
      {"AwqVersion", awq, "version is \"gemv\"", "/version", "gemv"},
      {"AwqBits", awq, "bits is 8: not supported by AWQ", "/bits", 8},
      {"AwqSymmetric", awq, "zero_point is false", "/zero_point", false},
      {"AwqZeros",
       awq,
       "m.qzeros: shape [2, 1], expected [1, 1]",
       "",
       {},
       "m.qzeros",
       {{"I32", {2, 1}, text(8)}}},
  };
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedRefusal, testing::ValuesIn(refusals()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace minfer
