#include "loaders/sha256_sums.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "loaders/checksum.h"
#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/flipped_bits.h"
#include "tests/support/packed_directory.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using namespace test;

constexpr const char* kSums = "SHA256SUMS";

// A small directory with its sums, as sha256sum writes them.
class Sha256Sums : public testing::Test {
 protected:
  Sha256Sums() {
    packed_.metadata["xxh3.m.weight_shape"] = "5e7b8e3a1ff40b92";
    files_["config.json"] = packed_.config_text();
    files_["model.safetensors"] = packed_.tensors_file();
    for (const auto& [name, bytes] : files_) {
      dir_.write(name, bytes);
      sums_ += sha256_hex(bytes) + "  " + name + '\n';
    }
    dir_.write(kSums, sums_);
  }

  std::optional<int64_t> check() const {
    return check_sha256_sums(dir_.path(), [](int64_t, int64_t) {});
  }
  void refuses(const std::string& message) const {
    expect_error(ErrorKind::Input, message, [&] { check(); });
  }

  TempDir dir_;
  PackedDirectory packed_ = packed_compressed_tensors();
  std::map<std::string, std::string> files_;
  std::string sums_;
};

TEST_F(Sha256Sums, SoundDirectoryPasses) {
  std::filesystem::create_directory(dir_.path() / ".cache");
  EXPECT_EQ(check(), 2);
  std::filesystem::remove(dir_.path() / kSums);
  EXPECT_EQ(check(), std::nullopt);
}

TEST_F(Sha256Sums, EveryFlippedBitIsSeen) {
  for_flipped_bits(dir_.path(), [&](const std::string& name, int64_t bit) {
    EXPECT_THROW(check(), Error) << name << ", bit " << bit;
  });
  EXPECT_EQ(check(), 2);
}

TEST_F(Sha256Sums, ListAndDirectoryHaveToAgree) {
  dir_.write("notes.txt", "");
  refuses("the file notes.txt is not in SHA256SUMS");
  std::filesystem::remove(dir_.path() / "notes.txt");
  std::filesystem::remove(dir_.path() / "config.json");
  refuses("config.json: cannot open");
}

TEST_F(Sha256Sums, MalformedListIsRefused) {
  const std::string sum(64, 'a');
  for (const char* line : {"", " ", "  config.json"}) {
    dir_.write(kSums, cat(line, '\n'));
    refuses("SHA256SUMS: has the line");
  }
  for (const char* name : {"", "../config.json", "a/b", "..", kSums}) {
    dir_.write(kSums, cat(sum, "  ", name, '\n'));
    refuses("SHA256SUMS: has the line");
  }
  dir_.write(kSums, std::string(64, 'A') + "  config.json\n");
  refuses("has the line");
  dir_.write(kSums, sums_ + sums_);
  refuses("SHA256SUMS: lists config.json twice");
  dir_.write(kSums, sums_.substr(0, sums_.size() - 1));
  refuses("does not end with a line");
}

TEST_F(Sha256Sums, Xxh3OfATensorIsHeld) {
  Xxh3 checksum;
  const std::string& shape = packed_.tensors["m.weight_shape"].data;
  checksum.update(shape.data(), shape.size());
  packed_.metadata["xxh3.m.weight_shape"] = checksum.hex();
  dir_.write("model.safetensors", packed_.tensors_file());
  EXPECT_EQ(open_source(dir_.path())->check_checksums(), 1);

  packed_.metadata["xxh3.m.weight_packed"] = checksum.hex();
  dir_.write("model.safetensors", packed_.tensors_file());
  expect_error(ErrorKind::Input, "model.safetensors: tensor m.weight_packed: XXH3 is ",
               [&] { open_source(dir_.path())->check_checksums(); });
}

}  // namespace
}  // namespace minfer
