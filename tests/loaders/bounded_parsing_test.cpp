#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "loaders/hf_config.h"
#include "loaders/strict_json.h"
#include "loaders/tensor_source.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/model_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

// Files that ask for much more than they hold: at most twice the file and 64 MB, in time that grows
// with the file, whether they are taken or refused.
namespace minfer {
namespace {

using namespace test;

std::string repeated(std::string_view piece, size_t n_bytes) {
  std::string text;
  while (text.size() < n_bytes) text += piece;
  return text;
}

std::string array_of(std::string_view piece, size_t n_bytes) {
  std::string text = "[" + repeated(piece, n_bytes);
  text.back() = ']';  // the last comma
  return text;
}

std::string numbered_object(size_t n, const std::string& value) {
  std::string text = "{";
  for (size_t i = 0; i < n; ++i) text += cat(i > 0 ? "," : "", "\"", i, "\":", value);
  return text + "}";
}

struct Taken {
  double seconds = 0;
  bool accepted = true;
};

// Runs it, and holds its memory against the size of the file.
Taken run(size_t file_bytes, const std::function<void()>& parse) {
  const size_t held = held_bytes();
  reset_peak();
  const std::clock_t start = std::clock();
  Taken taken;
  try {
    parse();
  } catch (const Error& e) {
    taken.accepted = false;
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(ErrorKind::Input)) << e.what();
  }
  taken.seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
  // The text itself is one of the two.
  EXPECT_LE(peak_bytes() - held, file_bytes + (64 << 20));
  return taken;
}

// Of an input of size n: linear where four times as much takes no more than ten times as long. The
// floor keeps the clock's steps out of it.
void expect_linear(const std::function<std::string(size_t)>& make,
                   const std::function<void(const std::string&)>& parse, size_t n) {
  const std::string small = make(n), large = make(4 * n);
  const Taken one = run(small.size(), [&] { parse(small); });
  const Taken four = run(large.size(), [&] { parse(large); });
  EXPECT_LE(four.seconds, 10 * one.seconds + 0.2) << small.size() << " bytes: " << one.seconds;
}

struct ManyValues {
  const char* name;
  const char* piece;
};

class BoundedJson : public testing::TestWithParam<ManyValues> {};

TEST_P(BoundedJson, OfManyValues) {
  const std::string text = array_of(GetParam().piece, 12 << 20);
  const Taken taken = run(text.size(), [&] { parse_strict_json(text); });
  EXPECT_FALSE(taken.accepted);
  EXPECT_LT(taken.seconds, 2 * kSanitizedSlowdown);
  std::vector<std::string> warnings;
  run(text.size(), [&] { parse_python_json(text, "f", warnings); });
  expect_linear([](size_t n) { return array_of(GetParam().piece, n); },
                [](const std::string& t) { parse_strict_json(t); }, 100'000);
}

INSTANTIATE_TEST_SUITE_P(
    Pieces, BoundedJson,
    testing::Values(ManyValues{"Arrays", "[],"}, ManyValues{"Objects", "{},"},
                    ManyValues{"Numbers", "0,"}, ManyValues{"Texts", "\"\","},
                    ManyValues{"Nested", "[[[[]]]],"}, ManyValues{"Members", "{\"\":0},"},
                    ManyValues{"Mixed", "[0,\"abcdefghijklmnop\",{\"a\":[]}],"}),
    [](const auto& info) { return info.param.name; });

TEST(BoundedParsing, JsonOfManyNames) {
  const auto parse = [](const std::string& text) { parse_strict_json(text); };
  expect_linear([](size_t n) { return numbered_object(n, "0"); }, parse, 20'000);
  const std::string text = numbered_object(1'500'000, "0");
  EXPECT_FALSE(run(text.size(), [&] { parse(text); }).accepted);
}

TEST(BoundedParsing, ConfigOfManyNames) {
  const auto parse = [](const std::string& text) {
    const Metadata metadata = parse_hf_config(text);
    EXPECT_GT(names_below(metadata, "a").size(), 1000u);
    require_absent(metadata, "b");
  };
  const auto make = [](size_t n) { return "{\"a\":" + numbered_object(n, "0") + "}"; };
  expect_linear(make, parse, 16'000);
  const std::string many = make(2'000'000);
  EXPECT_FALSE(run(many.size(), [&] { parse(many); }).accepted);
}

// A source of each format from a file in a directory of its own.
class BoundedFile : public testing::Test {
 protected:
  Taken open(const std::string& name, const std::string& bytes) {
    const std::string path = dir_.write(name, bytes);
    return run(bytes.size() + bytes.size(), [&] { open_source(path); });
  }
  TempDir dir_;
};

TEST_F(BoundedFile, SafetensorsOfManyTensors) {
  const auto make = [](size_t n) {
    return safetensors_file(
        numbered_object(n, R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})"), "");
  };
  EXPECT_TRUE(open("few.safetensors", make(20'000)).accepted);
  EXPECT_FALSE(open("many.safetensors", make(200'000)).accepted);
  const auto metadata_of = [](size_t n) {
    return safetensors_file("{\"__metadata__\":" + numbered_object(n, "\"\"") + "}", "");
  };
  EXPECT_TRUE(open("a.safetensors", metadata_of(20'000)).accepted);
  EXPECT_FALSE(open("b.safetensors", metadata_of(1'000'000)).accepted);
}

TEST_F(BoundedFile, GgufOfManyTensors) {
  const auto make = [](size_t n) {
    GgufBuilder file;
    for (size_t i = 0; i < n; ++i) file.tensor({cat(i), {1}, 0, std::string(4, '\0')});
    return file.build();
  };
  EXPECT_TRUE(open("few.gguf", make(10'000)).accepted);
  EXPECT_FALSE(open("many.gguf", make(40'000)).accepted);
}

TEST_F(BoundedFile, GgufOfLongArrays) {
  const std::vector<std::string> empty(3'000'000);
  EXPECT_FALSE(open("texts.gguf", GgufBuilder().texts("a", empty).build()).accepted);
  GgufBuilder bytes;
  for (int i = 0; i < 16; ++i) bytes.array(cat("a", i), kU8, std::vector<uint8_t>(1'000'000));
  EXPECT_FALSE(open("bytes.gguf", bytes.build()).accepted);
  GgufBuilder keys;
  for (int i = 0; i < 65'000; ++i) keys.pair(cat(i), kU8, "\1");
  EXPECT_TRUE(open("keys.gguf", keys.build()).accepted);
}

TEST_F(BoundedFile, IndexOfManyTensors) {
  dir_.write("config.json", "{}");
  const std::string index =
      "{\"weight_map\":" + numbered_object(400'000, "\"m.safetensors\"") + "}";
  dir_.write("model.safetensors.index.json", index);
  EXPECT_FALSE(run(index.size(), [&] { open_source(dir_.path()); }).accepted);
}

}  // namespace
}  // namespace minfer
