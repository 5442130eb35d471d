#include "loaders/staging_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <vector>

#include "kernels/base/error.h"
#include "loaders/directory.h"
#include "loaders/file.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// Behind the name of the output, in front of mkdtemp's characters.
constexpr std::string_view kMark = ".minfer-";
constexpr size_t kRandomCharacters = 6;
constexpr std::string_view kLinkEnding = ".lock";
// A new directory is lost to another process only in the microseconds before it is locked.
constexpr int kMostAttempts = 20;

// A process has one at a time; of several the others are left to the next run.
std::atomic<StagingDirectory*> open_directory{nullptr};

bool same_inode(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

enum class Lock { Held, Taken, Unsupported, Failed };

// flock on an open directory; errno says what failed.
Lock lock_descriptor(int descriptor) {
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return Lock::Taken;
    const bool has_none = errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS ||
                          errno == EBADF;  // asks for a descriptor that is open for writing
    return has_none ? Lock::Unsupported : Lock::Failed;
  }
  return Lock::Held;
}

// Opens the directory and locks it, if it still has its name then. `descriptor` is open where the
// lock is held.
Lock lock_directory(const std::string& path, int& descriptor) {
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return errno == ENOENT ? Lock::Taken : Lock::Failed;
  struct stat opened {
  }, named{};
  Lock lock = lock_descriptor(descriptor);
  if (lock == Lock::Held) {
    const bool is_same = fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
                         same_inode(opened, named);
    if (is_same) return lock;
    lock = Lock::Taken;
  }
  const int error = errno;
  close(descriptor);
  descriptor = -1;
  errno = error;
  return lock;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const std::string& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).string();
}

// Clock ticks from the start of the system to the start of a process: with them a number that is
// used again is told from the one that it was. The command's name before them may hold anything.
std::string start_time(const std::string& process) {
  const std::string stat = first_line(cat("/proc/", process, "/stat"));
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  constexpr int kBefore = 19;
  std::string field;
  for (int i = 0; i <= kBefore; ++i) fields >> field;
  return fields ? field : "";
}

// "<start of the system> <process namespace>": processes of another one cannot be seen.
std::string place_of_processes() {
  return cat(first_line("/proc/sys/kernel/random/boot_id"), ' ', link_target("/proc/self/ns/pid"));
}

std::string own_record() {
  const std::string process = std::to_string(getpid());
  return cat(place_of_processes(), ' ', process, ' ', start_time(process));
}

// Whether a record's process has ended, as far as can be seen from here.
bool has_ended(const std::string& record) {
  std::istringstream fields(record);
  std::string boot, space, process, started;
  if (!(fields >> boot >> space >> process >> started)) return false;
  if (cat(boot, ' ', space) != place_of_processes()) return false;
  const pid_t id = std::atoi(process.c_str());
  if (id <= 0 || (kill(id, 0) != 0 && errno == ESRCH)) return id > 0;
  const std::string since = start_time(process);  // empty: another user's, hidden
  return !since.empty() && since != started;
}

// Another run's directory, or what is left of it: removed if its process has ended.
void remove_if_stale(const std::string& path) {
  const std::string link = path + std::string(kLinkEnding), record = link_target(link);
  if (!record.empty()) {
    if (has_ended(record) && remove_flat_directory(path)) ::unlink(link.c_str());
    return;
  }
  int descriptor = -1;
  const Lock lock = lock_directory(path, descriptor);
  if (lock == Lock::Held) {
    remove_flat_directory(path);
    close(descriptor);
  } else if (lock == Lock::Unsupported && symlink(own_record().c_str(), link.c_str()) == 0) {
    rmdir(path.c_str());  // killed before it had its link: only then it is empty
    ::unlink(link.c_str());
  }
}

// What killed runs for the same output have left.
void remove_stale(const std::string& parent, const std::string& prefix) {
  std::vector<std::string> names;
  try {
    names = names_in_directory(parent);
  } catch (const Error&) {  // making a directory in it says why
  }
  std::set<std::string> found;
  for (std::string& name : names) {
    if (name.ends_with(kLinkEnding)) name.resize(name.size() - kLinkEnding.size());
    if (name.starts_with(prefix) && name.size() == prefix.size() + kRandomCharacters) {
      found.insert((fs::path(parent) / name).string());
    }
  }
  for (const std::string& path : found) remove_if_stale(path);
}

}  // namespace

StagingDirectory::StagingDirectory(const std::string& parent, const std::string& name) {
  const std::string prefix = cat('.', name, kMark);
  remove_stale(parent, prefix);
  const std::string pattern =
      (fs::path(parent) / (prefix + std::string(kRandomCharacters, 'X'))).string();
  for (int attempt = 0;; ++attempt) {
    MINFER_REQUIRE(System, attempt < kMostAttempts, shown_path(parent),
                   ": cannot keep a directory: other processes remove it");
    path_ = pattern;
    MINFER_REQUIRE(System, mkdtemp(path_.data()) != nullptr, shown_path(parent),
                   ": cannot make a directory: ", os_error_text(errno));
    try {
      if (lock()) break;
      rmdir(path_.c_str());  // the process that took it for a stale one removes it, too
    } catch (...) {
      remove();
      throw;
    }
  }
  open_directory.store(this);
  const mode_t mask = umask(0);
  umask(mask);
  chmod(path_.c_str(), 0777 & ~mask);  // mkdtemp's is for the owner alone
}

StagingDirectory::~StagingDirectory() {
  StagingDirectory* own = this;
  open_directory.compare_exchange_strong(own, nullptr);
  remove();
  if (descriptor_ >= 0) close(descriptor_);
}

bool StagingDirectory::lock() {
  const Lock lock = lock_directory(path_, descriptor_);
  MINFER_REQUIRE(System, lock != Lock::Failed, shown_path(path_),
                 ": cannot lock: ", os_error_text(errno));
  if (lock != Lock::Unsupported) return lock == Lock::Held;
  const int why = errno;
  const std::string link = path_ + std::string(kLinkEnding);
  has_link_ = symlink(own_record().c_str(), link.c_str()) == 0;
  if (!has_link_ && errno == EEXIST) return false;
  MINFER_REQUIRE(System, has_link_, shown_path(path_), ": the file system has neither locks (",
                 os_error_text(why), ") nor symbolic links (", os_error_text(errno),
                 "); write the output to another one");
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0) return true;
  remove();
  return false;
}

bool StagingDirectory::remove() noexcept {
  const bool removed = remove_flat_directory(path_);
  if (has_link_ && removed) {
    ::unlink((path_ + std::string(kLinkEnding)).c_str());
    has_link_ = false;
  }
  return removed;
}

void remove_open_staging_directories() noexcept {
  StagingDirectory* const directory = open_directory.exchange(nullptr);
  if (directory != nullptr) directory->remove();
}

}  // namespace minfer
