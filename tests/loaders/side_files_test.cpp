#include "loaders/side_files.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(SideFiles, AreTokenizerTemplateAndLicence) {
  const test::TempDir dir;
  for (const char* name : {"LICENSE", "chat_template.jinja", "config.json", "model.safetensors",
                           "model.safetensors.index.json", "tokenizer.json", ".hidden.json"}) {
    dir.write(name, "x");
  }
  fs::create_directory(dir.path() / "folder.json");
  const SideFiles files = side_files(dir.path());
  EXPECT_EQ(files.names, (Names{"LICENSE", "chat_template.jinja", "tokenizer.json"}));
  EXPECT_EQ(files.left_out, Names{});
}

TEST(SideFiles, LinksOutOfTheModelAreLeftOut) {
  const test::TempDir dir, other;
  const std::string secret = other.write("secret", "x");
  dir.write("real.json", "x");
  fs::create_symlink("real.json", dir.path() / "inside.json");
  fs::create_symlink(secret, dir.path() / "README.md");
  fs::create_symlink("../" + other.path().filename().string() + "/secret", dir.path() / "LICENSE");
  fs::create_directory_symlink(other.path(), dir.path() / "folder");
  fs::create_symlink("folder/secret", dir.path() / "through.txt");
  fs::create_symlink("none", dir.path() / "NOTICE");
  fs::create_symlink("loop.txt", dir.path() / "loop.txt");
  dir.write("two\nlines.json", "x");
  const SideFiles files = side_files(dir.path());
  EXPECT_EQ(files.names, (Names{"inside.json", "real.json"}));
  ASSERT_EQ(files.left_out.size(), 6u);
  for (const std::string& line : files.left_out) {
    EXPECT_NE(line.find("is not copied"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

// models--x--y/{blobs/HASH, snapshots/REVISION/NAME -> ../../blobs/HASH}
TEST(SideFiles, LinksToTheBlobsOfACacheCount) {
  const test::TempDir cache, other;
  const fs::path model = cache.path() / "models--x--y";
  fs::create_directories(model / "blobs/sub");
  fs::create_directories(model / "snapshots/1");
  cache.write("models--x--y/blobs/0123", "x");
  cache.write("models--x--y/blobs/sub/4", "x");
  cache.write("models--x--y/refs", "x");
  const auto link = [&](const char* to, const char* name) {
    fs::create_symlink(to, model / "snapshots/1" / name);
  };
  link("../../blobs/0123", "tokenizer.json");
  link("../../refs", "a.json");
  link("../../blobs/sub/4", "b.json");
  fs::create_symlink(other.write("secret", "x"), model / "blobs/5");
  link("../../blobs/5", "c.json");
  EXPECT_EQ(side_files(model / "snapshots/1").names, Names{"tokenizer.json"});

  // A link to the snapshot is the snapshot; a blobs that is a link itself is not a cache's.
  fs::create_directory_symlink(model / "snapshots/1", other.path() / "model");
  EXPECT_EQ(side_files(other.path() / "model").names, Names{"tokenizer.json"});
  fs::rename(model / "blobs", cache.path() / "blobs");
  fs::create_directory_symlink("../blobs", model / "blobs");
  EXPECT_EQ(side_files(model / "snapshots/1").names, Names{});
}

}  // namespace
}  // namespace minfer
