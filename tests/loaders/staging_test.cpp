#include "loaders/staging.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace {

// What the functions below, which stand before libc's, answer for the first so many calls.
struct Fault {
  int error = 0, n_calls = 0;
  bool fails() {
    if (n_calls == 0) return false;
    --n_calls;
    errno = error;
    return true;
  }
};
Fault flock_fault, rename_fault, fsync_fault;
int n_syncs_before_fault = 0;

}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  return flock_fault.fails() ? -1 : int(syscall(SYS_flock, fd, operation));
}
extern "C" int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  return rename_fault.fails() ? -1 : int(syscall(SYS_renameat2, a, from, b, to, flags));
}
extern "C" int fsync(int fd) {
  if (n_syncs_before_fault > 0) {
    --n_syncs_before_fault;
  } else if (fsync_fault.fails()) {
    return -1;
  }
  return int(syscall(SYS_fsync, fd));
}

namespace minfer {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::read_file;
constexpr int kAlways = 1 << 30;

class StagingTest : public testing::Test {
 protected:
  StagingTest() { reset(); }
  ~StagingTest() override { reset(); }
  static void reset() {
    flock_fault = rename_fault = fsync_fault = {};
    n_syncs_before_fault = 0;
  }

  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& item : fs::directory_iterator(dir_.path())) all.insert(item.path().filename());
    return all;
  }
  void write_directory(const std::string& text, bool replace = false) const {
    Staging staging(out_, OutputKind::Directory, replace);
    std::ofstream(staging.directory() + "/" + kReport) << text;
    EXPECT_EQ(staging.commit_directory(), std::vector<std::string>{});
  }
  void write_gguf(const std::string& text, bool replace = false) const {
    Staging staging(out_, OutputKind::Gguf, replace);
    std::ofstream(staging.directory() + "/f") << "GGUF" << text;
    EXPECT_EQ(staging.commit_file("f"), std::vector<std::string>{});
  }
  // That the output is not replaced, and why.
  void expect_refused(OutputKind kind, const std::string& why) const {
    expect_error(ErrorKind::System, why, [&] { Staging(out_, kind, true); });
    expect_error(ErrorKind::System, why, [&] { Staging(out_, kind, false); });
    EXPECT_EQ(names(), std::set<std::string>{"out"});
  }

  static constexpr const char* kReport = "minfer_quant_report.json";
  test::TempDir dir_;
  const std::string out_ = dir_.path() / "out";
};

TEST_F(StagingTest, LockThatFailsIsAnErrorAndLeavesNothing) {
  for (const int error : {EIO, EINVAL, EMFILE}) {
    flock_fault = {error, kAlways};
    expect_error(ErrorKind::System, "cannot lock",
                 [&] { Staging(out_, OutputKind::Directory, false); });
    EXPECT_EQ(names(), std::set<std::string>{});
  }
}

TEST_F(StagingTest, LockThatOthersHaveIsGivenUpAfterSomeTries) {
  flock_fault = {EWOULDBLOCK, kAlways};
  expect_error(ErrorKind::System, "other processes",
               [&] { Staging(out_, OutputKind::Directory, false); });
  EXPECT_GT(flock_fault.n_calls, kAlways - 100);
  EXPECT_EQ(names(), std::set<std::string>{});
  flock_fault = {EWOULDBLOCK, 3};
  write_directory("x");
  flock_fault = {EINTR, 100};  // more than it tries with new directories
  write_directory("y", true);
  EXPECT_EQ(names(), std::set<std::string>{"out"});
}

TEST_F(StagingTest, FileSystemWithoutFlockHasALinkForALock) {
  for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    flock_fault = {error, kAlways};
    {
      const Staging first(out_, OutputKind::Directory, false);
      EXPECT_EQ(names().size(), 2u);  // directory and link
      const Staging second(out_, OutputKind::Directory, false);
      EXPECT_TRUE(fs::exists(first.directory()));
      EXPECT_EQ(names().size(), 4u);
    }
    EXPECT_EQ(names(), std::set<std::string>{});
    write_directory("x");
    EXPECT_EQ(names(), std::set<std::string>{"out"});
    fs::remove_all(out_);
  }
}

TEST_F(StagingTest, LeftoversOfAProcessThatHasEndedAreRemovedWithoutFlockToo) {
  flock_fault = {ENOLCK, kAlways};
  const pid_t child = fork();
  if (child == 0) {
    const Staging staging(out_, OutputKind::Directory, false);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(names().size(), 2u);
  write_directory("x");
  EXPECT_EQ(names(), std::set<std::string>{"out"});

  fs::create_directory(dir_.path() / ".out.minfer-abcdef");  // killed before it had a link
  fs::create_symlink("1 2 3 4", dir_.path() / ".out.minfer-ghijkl.lock");  // of another machine
  write_directory("y", true);
  EXPECT_EQ(names(), (std::set<std::string>{"out", ".out.minfer-ghijkl.lock"}));
}

TEST_F(StagingTest, LeftoversAreRemovedAndDirectoriesInUseAreNot) {
  const pid_t child = fork();
  if (child == 0) {
    const Staging staging(out_, OutputKind::Directory, false);
    fs::create_directory(staging.directory() + "/a");  // as while renames are tried
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(names().size(), 1u);
  const Staging first(out_, OutputKind::Directory, false);
  EXPECT_EQ(names().size(), 1u);
  const Staging second(out_, OutputKind::Directory, false);
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(StagingTest, OutputIsReplacedAsAWhole) {
  write_directory("old");
  write_directory("new", true);
  EXPECT_EQ(read_file(out_ + "/" + kReport), "new");
  EXPECT_EQ(names(), std::set<std::string>{"out"});
}

TEST_F(StagingTest, FileSystemWithoutFlagsOfRename) {
  for (const int error : {EINVAL, ENOSYS}) {
    rename_fault = {error, kAlways};
    write_directory("old");
    expect_error(ErrorKind::System, "cannot exchange two directories",
                 [&] { Staging(out_, OutputKind::Directory, true); });
    EXPECT_EQ(read_file(out_ + "/" + kReport), "old");
    fs::remove_all(out_);
    write_gguf("old");
    write_gguf("new", true);
    EXPECT_EQ(read_file(out_), "GGUFnew");
    EXPECT_EQ(names(), std::set<std::string>{"out"});
    fs::remove(out_);
  }
}

// A name that is taken while the output is written stays what it is, with the flags and without.
TEST_F(StagingTest, NameThatIsTakenMeanwhileIsNotReplaced) {
  for (const int n_faults : {0, kAlways}) {
    rename_fault = {EINVAL, n_faults};
    for (const bool replace : {false, true}) {
      Staging staging(out_, OutputKind::Gguf, replace);
      std::ofstream(staging.directory() + "/f") << "GGUF new";
      dir_.write("out", "precious");
      expect_error(ErrorKind::System, "out: ", [&] { (void)staging.commit_file("f"); });
      EXPECT_EQ(read_file(out_), "precious");
      fs::remove(out_);
    }
    Staging staging(out_, OutputKind::Directory, false);
    fs::create_directory(out_);
    expect_error(ErrorKind::System, "out: ", [&] { (void)staging.commit_directory(); });
    fs::remove(out_);
  }
}

TEST_F(StagingTest, DiskThatFailsAfterTheRenameIsAWarning) {
  Staging staging(out_, OutputKind::Directory, false);
  std::ofstream(staging.directory() + "/f") << "text";
  fsync_fault = {EIO, 1};
  n_syncs_before_fault = 1;  // the directory's own
  const std::vector<std::string> warnings = staging.commit_directory();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("power failure"), std::string::npos) << warnings[0];
  EXPECT_EQ(read_file(out_ + "/f"), "text");
}

TEST_F(StagingTest, MountPointIsFoundBeforeTheWork) {
  write_directory("old");
  if (mount(out_.c_str(), out_.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "cannot mount";
  }
  expect_error(ErrorKind::System, "mount point",
               [&] { Staging(out_, OutputKind::Directory, true); });
  umount(out_.c_str());
  EXPECT_EQ(names(), std::set<std::string>{"out"});
}

TEST_F(StagingTest, OnlyAnEarlierOutputIsReplaced) {
  fs::create_directory(out_);
  expect_refused(OutputKind::Directory, "no earlier output");
  dir_.write("out/mine", "precious");
  expect_refused(OutputKind::Directory, "no earlier output");
  expect_refused(OutputKind::Gguf, "is a directory");
  dir_.write("out/minfer_quant_report.json", "{}");
  dir_.write("out/SHA256SUMS", std::string(64, '0') + "  minfer_quant_report.json\n");
  expect_refused(OutputKind::Directory, "holds mine");
  EXPECT_EQ(read_file(out_ + "/mine"), "precious");
  fs::remove(out_ + "/mine");
  fs::create_directory(out_ + "/.git");
  expect_refused(OutputKind::Directory, "holds .git");
  fs::remove(out_ + "/SHA256SUMS");
  expect_refused(OutputKind::Directory, "holds .git");
  fs::remove(out_ + "/.git");
  dir_.write("out/SHA256SUMS", "damaged");
  expect_refused(OutputKind::Directory, "SHA256SUMS");
}

TEST_F(StagingTest, OnlyAFileOfTheSameKindIsReplaced) {
  const std::string safetensors("\2\0\0\0\0\0\0\0{}      ", 16);
  for (const std::string& bytes : {std::string("x"), std::string(), safetensors}) {
    dir_.write("out", bytes);
    expect_refused(OutputKind::Gguf, "not a GGUF file");
    expect_refused(OutputKind::Directory, "is a file");
  }
  EXPECT_NE(earlier_output(out_, OutputKind::Safetensors), "");
  dir_.write("out", "GGUF and more than that");
  expect_refused(OutputKind::Safetensors, "not a safetensors file");
  fs::remove(out_);
  ASSERT_EQ(mkfifo(out_.c_str(), 0600), 0);
  expect_refused(OutputKind::Gguf, "neither file nor directory");
}

TEST_F(StagingTest, LinksAreNotReplaced) {
  const test::TempDir other;
  const std::string file = other.write("f.gguf", "GGUF");
  other.write(kReport, "{}");
  fs::create_symlink(other.path(), out_);
  expect_refused(OutputKind::Directory, "symbolic link");
  fs::remove(out_);
  fs::create_symlink(file, out_);
  expect_refused(OutputKind::Gguf, "symbolic link");
  fs::remove(out_);
  fs::create_symlink("nowhere", out_);
  expect_refused(OutputKind::Gguf, "symbolic link");
}

// "link/../out" is beside what the link leads to.
TEST_F(StagingTest, PlaceIsTheSystemsNotThatOfTheLetters) {
  const test::TempDir other;
  fs::create_directory(other.path() / "sub");
  fs::create_directory_symlink(other.path() / "sub", dir_.path() / "link");
  Staging staging(dir_.path() / "link/../out/", OutputKind::Directory, false);
  EXPECT_EQ(staging.commit_directory(), std::vector<std::string>{});
  EXPECT_TRUE(fs::exists(other.path() / "out"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(StagingTest, PlaceThatIsNotThereIsASystemError) {
  for (const char* name : {"none/out", "none/../out/x/y"}) {
    expect_error(ErrorKind::System, "cannot make a directory",
                 [&] { Staging(dir_.path() / name, OutputKind::Directory, false); });
  }
  expect_error(ErrorKind::System, "File name too long",
               [&] { Staging(dir_.path() / std::string(250, 'x'), OutputKind::Directory, false); });
}

}  // namespace
}  // namespace minfer
