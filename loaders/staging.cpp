#include "loaders/staging.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "loaders/output_file.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// Behind the name of the output, in front of mkdtemp's characters.
constexpr std::string_view kMark = ".minfer-";
constexpr size_t kRandomCharacters = 6;

std::string error_text() { return std::generic_category().message(errno); }

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// A link that leads nowhere takes its name too.
bool is_taken(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

// "out/" and "./x/../out" to a path with a last part.
fs::path normalized(const std::string& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

// A descriptor that holds the lock of a staging directory, or -1: somebody else has it, or it went
// away meanwhile.
int try_lock(const std::string& directory) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return -1;
  struct stat opened {
  }, named{};
  const bool held = flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &opened) == 0 &&
                    lstat(directory.c_str(), &named) == 0 && same_file(opened, named);
  if (held) return descriptor;
  close(descriptor);
  return -1;
}

void remove_tree(const std::string& path) {
  std::error_code ignored;  // what stays is removed by the next run
  fs::remove_all(path, ignored);
}

// What killed runs for the same output have left.
void remove_stale(const fs::path& parent, const std::string& prefix) {
  std::error_code error;  // where the directory cannot be listed, making one in it says why
  for (fs::directory_iterator item(parent, error), end; !error && item != end;
       item.increment(error)) {
    const std::string name = item->path().filename().string(), path = item->path().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kRandomCharacters) continue;
    if (item->symlink_status(error).type() != fs::file_type::directory) {
      ::unlink(path.c_str());  // an old output that was a file, exchanged with the new one
      continue;
    }
    const int lock = try_lock(path);
    if (lock < 0) continue;
    remove_tree(path);
    close(lock);
  }
}

}  // namespace

Staging::Staging(const std::string& output, bool replace)
    : output_(normalized(output).string()), replace_(replace) {
  const fs::path path(output_);
  parent_ = path.parent_path().string();
  MINFER_REQUIRE(System, replace || !is_taken(output_), shown_path(output),
                 ": exists already; --force replaces it");
  const std::string prefix = cat(".", path.filename().string(), kMark);
  remove_stale(parent_, prefix);

  // Another run may take the new directory for a stale one until it is locked.
  while (lock_ < 0) {
    directory_ = (path.parent_path() / (prefix + std::string(kRandomCharacters, 'X'))).string();
    MINFER_REQUIRE(System, mkdtemp(directory_.data()) != nullptr, shown_path(parent_),
                   ": cannot make a directory: ", error_text());
    lock_ = try_lock(directory_);
  }
  const mode_t mask = umask(0);
  umask(mask);
  chmod(directory_.c_str(), 0777 & ~mask);  // mkdtemp's is for the owner alone
}

Staging::~Staging() {
  if (is_taken(directory_)) remove_tree(directory_);
  if (lock_ >= 0) close(lock_);
}

void Staging::require_space(int64_t n_bytes) const {
  struct statvfs status {};
  if (statvfs(directory_.c_str(), &status) != 0) return;  // the writes will tell
  const uint64_t free_bytes = uint64_t{status.f_bavail} * status.f_frsize;
  MINFER_REQUIRE(System, std::cmp_less_equal(n_bytes, free_bytes), shown_path(parent_),
                 ": the output takes ", n_bytes, " bytes, ", free_bytes, " are free");
}

void Staging::commit_directory() {
  sync_directory(directory_);
  commit(directory_);
}

void Staging::commit_file(const std::string& name) { commit(directory_ + "/" + name); }

void Staging::commit(const std::string& from) {
  int failed = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, output_.c_str(), RENAME_NOREPLACE);
  if (failed != 0 && errno == EEXIST && replace_) {
    // Afterwards the old output lies where the new one was made.
    failed = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, output_.c_str(), RENAME_EXCHANGE);
  }
  if (failed != 0 && errno == EINVAL && !is_taken(output_)) {  // a file system without the flags
    failed = rename(from.c_str(), output_.c_str());
  }
  MINFER_REQUIRE(System, failed == 0, shown_path(output_),
                 ": cannot give the output its name: ", error_text());
  sync_directory(parent_);
}

void require_apart(const std::string& input, const std::string& output) {
  struct stat in {
  }, out{};
  if (stat(input.c_str(), &in) != 0) return;  // the loader says what is wrong with it
  const fs::path in_path = normalized(input), out_path = normalized(output);
  const auto holds = [](const struct stat& directory, fs::path inner) {
    struct stat status {};
    for (; inner.has_relative_path(); inner = inner.parent_path()) {
      if (stat(inner.c_str(), &status) == 0 && same_file(status, directory)) return true;
    }
    return false;
  };
  MINFER_REQUIRE(Usage, stat(output.c_str(), &out) != 0 || !same_file(in, out), shown_path(output),
                 ": the output is the input");
  std::error_code ignored;  // a path that does not resolve is held against the other by its parts
  const fs::path real_out = fs::weakly_canonical(out_path, ignored);
  MINFER_REQUIRE(Usage, !holds(in, real_out.empty() ? out_path : real_out), shown_path(output),
                 ": the output would lie inside the input");
  const fs::path real_in = fs::canonical(in_path, ignored);
  MINFER_REQUIRE(Usage, stat(output.c_str(), &out) != 0 || !holds(out, real_in), shown_path(output),
                 ": the input lies inside the output");
}

}  // namespace minfer
