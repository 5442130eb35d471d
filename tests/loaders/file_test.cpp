#include "loaders/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "loaders/byte_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace minfer {
namespace {

using test::expect_error;
using test::TempDir;

TEST(File, ReadsAnyRange) {
  const TempDir dir;
  const File file(dir.write("f", "0123456789"));
  EXPECT_EQ(file.size(), 10u);
  char bytes[4];
  file.read(6, bytes, 4);
  EXPECT_EQ(std::string(bytes, 4), "6789");
  file.check_unchanged();
}

TEST(File, SurvivesAMove) {
  const TempDir dir;
  File first(dir.write("a", "a"));
  File second(dir.write("b", "b"));
  second = std::move(first);
  char byte;
  second.read(0, &byte, 1);
  EXPECT_EQ(byte, 'a');
}

TEST(File, MissingIsAnInputError) {
  const TempDir dir;
  const std::string path = dir.path() / "none";
  expect_error(ErrorKind::Input, path + ": cannot open: No such file or directory",
               [&] { File{path}; });
}

TEST(File, DirectoryIsAnInputError) {
  const TempDir dir;
  expect_error(ErrorKind::Input, "is a directory", [&] { File{dir.path()}; });
}

TEST(File, PipeIsRefusedWithoutWaiting) {
  const TempDir dir;
  const std::string path = dir.path() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_error(ErrorKind::Input, "not a regular file", [&] { File{path}; });
  expect_error(ErrorKind::Input, "not a regular file", [&] { File{"/dev/null"}; });
}

TEST(File, ForbiddenIsASystemError) {
  const TempDir dir;
  const std::string path = dir.write("f", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  const uid_t user = geteuid(), nobody = 65534;
  ASSERT_TRUE(user != 0 || seteuid(nobody) == 0);  // root may read everything
  expect_error(ErrorKind::System, "Permission denied", [&] { File{path}; });
  ASSERT_TRUE(user != 0 || seteuid(user) == 0);
}

TEST(File, PathIsShownOnOneLine) {
  expect_error(ErrorKind::Input, "no\\x0asuch", [&] { File{"/no\nsuch"}; });
}

TEST(File, ShrunkIsASystemError) {
  const TempDir dir;
  const std::string path = dir.write("f", std::string(100, 'x'));
  const File file(path);
  ASSERT_EQ(truncate(path.c_str(), 50), 0);
  std::string bytes(100, '\0');
  expect_error(ErrorKind::System, "ends at byte 50, had 100",
               [&] { file.read(0, bytes.data(), 100); });
  expect_error(ErrorKind::System, "changed while it was read", [&] { file.check_unchanged(); });
}

// Large reads are made in parts of 32 MiB, several at a time.
TEST(File, LargeRangesAreReadWholeAndFailAtTheFirstByte) {
  const TempDir dir;
  std::string written(size_t{97} << 20, '\0');
  for (size_t i = 0; i < written.size(); i += 1021) written[i] = char(i / 1021 % 251);
  const std::string path = dir.write("f", written);
  const File file(path);
  std::string bytes(written.size() - 5, 'x');
  file.read(5, bytes.data(), bytes.size());
  EXPECT_TRUE(bytes == std::string_view(written).substr(5));
  ASSERT_EQ(truncate(path.c_str(), 40'000'000), 0);
  expect_error(ErrorKind::System, "ends at byte 40000000, had 101711872",
               [&] { file.read(5, bytes.data(), bytes.size()); });
}

TEST(File, WrittenReplacedOrRemovedIsNoticed) {
  const TempDir dir;
  const std::string path = dir.write("f", "old");
  {
    const File file(path);
    const struct timespec later[2] = {{0, UTIME_OMIT}, {2'000'000'000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), later, 0), 0);
    expect_error(ErrorKind::System, "changed while", [&] { file.check_unchanged(); });
  }
  const File file(path);
  std::filesystem::rename(dir.write("g", "new"), path);
  expect_error(ErrorKind::System, "changed while", [&] { file.check_unchanged(); });
  std::filesystem::remove(path);
  expect_error(ErrorKind::System, "went away", [&] { file.check_unchanged(); });
}

TEST(File, WholeFileIsReadUpToALimit) {
  const TempDir dir;
  const std::string path = dir.write("f", "12345");
  EXPECT_EQ(read_whole_file(path, 5), "12345");
  expect_error(ErrorKind::Input, "has 5 bytes, at most 4", [&] { read_whole_file(path, 4); });
}

TEST(ByteReader, NeverLeavesItsBytes) {
  ByteReader reader(std::string_view("\x01\x02\x03\x04\x05\x06\x07", 7));
  EXPECT_EQ(reader.read<uint32_t>(), 0x04030201u);
  expect_error(ErrorKind::Input, "byte 4: 4 bytes wanted, the file has 3 more",
               [&] { reader.read<uint32_t>(); });
  expect_error(ErrorKind::Input, "18446744073709551615 bytes wanted",
               [&] { reader.text(UINT64_MAX); });
  EXPECT_EQ(reader.text(3), "\x05\x06\x07");
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_EQ(reader.text(0), "");
}

TEST(ByteReader, StreamsAFileLongerThanItsWindow) {
  const TempDir dir;
  std::string bytes;
  for (uint32_t i = 0; i < 300'000; ++i) bytes.append(reinterpret_cast<const char*>(&i), 4);
  const File file(dir.write("f", bytes));
  ByteReader reader(file);
  EXPECT_EQ(reader.text(3), bytes.substr(0, 3));  // so that words straddle the windows
  for (size_t at = 3; at < 500'003; at += 4) {
    uint32_t expected;
    std::memcpy(&expected, bytes.data() + at, 4);
    ASSERT_EQ(reader.read<uint32_t>(), expected) << at;
  }
  EXPECT_EQ(reader.text(600'000), bytes.substr(500'003, 600'000));  // beyond the window
  EXPECT_EQ(reader.position(), 1'100'003u);
  EXPECT_EQ(reader.text(reader.left()), bytes.substr(1'100'003));
}

}  // namespace
}  // namespace minfer
