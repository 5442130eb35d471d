#include "loaders/staging.h"

#include <fcntl.h>
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

// "out/" and "x/../out" to a path with a last part. The system resolves what stands in front of it:
// x may be a link.
std::string final_place(const std::string& output) {
  fs::path path(output);
  while (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  std::error_code error;
  if (path.filename() == "." || path.filename() == "..") {
    const fs::path whole = fs::canonical(path, error);
    return error ? path.string() : whole.string();
  }
  const fs::path given = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path parent = fs::canonical(given, error);  // what is not there cannot be written to
  return ((error ? given : parent) / path.filename()).string();
}

// A rename of two empty directories, or to a new name, with the flag.
bool can_rename(const std::string& directory, unsigned flag) {
  const std::string a = directory + "/a", b = directory + "/b";
  const bool made =
      mkdir(a.c_str(), 0777) == 0 && (flag != RENAME_EXCHANGE || mkdir(b.c_str(), 0777) == 0);
  const int failed = made ? renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), flag) : -1;
  const int error = errno;
  rmdir(a.c_str());
  rmdir(b.c_str());
  if (failed == 0) return true;
  const bool has_none = error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
  MINFER_REQUIRE(System, made && has_none, shown_path(directory),
                 ": cannot rename in it: ", os_error_text(error));
  return false;
}

// Whether another file system, or another part of one, is mounted there.
bool is_mount_point(const std::string& path) {
  struct statx status {};
  return statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, 0, &status) == 0 &&
         (status.stx_attributes & status.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

std::string require_free(const std::string& output, OutputKind kind, bool replace) {
  std::string place = final_place(output);
  if (replace || !is_taken(place)) return place;
  earlier_output(place, kind);  // says what --force would say
  throw Error(ErrorKind::System, cat(shown_path(output), ": exists already; --force replaces it"));
}

}  // namespace

Staging::Staging(const std::string& output, OutputKind kind, bool replace)
    : output_(require_free(output, kind, replace)),
      parent_(fs::path(output_).parent_path().string()),
      kind_(kind),
      replace_(replace),
      directory_(parent_, fs::path(output_).filename().string()) {
  require_renames();
  has_noreplace_ = can_rename(directory(), RENAME_NOREPLACE);
}

// An output that is there already changes places with the new one.
void Staging::require_renames() {
  if (!replace_ || earlier_output(output_, kind_).empty()) return;
  MINFER_REQUIRE(System, !is_mount_point(output_), shown_path(output_),
                 ": is a mount point, which cannot be replaced");
  has_exchange_ = can_rename(directory(), RENAME_EXCHANGE);
  MINFER_REQUIRE(System, has_exchange_ || kind_ != OutputKind::Directory, shown_path(output_),
                 ": the file system cannot exchange two directories in one step; remove the old "
                 "output first");
}

void Staging::require_space(int64_t n_bytes) const {
  struct statvfs status {};
  if (statvfs(directory().c_str(), &status) != 0) return;  // the writes will tell
  const uint64_t free_bytes = uint64_t{status.f_bavail} * status.f_frsize;
  MINFER_REQUIRE(System, std::cmp_less_equal(n_bytes, free_bytes), shown_path(parent_),
                 ": the output takes ", n_bytes, " bytes, ", free_bytes, " are free");
}

std::vector<std::string> Staging::commit_directory() {
  sync_directory(directory());
  return commit(directory());
}

std::vector<std::string> Staging::commit_file(const std::string& name) {
  return commit(directory() + "/" + name);
}

int Staging::rename_to_new_name(const std::string& from) const {
  const char *old_name = from.c_str(), *new_name = output_.c_str();
  if (has_noreplace_) {
    return renameat2(AT_FDCWD, old_name, AT_FDCWD, new_name, RENAME_NOREPLACE);
  }
  // A second name for the same file, which never takes that of another one. The first goes with
  // the staging directory.
  if (kind_ != OutputKind::Directory) {
    if (link(old_name, new_name) == 0) return 0;
    if (errno == EEXIST) return -1;
  }
  if (is_taken(output_)) {
    errno = EEXIST;
    return -1;
  }
  return rename(old_name, new_name);
}

// Afterwards the old output lies where the new one was made, or is gone.
int Staging::exchange(const std::string& from) const {
  earlier_output(output_, kind_);  // another one than at the beginning?
  if (has_exchange_ || kind_ == OutputKind::Directory) {
    return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, output_.c_str(), RENAME_EXCHANGE);
  }
  return rename(from.c_str(), output_.c_str());
}

std::vector<std::string> Staging::commit(const std::string& from) {
  int failed = rename_to_new_name(from);
  if (failed != 0 && errno == EEXIST && replace_) failed = exchange(from);
  MINFER_REQUIRE(System, failed == 0, shown_path(output_),
                 ": cannot give the output its name: ", os_error_text(errno));
  std::vector<std::string> warnings;
  try {
    sync_directory(parent_);
  } catch (const std::exception& e) {
    warnings.push_back(cat("the output is there, but a power failure may undo it: ", e.what()));
  }
  if (!directory_.remove()) {
    warnings.push_back(cat(shown_path(directory()), ": what was replaced could not be removed"));
  }
  return warnings;
}

}  // namespace minfer
