#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "loaders/hf_config.h"
#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

namespace minfer {
namespace {

using namespace test;

Metadata config_of(const std::string& text) {
  const TempDir dir;
  return read_hf_config(dir.write("config.json", text));
}

TEST(HfConfig, JoinsNestedKeysByDots) {
  const Metadata m = config_of(
      R"({"model_type": "llama", "hidden_size": 64, "rms_norm_eps": 1e-5, "tie": true, "no": null,
          "rope_scaling": {"type": "linear", "factor": 2.0}, "eos_token_id": [1, 2],
          "factors": [1, 2.5], "architectures": ["LlamaForCausalLM"], "flags": [true],
          "mixed": [1, "a", {"b": 2}], "big": 18446744073709551615, "low": -1})");
  EXPECT_EQ(m.text("model_type"), "llama");
  EXPECT_EQ(m.integer("hidden_size", 1, 100), 64);
  EXPECT_EQ(m.number("rms_norm_eps", 0, 1), 1e-5);
  EXPECT_TRUE(m.boolean("tie"));
  EXPECT_FALSE(m.has("no"));
  EXPECT_EQ(m.text("rope_scaling.type"), "linear");
  EXPECT_EQ(m.number("rope_scaling.factor", 1, 10), 2.0);
  EXPECT_EQ(m.integers("eos_token_id"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(m.numbers("factors"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(m.texts("architectures")[0], "LlamaForCausalLM");
  EXPECT_EQ(m.as_text("flags"), "1 values: [true]");
  EXPECT_EQ(m.integer("mixed.0", 0, 9), 1);
  EXPECT_EQ(m.integer("mixed.2.b", 0, 9), 2);
  EXPECT_EQ(m.as_text("big"), "18446744073709551615");
  EXPECT_EQ(m.integer("low", -1, 0), -1);
}

TEST(HfConfig, ReadsWhatPythonWrites) {
  const Metadata m = config_of(
      R"({"limit": [0.0, Infinity], "low": -Infinity, "no": NaN, "k": 1, "far": 1e999, "k": {"a": 2}})");
  EXPECT_EQ(m.as_text("limit"), "2 values: [0, inf]");
  EXPECT_EQ(m.as_text("far"), "inf");
  EXPECT_EQ(m.integer("k.a", 0, 9), 2);
  EXPECT_FALSE(m.has("k"));
  expect_error(ErrorKind::Input, "key no is nan", [&] { m.number("no", 0, 1); });
  EXPECT_EQ(m.warnings,
            (std::vector<std::string>{
                "config.json: key \"limit\" has Infinity, which JSON does not have: read as Python "
                "does",
                "config.json: key \"low\" has -Infinity, which JSON does not have: read as Python "
                "does",
                "config.json: key \"no\" has NaN, which JSON does not have: read as Python does",
                "config.json: key \"far\" has a number past a double: infinite",
                "config.json: 1 more of what JSON does not have"}));
  EXPECT_EQ(config_of(R"({"a": 1, "a": 2})").warnings,
            std::vector<std::string>{"config.json: key \"a\" twice: the last one counts"});
  EXPECT_EQ(config_of("\xef\xbb\xbf{}").warnings,
            std::vector<std::string>{"config.json: a byte order mark in front: skipped"});
}

// The warnings come with the model.
TEST(HfWarnings, OfConfigAndIndex) {
  const TempDir dir;
  dir.write("config.json", R"({"a": Infinity})");
  dir.write("m-1.safetensors", safetensors_file(R"({"a": {"dtype": "U8", "shape": [0],
 "data_offsets": [0, 0]}})",
                                                ""));
  dir.write("model.safetensors.index.json",
            R"({"metadata": {"total_size": NaN}, "weight_map": {"a": "m-1.safetensors"}})");
  const auto source = open_source(dir.path());
  ASSERT_EQ(source->warnings.size(), 2u);
  EXPECT_NE(source->warnings[0].find("config.json: key \"a\" has Infinity"), std::string::npos);
  EXPECT_NE(source->warnings[1].find("index.json: key \"total_size\" has NaN"), std::string::npos);
}

TEST(HfConfig, RefusesWhatIsNoConfig) {
  const auto refuses = [](const char* message, const std::string& text) {
    expect_error(ErrorKind::Input, message, [&] { config_of(text); });
  };
  refuses("config.json: malformed JSON: byte 1", "");
  refuses("config.json: is array, expected an object", "[]");
  refuses("config.json: malformed JSON: byte 66: more than 64 levels", std::string(100'000, '['));
  refuses("key a.b is there twice", R"({"a": {"b": 1}, "a.b": 2})");
  refuses("malformed JSON", R"({"a": nan})");
  refuses("has 300 bytes, at most 256", cat("{\"", std::string(300, 'k'), "\": 1}"));
  refuses("config.json: has 16777217 bytes, at most 16777216", std::string((16 << 20) + 1, ' '));
  std::string many = "{\"k\": [null";
  for (int i = 0; i < 70'000; ++i) many += ",1";
  refuses("has more than 65536 keys", many + "]}");
}

const std::string kFour = bytes_of_values(1.0f);

std::string shard_with(const std::string& name) {
  return safetensors_file(
      cat("{\"", name, R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), kFour);
}

class HfDirectory : public testing::Test {
 protected:
  HfDirectory() { dir_.write("config.json", R"({"model_type": "llama"})"); }

  void write_index(const std::string& weight_map) {
    dir_.write("model.safetensors.index.json",
               cat(R"({"metadata": {"total_size": 8}, "weight_map": )", weight_map, "}"));
  }
  std::unique_ptr<TensorSource> open() const { return open_source(dir_.path()); }
  void refuses(const std::string& message) const {
    expect_error(ErrorKind::Input, message, [&] { open(); });
  }

  TempDir dir_;
};

TEST_F(HfDirectory, ReadsOneFile) {
  dir_.write("model.safetensors", shard_with("w"));
  const auto source = open();
  EXPECT_EQ(source->path, dir_.path());
  EXPECT_EQ(source->metadata.text("model_type"), "llama");
  EXPECT_EQ(source->read(tensor_of(*source, "w")).at(0), 1.0f);
}

TEST_F(HfDirectory, ReadsShardsAlsoThroughLinks) {
  dir_.write("1.safetensors", shard_with("a"));
  dir_.write("blob", shard_with("b"));
  std::filesystem::create_symlink("blob", dir_.path() / "2.safetensors");
  write_index(R"({"a": "1.safetensors", "b": "2.safetensors"})");
  const auto source = open();
  EXPECT_EQ(source->tensors.size(), 2u);
  EXPECT_TRUE(source->warnings.empty());
  EXPECT_EQ(source->read(tensor_of(*source, "b")).at(0), 1.0f);
  source->check_unchanged();
}

TEST_F(HfDirectory, WarnsOfTensorsAndFilesThatNoIndexNames) {
  dir_.write("1.safetensors", shard_with("a"));
  dir_.write("2.safetensors", shard_with("b"));
  dir_.write("3.safetensors", shard_with("c"));
  write_index(R"({"a": "1.safetensors"})");
  auto source = open();
  ASSERT_EQ(source->warnings.size(), 2u);
  EXPECT_EQ(source->warnings[0], "2.safetensors: is not in the index and not read");

  std::filesystem::remove(dir_.path() / "3.safetensors");
  dir_.write("2.safetensors",
             safetensors_file(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                                  "x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              kFour + kFour));
  write_index(R"({"a": "1.safetensors", "b": "2.safetensors"})");
  source = open();
  ASSERT_EQ(source->warnings.size(), 1u);
  EXPECT_EQ(source->warnings[0], "2.safetensors: 1 tensors are not in the index, as x");
}

TEST_F(HfDirectory, WarnsOfTensorsThatTheIndexAloneHas) {
  dir_.write("1.safetensors", shard_with("a"));
  const std::pair<const char*, const char*> indexes[] = {
      {R"({"a": "1.safetensors", "b": "1.safetensors"})", "1 tensors"},
      {R"({"b": "1.safetensors", "c": "1.safetensors"})", "2 tensors"},
      {R"({"a": "1.safetensors", "b": "1.safetensors", "z": "1.safetensors"})", "2 tensors"}};
  for (const auto& [index, count] : indexes) {
    write_index(index);
    const auto source = open();
    EXPECT_EQ(source->tensors.size(), 1u);
    ASSERT_FALSE(source->warnings.empty());
    EXPECT_EQ(source->warnings.back(),
              cat("model.safetensors.index.json: puts ", count,
                  " into files that do not have them, as b (into 1.safetensors)"));
  }
}

TEST_F(HfDirectory, IsRefusedWithoutConfigOrWeights) {
  refuses("has neither model.safetensors nor model.safetensors.index.json");
  std::filesystem::remove(dir_.path() / "config.json");
  refuses("config.json: cannot open: No such file");
  std::filesystem::create_directory(dir_.path() / "config.json");
  refuses("config.json: is a directory");
}

TEST_F(HfDirectory, ShardNamesStayInTheDirectory) {
  for (const char* name : {"../1.safetensors", "/etc/1.safetensors", "a\\\\1.safetensors",
                           "a\\u0000.safetensors", "..", ".", "", ".safetensors", "1.bin"}) {
    write_index(cat("{\"a\": \"", name, "\"}"));
    refuses("expected a bare file name ending in .safetensors");
  }
  write_index(R"({"a": "line\nbreak.safetensors"})");  // is a bare name, and no file
  refuses("/line\\x0abreak.safetensors: cannot open");
  write_index(cat("{\"a\": \"", std::string(255, 'x'), ".safetensors\"}"));
  refuses("expected a bare file name");
}

TEST_F(HfDirectory, IndexAndShardsHaveToAgree) {
  dir_.write("1.safetensors", shard_with("a"));
  dir_.write("2.safetensors", shard_with("b"));
  write_index(R"({"a": "2.safetensors", "b": "1.safetensors"})");
  refuses("puts tensor a into 2.safetensors, it is in 1.safetensors");
  write_index(R"({"a": "1.safetensors", "b": "9.safetensors"})");
  refuses("9.safetensors: cannot open");
  dir_.write("2.safetensors", shard_with("a"));
  write_index(R"({"a": "1.safetensors", "b": "2.safetensors"})");
  refuses("2.safetensors: tensor a: is in another shard too");
  dir_.write("3.safetensors", shard_with("c"));
  dir_.write("4.safetensors",
             safetensors_file(R"({"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                                  "d":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              kFour + kFour));
  write_index(R"({"a": "1.safetensors", "d": "4.safetensors", "e": "3.safetensors"})");
  refuses("tensor c: is in another shard too");
}

TEST_F(HfDirectory, BrokenIndexIsRefused) {
  write_index("[]");
  refuses("index.json: weight_map is array, expected an object");
  write_index(R"({"a": 1})");
  refuses("weight_map: a is number, expected a file name");
  dir_.write("model.safetensors.index.json", "{}");
  refuses("index.json: has no weight_map");
  dir_.write("model.safetensors.index.json", "{");
  refuses("index.json: malformed JSON");
}

}  // namespace
}  // namespace minfer
