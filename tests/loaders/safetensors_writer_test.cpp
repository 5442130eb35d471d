#include "loaders/safetensors_writer.h"

#include <gtest/gtest.h>

#include <string>

#include "loaders/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using namespace test;

// What is on the disk is held against what was to be written.
TEST(SafetensorsWriter, NoticesAnotherContent) {
  const TempDir dir;
  const std::string path = dir.path() / "x.safetensors";
  SafetensorsWriter writer(path, {{"a", "U8", {100}, 100}, {"b", "U8", {3}, 3}}, {});
  const std::string bytes(100, 'x');
  writer.append("b", "123", 3);
  writer.append("a", bytes.data(), 60);
  writer.append("a", bytes.data(), 40);
  writer.finish();
  const auto no_progress = [](int64_t, int64_t) {};
  EXPECT_EQ(writer.check(no_progress).size(), 64u);
  std::string file = read_whole_file(path, 1 << 20);
  EXPECT_EQ(file.find(bytes) % 64, 0u);
  for (const size_t position : {size_t{0}, size_t{20}, file.find(bytes) + 50, file.size() - 1}) {
    std::string damaged = file;
    damaged[position] ^= 4;
    dir.write("x.safetensors", damaged);
    expect_error(ErrorKind::System, "does not hold what was written",
                 [&] { writer.check(no_progress); });
  }
}

}  // namespace
}  // namespace minfer
