#include <gtest/gtest.h>

#include <string>

#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

namespace minfer {
namespace {

using namespace test;

constexpr const char* kTwo =
    R"({"__metadata__": {"format": "pt"},
        "b": {"dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})";
const std::string kTwoData =
    bytes_of_vector(counting_floats(6)) + bytes_of_values(uint16_t{0x3c00}, uint16_t{0xc000});

TEST(Safetensors, DeliversTensors) {
  const TempDir dir;
  const auto source = open_source(dir.write("m.safetensors", safetensors_file(kTwo, kTwoData)));
  EXPECT_EQ(source->format, "safetensors");
  EXPECT_EQ(source->key_style, KeyStyle::HuggingFace);
  ASSERT_EQ(source->tensors.size(), 2u);
  EXPECT_EQ(tensor_of(*source, "a").shape, (Shape{2, 3}));
  EXPECT_EQ(source->read(tensor_of(*source, "a")).at(5), 0.625f);
  EXPECT_EQ(tensor_of(*source, "b").dtype, DType::F16);
  EXPECT_EQ(source->read(tensor_of(*source, "b")).at(1), -2.0f);
  source->check_unchanged();
}

TEST(Safetensors, TakesBlanksScalarsAndEmptyTensors) {
  const TempDir dir;
  const auto source = open_source(dir.write(
      "m.safetensors",
      safetensors_file("  {\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
                       "\"e\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[2,2]}}\n  ",
                       bytes_of_values(uint16_t{0x3f80}))));
  EXPECT_EQ(source->read(tensor_of(*source, "s")).at(0), 1.0f);
  EXPECT_EQ(tensor_of(*source, "e").shape.n_elements(), 0);
}

TEST(Safetensors, NamesWhatItCannotDeliver) {
  const TempDir dir;
  const auto source = open_source(dir.write(
      "m.safetensors", safetensors_file(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},
                           "f4":{"dtype":"F4","shape":[2],"data_offsets":[8,9]},
                           "d":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[9,13]}})",
                                        std::string(13, '\0'))));
  EXPECT_TRUE(source->tensors.empty());
  EXPECT_EQ(source->unusable.at("i"), "has dtype I64, supported: F32, F16 and BF16");
  EXPECT_EQ(source->unusable.at("f4"), "has dtype F4, supported: F32, F16 and BF16");
  EXPECT_EQ(source->unusable.at("d"), "has 5 dims, at most 4 are supported");
}

struct BrokenSafetensors {
  const char* name;
  const char* message;
  std::string header;
  size_t data_bytes = 8;
};

class SafetensorsRefuses : public testing::TestWithParam<BrokenSafetensors> {};

TEST_P(SafetensorsRefuses, WithTheNameOfTheFile) {
  const TempDir dir;
  const std::string bytes =
      safetensors_file(GetParam().header, std::string(GetParam().data_bytes, 'x'));
  const std::string path = dir.write("m.safetensors", bytes);
  expect_error(ErrorKind::Input, GetParam().message, [&] { open_source(path); });
  expect_error(ErrorKind::Input, path + ": ", [&] { open_source(path); });
}

// A header of one tensor "w".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return cat(R"({"w":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets,
             "}}");
}

const BrokenSafetensors kBrokenSafetensors[] = {
    {"NotAnObject", "is no model", "[1, 2, 3]"},
    {"NotJson", "malformed JSON: byte", "{\"w\": nothing}"},
    {"CutJson", "malformed JSON: byte", "{\"w\": {\"dtype\":"},
    {"BadUtf8", "malformed JSON: byte", "{\"w\xff\": 1}"},
    {"TextAfter", "malformed JSON: byte", one("\"F32\"", "[2]", "[0,8]") + "x"},
    {"NulAfter", "malformed JSON: byte", one("\"F32\"", "[2]", "[0,8]") + std::string(1, '\0')},
    {"TensorTwice", "key \"w\" twice",
     R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
         "w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"},
    {"FieldTwice", "key \"dtype\" twice",
     R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"},
    {"TensorNotAnObject", "tensor w: is array", R"({"w":["F32",[2],[0,8]]})"},
    {"NoDtype", "tensor w: has no dtype", R"({"w":{"shape":[2],"data_offsets":[0,8]}})"},
    {"NoShape", "tensor w: has no shape", R"({"w":{"dtype":"F32","data_offsets":[0,8]}})"},
    {"NoOffsets", "tensor w: has no data_offsets", R"({"w":{"dtype":"F32","shape":[2]}})"},
    {"UnknownField", "has 4 fields",
     R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})"},
    {"MetadataNotAnObject", "__metadata__ is string", R"({"__metadata__": "pt"})", 0},
    {"MetadataNotText", "__metadata__: a is number", R"({"__metadata__": {"a": 1}})", 0},
    {"UnknownDtype", "tensor w: dtype F32x is not known", one("\"F32x\"", "[2]", "[0,8]")},
    {"DtypeNotText", "dtype is number", one("32", "[2]", "[0,8]")},
    {"ShapeNotAnArray", "shape is number, expected an array", one("\"F32\"", "2", "[0,8]")},
    {"ShapeReal", "shape has 2.0", one("\"F32\"", "[2.0]", "[0,8]")},
    {"ShapeExponent", "shape has 2.0", one("\"F32\"", "[2e0]", "[0,8]")},
    {"ShapeNegative", "shape has -2", one("\"F32\"", "[-2]", "[0,8]")},
    {"ShapeMinusZero", "shape has", one("\"F32\"", "[-0]", "[0,0]"), 0},
    {"ShapeText", "shape has \"2\"", one("\"F32\"", "[\"2\"]", "[0,8]")},
    {"ShapePast63Bits", "shape has 9223372036854775808",
     one("\"F32\"", "[9223372036854775808]", "[0,8]")},
    {"ShapePast64Bits", "shape has", one("\"F32\"", "[18446744073709551618]", "[0,8]")},
    {"RankNine", "has 9 dims", one("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]")},
    {"ProductWrapsToZero", "overflows", one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0},
    {"ProductWrapsToFour", "overflows",
     one("\"F32\"", "[4194305,4194305,211106198978564]", "[0,16]"), 16},
    {"ZeroHidesNoOverflow", "overflows", one("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0},
    {"HalfABlock", "expected whole bytes", one("\"F4\"", "[3]", "[0,1]"), 1},
    {"OffsetsOne", "data_offsets has 1 values", one("\"F32\"", "[2]", "[8]")},
    {"OffsetsNegative", "data_offsets has -8", one("\"F32\"", "[2]", "[-8,0]")},
    {"OffsetsSwapped", "expected begin <= end", one("\"F32\"", "[2]", "[8,0]")},
    {"OffsetsTooShort", "span 4 bytes, dtype and shape need 8", one("\"F32\"", "[2]", "[0,4]")},
    {"OffsetsPastTheFile", "the tensors end at 8", one("\"F32\"", "[2]", "[0,8]"), 7},
    {"HoleInFront", "begins at 4 in the data, expected 0", one("\"F32\"", "[1]", "[4,8]")},
    {"Hole", "tensor b: begins at 5 in the data, expected 4",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
         "b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})"},
    {"Overlap", "tensor b: begins at 3 in the data, expected 4",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
         "b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})"},
    {"SameBytes", "begins at 0 in the data, expected 8",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
         "b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"},
    {"EmptyInsideAnother", "tensor e: begins at 4 in the data, expected 8",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
         "e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})"},
    {"TrailingBytes", "the tensors end at 8 in the data, the data of the file at 9",
     one("\"F32\"", "[2]", "[0,8]"), 9},
};

INSTANTIATE_TEST_SUITE_P(Rules, SafetensorsRefuses, testing::ValuesIn(kBrokenSafetensors),
                         [](const auto& info) { return info.param.name; });

TEST(Safetensors, HeaderLengthStaysInTheFile) {
  const TempDir dir;
  dir.write("config.json", "{}");
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'001}, UINT64_MAX}) {
    dir.write("model.safetensors", bytes_of_values(length) + "{}");
    expect_error(ErrorKind::Input, cat("a header of ", length, " bytes, 2 are left"),
                 [&] { open_source(dir.path()); });
  }
  for (const char* bytes : {"", "1234567"}) {
    dir.write("model.safetensors", bytes);
    expect_error(ErrorKind::Input, "model.safetensors: byte 0: 8 bytes wanted",
                 [&] { open_source(dir.path()); });
  }
}

}  // namespace
}  // namespace minfer
