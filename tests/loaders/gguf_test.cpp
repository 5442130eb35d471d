#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

namespace minfer {
namespace {

using namespace test;

constexpr uint32_t kTypeF16 = 1, kTypeQ8K = 15, kTypeQ8 = 8, kTypeRemoved = 4;

GgufTensor tensor_2x3(std::string name = "w") {
  return {std::move(name), {3, 2}, 0, bytes_of_vector(counting_floats(6))};
}

std::unique_ptr<TensorSource> open_bytes(const std::string& bytes) {
  const TempDir dir;
  return open_source(dir.write("m.gguf", bytes));
}

TEST(Gguf, DeliversTensorsWithDimsOutermostFirst) {
  const TempDir dir;
  const auto source = open_source(dir.write(
      "m.gguf",
      GgufBuilder()
          .tensor(tensor_2x3("a"))
          .tensor({"b", {32}, kTypeQ8, bytes_of_values(uint16_t{0x3c00}) + std::string(32, '\2')})
          .tensor({"c", {2, 1, 1, 1}, kTypeF16, bytes_of_values(uint16_t{0x3c00}, uint16_t{0})})
          .build()));
  EXPECT_EQ(source->format, "gguf v3");
  EXPECT_EQ(source->key_style, KeyStyle::Gguf);
  EXPECT_TRUE(source->warnings.empty());
  ASSERT_EQ(source->tensors.size(), 3u);
  EXPECT_EQ(source->tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(source->tensors[1].dtype, DType::Q8_0);
  EXPECT_EQ(source->tensors[1].file_bytes, 34u);
  EXPECT_EQ(source->tensors[2].shape, (Shape{1, 1, 1, 2}));
  EXPECT_EQ(source->find("d"), nullptr);
  const HostTensor a = source->read(tensor_of(*source, "a"));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(a.at(i), float(i) / 8);
  EXPECT_EQ(to_f32_tensor(source->read(tensor_of(*source, "b"))).at(31), 2.0f);
  EXPECT_EQ(source->read(tensor_of(*source, "c")).at(0), 1.0f);
  source->check_unchanged();
}

TEST(Gguf, ReadsEveryTypeOfValue) {
  GgufBuilder file;
  file.version = 2;
  file.pair("u8", kU8, bytes_of_values(uint8_t{200}))
      .pair("i8", kI8, bytes_of_values(int8_t{-2}))
      .pair("u16", kU16, bytes_of_values(uint16_t{60000}))
      .pair("i16", kI16, bytes_of_values(int16_t{-3}))
      .pair("u32", kU32, bytes_of_values(uint32_t{4'000'000'000}))
      .pair("i32", kI32, bytes_of_values(int32_t{-4}))
      .pair("f32", kF32, bytes_of_values(0.5f))
      .pair("bool", kBool, bytes_of_values(uint8_t{1}))
      .pair("text", kText, gguf_text("t"))
      .pair("u64", kU64, bytes_of_values(UINT64_MAX))
      .pair("i64", kI64, bytes_of_values(int64_t{-5}))
      .pair("f64", kF64, bytes_of_values(0.1))
      .array<uint8_t>("u8s", kU8, {1, 255})
      .array<int16_t>("i16s", kI16, {-1})
      .array<uint64_t>("u64s", kU64, {7})
      .array<float>("f32s", kF32, {0.25f, -1})
      .array<char>("bools", kBool, {1, 0})
      .texts("texts", {"", "x\xff"})
      .texts("none", {});
  const auto source = open_bytes(file.build());
  const Metadata& m = source->metadata;
  EXPECT_EQ(source->format, "gguf v2");
  EXPECT_EQ(m.integer("u8", 0, 255), 200);
  EXPECT_EQ(m.integer("i8", -128, 0), -2);
  EXPECT_EQ(m.integer("u16", 0, 65535), 60000);
  EXPECT_EQ(m.integer("i16", -9, 0), -3);
  EXPECT_EQ(m.integer("u32", 0, UINT32_MAX), 4'000'000'000);
  EXPECT_EQ(m.integer("i32", -9, 0), -4);
  EXPECT_EQ(m.number("f32", 0, 1), 0.5);
  EXPECT_TRUE(m.boolean("bool"));
  EXPECT_EQ(m.text("text"), "t");
  EXPECT_EQ(m.as_text("u64"), "18446744073709551615");
  EXPECT_EQ(m.integer("i64", -9, 0), -5);
  EXPECT_EQ(m.number("f64", 0, 1), 0.1);
  EXPECT_EQ(m.integers("u8s"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(m.integers("i16s"), (std::vector<int64_t>{-1}));
  EXPECT_EQ(m.integers("u64s"), (std::vector<int64_t>{7}));
  EXPECT_EQ(m.numbers("f32s"), (std::vector<double>{0.25, -1}));
  EXPECT_EQ(m.as_text("bools"), "2 values: [true, false]");
  EXPECT_EQ(m.texts("texts"), (std::vector<std::string>{"", "x\xff"}));
  EXPECT_TRUE(m.texts("none").empty());
}

TEST(Gguf, HonoursItsAlignment) {
  GgufBuilder file;
  file.alignment = 1024;
  file.pair("general.alignment", kU32, bytes_of_values(uint32_t{1024}))
      .tensor(tensor_2x3("a"))
      .tensor(tensor_2x3("b"));
  const auto source = open_bytes(file.build());
  EXPECT_EQ(source->tensors.size(), 2u);
  EXPECT_TRUE(source->warnings.empty());
}

// One tensor of a type that minfer does not have ends nothing but its own reading.
TEST(Gguf, TensorsOfOtherTypesAreKeptWithTheReason) {
  struct Type {
    uint32_t number;
    const char* reason;
    std::vector<uint64_t> dims;
    size_t n_bytes;
  };
  const Type types[] = {{15, "has type Q8_K, supported: F32, F16, Q4_0", {256, 2}, 584},
                        {27, "has type I64, supported: F32", {3}, 24},
                        {34, "has type TQ1_0, supported: F32", {256}, 54},
                        {4, "has type number 4, supported: F32", {32}, 18},
                        {4'000'000'000, "has type number 4000000000, supported: F32", {7}, 5}};
  for (const Type& type : types) {
    const TempDir dir;
    const auto source = open_source(dir.write(
        "m.gguf", GgufBuilder()
                      .tensor({"a", {1}, 0, bytes_of_values(1.0f)})
                      .tensor({"w", type.dims, type.number, std::string(type.n_bytes, '\1')})
                      .tensor({"b", {1}, 0, bytes_of_values(2.0f)})
                      .build()));
    ASSERT_EQ(source->tensors.size(), 2u);
    EXPECT_EQ(source->read(tensor_of(*source, "b")).at(0), 2);
    ASSERT_EQ(source->unusable.size(), 1u);
    EXPECT_TRUE(source->unusable["w"].starts_with(type.reason)) << source->unusable["w"];
    EXPECT_TRUE(source->warnings.empty()) << source->warnings[0];
  }
}

TEST(Gguf, WarnsOfBytesThatNobodyUses) {
  GgufBuilder file;
  file.tensor(tensor_2x3("a")).tensor({"b", {1}, 0, bytes_of_values(1.0f), 96});
  const std::string bytes = file.build() + std::string(70, 'x');
  const auto source = open_bytes(bytes);
  ASSERT_EQ(source->warnings.size(), 1u);
  EXPECT_NE(source->warnings[0].find("bytes belong to no tensor"), std::string::npos);
}

struct BrokenGguf {
  const char* name;
  const char* message;
  std::function<std::string()> bytes;
};

class GgufRefuses : public testing::TestWithParam<BrokenGguf> {};

TEST_P(GgufRefuses, WithTheNameOfTheFile) {
  const TempDir dir;
  const std::string path = dir.write("m.gguf", GetParam().bytes());
  expect_error(ErrorKind::Input, GetParam().message, [&] { open_source(path); });
  expect_error(ErrorKind::Input, path + ": ", [&] { open_source(path); });
}

std::string with_version(uint32_t version) {
  GgufBuilder file;
  file.version = version;
  return file.build();
}

std::string with_counts(std::optional<uint64_t> n_tensors, std::optional<uint64_t> n_pairs) {
  GgufBuilder file;
  file.n_tensors = n_tensors;
  file.n_pairs = n_pairs;
  return file.pair("k", kU8, "1").tensor(tensor_2x3()).build();
}

std::string with_pair(std::string_view key, uint32_t type, std::string_view value) {
  return GgufBuilder().pair(key, type, value).build();
}

std::string with_alignment(uint32_t value) {
  return with_pair("general.alignment", kU32, bytes_of_values(value));
}

std::string with_array(uint32_t type, uint64_t length, std::string_view bytes = "") {
  return with_pair("k", kArray, bytes_of_values(type, length).append(bytes));
}

std::string with_tensor(GgufTensor tensor) {
  return GgufBuilder().tensor(std::move(tensor)).build();
}

std::string with_dims(std::vector<uint64_t> dims, uint32_t type = 0) {
  return with_tensor({"w", std::move(dims), type, std::string(64, '\0')});
}

const BrokenGguf kBrokenGguf[] = {
    {"MagicAlone", "byte 4: 4 bytes wanted", [] { return std::string("GGUF"); }},
    {"OtherMagic", "is no model", [] { return "GGUX" + with_version(3).substr(4); }},
    {"Version1", "version 1, supported: 2 and 3", [] { return with_version(1); }},
    {"Version4", "version 4, supported: 2 and 3", [] { return with_version(4); }},
    {"BigEndian", "big-endian", [] { return with_version(0x03000000); }},
    {"TensorsPastTheFile", "announces 18446744073709551615 tensors",
     [] { return with_counts(UINT64_MAX, {}); }},
    {"KeysPastTheFile", "announces 1152921504606846976 keys",
     [] { return with_counts({}, uint64_t{1} << 60); }},
    {"OneTensorMoreThanThere", "a tensor name of 0 bytes", [] { return with_counts(2, {}); }},
    {"EmptyKey", "a key of 0 bytes", [] { return with_pair("", kText, gguf_text("x")); }},
    {"LongKey", "a key of 65536 bytes",
     [] { return with_pair(std::string(65536, 'k'), kU8, "1"); }},
    {"KeyPastTheFile", "byte 24: a key of 9223372036854775807 bytes",
     [] { return with_pair("k", kU8, "1").replace(24, 8, bytes_of_values(INT64_MAX)); }},
    {"KeyTwice", "key k is there twice",
     [] { return GgufBuilder().pair("k", kU8, "1").pair("k", kU8, "1").build(); }},
    {"KeyNotUtf8", "is not UTF-8", [] { return with_pair("k\xff", kU8, "1"); }},
    {"UnknownValueType", "key k: value type 13", [] { return with_pair("k", 13, "1"); }},
    {"Bool2", "a boolean is 2", [] { return with_pair("k", kBool, "\2"); }},
    {"BoolInArray2", "a boolean is 2", [] { return with_array(kBool, 1, "\2"); }},
    {"TextPastTheFile", "key k: byte",
     [] { return with_pair("k", kText, bytes_of_values(uint64_t{1} << 40)); }},
    {"ArrayPastTheFile", "an array of 4611686018427387904 values",
     [] { return with_array(kU32, uint64_t{1} << 62); }},
    {"TextArrayPastTheFile", "an array of 3 values",
     [] { return with_array(kText, 3, gguf_text("") + gguf_text("")); }},
    {"ArrayOfArrays", "array of arrays", [] { return with_array(kArray, 1, with_array(kU8, 0)); }},
    {"ArrayOfUnknown", "value type 77", [] { return with_array(77, 0); }},
    {"HugeInArray", "in an array of integers",
     [] { return with_array(kU64, 1, bytes_of_values(UINT64_MAX)); }},
    {"AlignmentZero", "general.alignment is 0", [] { return with_alignment(0); }},
    {"AlignmentNoPowerOfTwo", "general.alignment is 48", [] { return with_alignment(48); }},
    {"AlignmentHuge", "general.alignment is 2147483648", [] { return with_alignment(0x80000000); }},
    {"AlignmentAsText", "key general.alignment: value type 8",
     [] { return with_pair("general.alignment", kText, gguf_text("32")); }},
    {"AlignmentAsU64", "key general.alignment: value type 10",
     [] { return with_pair("general.alignment", kU64, bytes_of_values(uint64_t{32})); }},
    {"TensorWithoutName", "a tensor name of 0 bytes", [] { return with_tensor(tensor_2x3("")); }},
    {"TensorWithLongName", "a tensor name of 65 bytes",
     [] { return with_tensor(tensor_2x3(std::string(65, 'n'))); }},
    {"TensorTwice", "tensor w: is there twice",
     [] { return GgufBuilder().tensor(tensor_2x3()).tensor(tensor_2x3()).build(); }},
    {"NoDims", "tensor w: has 0 dims", [] { return with_dims({}); }},
    {"FiveDims", "tensor w: has 5 dims",
     [] {
       return with_dims({1, 1, 1, 1, 1});
     }},
    {"ManyDims", "has 4294967295 dims",
     [] { return with_dims({1}).replace(24 + 8 + 1, 4, bytes_of_values(UINT32_MAX)); }},
    {"DimZero", "a dim of 0",
     [] {
       return with_dims({4, 0});
     }},
    {"DimNegative", "a dim of 18446744073709551615", [] { return with_dims({UINT64_MAX}); }},
    {"ProductWrapsToZero", "overflows",
     [] {
       return with_dims({1ull << 32, 1ull << 32});
     }},
    {"ProductWrapsToFour", "overflows",
     [] {
       return with_dims({4194305, 4194305, 211106198978564});
     }},
    {"BytesWrap", "overflows", [] { return with_dims({1ull << 61}); }},
    {"RowNotInUnsupportedBlocks", "rows of 48 elements, Q8_K needs a multiple of 256",
     [] { return with_dims({48}, kTypeQ8K); }},
    {"UnsupportedPastTheFile", "tensor w: is bytes [0, 292) of the data, which has 64",
     [] { return with_dims({256}, kTypeQ8K); }},
    {"UnsupportedTwice", "tensor w: is there twice",
     [] {
       return GgufBuilder()
           .tensor({"w", {1}, 0, std::string(4, '\0')})
           .tensor({"w", {1}, kTypeRemoved, std::string(4, '\0')})
           .build();
     }},
    {"RowNotInBlocks", "rows of 48 elements, Q8_0 needs a multiple of 32",
     [] {
       return with_dims({48, 2}, kTypeQ8);
     }},
    {"OffsetNotAligned", "begins at 4 in the data, expected a multiple of 32",
     [] {
       return with_tensor({"w", {1}, 0, bytes_of_values(1.0f), 4});
     }},
    {"OffsetPastTheFile", "of the data, which has 64",
     [] {
       return with_tensor({"w", {1}, 0, std::string(64, 'x'), 1ull << 40});
     }},
    {"OffsetWraps", "overflows",
     [] {
       return with_tensor({"w", {16}, 0, std::string(64, 'x'), UINT64_MAX - 31});
     }},
    {"DataCut", "tensor w: is bytes [0, 24) of the data, which has 23",
     [] {
       const std::string bytes = with_tensor(tensor_2x3());
       return bytes.substr(0, bytes.size() - 32 + 23);
     }},
    {"NoData", "of the data, which has 0",
     [] {
       const std::string bytes = with_tensor(tensor_2x3());
       return bytes.substr(0, bytes.size() - 60);
     }},
    {"Overlap", "tensor b: begins at 0 in the data, inside tensor a",
     [] {
       GgufTensor second = tensor_2x3("b");
       second.offset = 0;
       return GgufBuilder().tensor(tensor_2x3("a")).tensor(second).build();
     }},
    {"SpacedTooTightly", "tensor b: begins at 32 in the data, inside tensor a",
     [] {
       return GgufBuilder()
           .tensor({"a", {32}, 0, std::string(128, 'x')})
           .tensor({"b", {8}, 0, std::string(32, 'x'), 32})
           .build();
     }},
    {"NewLineInName", "tensor w\\x0ax: has 0 dims",
     [] {
       return with_tensor({"w\nx", {}, 0, ""});
     }},
};

INSTANTIATE_TEST_SUITE_P(Rules, GgufRefuses, testing::ValuesIn(kBrokenGguf),
                         [](const auto& info) { return info.param.name; });

struct SplitPart {
  uint16_t number, count;
  int32_t n_tensors;
  std::vector<std::string> tensors;
};

std::string split_file(const SplitPart& part) {
  GgufBuilder file;
  file.pair("split.no", kU16, bytes_of_values(part.number))
      .pair("split.count", kU16, bytes_of_values(part.count))
      .pair("split.tensors.count", kI32, bytes_of_values(part.n_tensors));
  for (const std::string& name : part.tensors) file.tensor(tensor_2x3(name));
  return file.build();
}

TEST(GgufSplit, PartsMakeOneModel) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", split_file({0, 2, 3, {"a"}}));
  dir.write("m-00002-of-00002.gguf", split_file({1, 2, 3, {"b", "c"}}));
  const auto source = open_source(first);
  ASSERT_EQ(source->tensors.size(), 3u);
  EXPECT_EQ(source->read(tensor_of(*source, "c")).at(5), 0.625f);
  source->check_unchanged();
}

TEST(GgufSplit, EveryPartHasToBeGguf) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", split_file({0, 2, 2, {"a"}}));
  dir.write("m-00002-of-00002.gguf", "GGUX" + split_file({1, 2, 2, {"b"}}).substr(4));
  expect_error(ErrorKind::Input, "00002-of-00002.gguf: does not begin with GGUF",
               [&] { open_source(first); });
}

struct BrokenSplit {
  const char* name;
  const char* message;
  SplitPart first, second;
  const char* first_name = "m-00001-of-00002.gguf";
};

class GgufSplitRefuses : public testing::TestWithParam<BrokenSplit> {};

TEST_P(GgufSplitRefuses, WithOneLine) {
  const TempDir dir;
  const std::string first = dir.write(GetParam().first_name, split_file(GetParam().first));
  dir.write("m-00002-of-00002.gguf", split_file(GetParam().second));
  expect_error(ErrorKind::Input, GetParam().message, [&] { open_source(first); });
}

const BrokenSplit kBrokenSplits[] = {
    {"NotTheFirst", "is part 2 of 2; open the first one", {1, 2, 2, {"a"}}, {0, 2, 2, {"b"}}},
    {"NameTellsNothing",
     "has to end in -00001-of-00002.gguf",
     {0, 2, 2, {"a"}},
     {1, 2, 2, {"b"}},
     "m.gguf"},
    {"SecondIsFirstAgain",
     "m-00002-of-00002.gguf: is part 1 of 2, expected part 2",
     {0, 2, 2, {"a"}},
     {0, 2, 2, {"b"}}},
    {"CountsDiffer", "key split.count is 3, expected 2", {0, 2, 2, {"a"}}, {1, 3, 2, {"b"}}},
    {"TensorMissing",
     "split.tensors.count is 3, the parts have 2",
     {0, 2, 3, {"a"}},
     {1, 2, 3, {"b"}}},
    {"TensorInBoth", "tensor a: is there twice", {0, 2, 2, {"a"}}, {1, 2, 2, {"a"}}},
    {"PartMissing",
     "m-00002-of-00003.gguf: cannot open",
     {0, 3, 2, {"a"}},
     {1, 3, 2, {"b"}},
     "m-00001-of-00003.gguf"},
    {"TooMany", "key split.count is 60000", {0, 60000, 2, {"a"}}, {1, 60000, 2, {"b"}}},
};

INSTANTIATE_TEST_SUITE_P(Rules, GgufSplitRefuses, testing::ValuesIn(kBrokenSplits),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer
