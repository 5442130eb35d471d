#include "loaders/earlier_output.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "kernels/base/error.h"
#include "loaders/directory.h"
#include "loaders/file.h"
#include "loaders/formats.h"
#include "loaders/quantized_dir.h"
#include "loaders/sha256_sums.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw Error(ErrorKind::System, cat(shown_path(path), ": is not replaced: ", why));
}

std::string earlier_directory(const std::string& path) {
  if (!path_exists(fs::path(path) / kQuantReport)) {
    refuse(path, cat("no earlier output of minfer, it has no ", kQuantReport));
  }
  const std::set<std::string> listed = names_in_sha256_sums(path);
  std::set<std::string> others;
  int n_files = 0;
  for (const std::string& name : names_in_directory(path)) {
    const bool is_own =
        listed.empty() || name == kSha256Sums || name == kQuantReport || listed.contains(name);
    struct stat status {};
    const bool is_file =
        lstat((fs::path(path) / name).c_str(), &status) == 0 && S_ISREG(status.st_mode);
    ++n_files;
    if (!is_own || !is_file) others.insert(name);
  }
  if (!others.empty()) {
    refuse(path, cat("it holds ", shortened(*others.begin()), ", which minfer has not written"));
  }
  return cat("an earlier output, ", n_files, n_files == 1 ? " file" : " files");
}

std::string earlier_file(const std::string& path, OutputKind kind) {
  const bool is_gguf_kind = kind == OutputKind::Gguf;
  const char* name = is_gguf_kind ? "GGUF" : "safetensors";
  const File file(path);
  if (!(is_gguf_kind ? is_gguf(file) : is_safetensors(file))) {
    refuse(path, cat("it is not a ", name, " file"));
  }
  return cat("a ", name, " file of ", file.size(), " bytes");
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whether the directory holds the path, or is it.
bool holds(const struct stat& directory, fs::path inner) {
  struct stat status {};
  for (; inner.has_relative_path(); inner = inner.parent_path()) {
    if (stat(inner.c_str(), &status) == 0 && same_file(status, directory)) return true;
  }
  return false;
}

}  // namespace

bool is_taken(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

std::string earlier_output(const std::string& path, OutputKind kind) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return "";
  const bool is_directory = S_ISDIR(status.st_mode);
  if (S_ISLNK(status.st_mode)) refuse(path, "it is a symbolic link");
  if (!is_directory && !S_ISREG(status.st_mode)) refuse(path, "it is neither file nor directory");
  if (is_directory != (kind == OutputKind::Directory)) {
    refuse(path, is_directory ? "it is a directory, the output is a file"
                              : "it is a file, the output is a directory");
  }
  try {
    return is_directory ? earlier_directory(path) : earlier_file(path, kind);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;
    refuse(path, e.what());
  }
}

void require_apart(const std::string& input, const std::string& output) {
  struct stat in {
  }, out{};
  if (stat(input.c_str(), &in) != 0) return;  // the loader says what is wrong with it
  const bool is_there = stat(output.c_str(), &out) == 0;
  MINFER_REQUIRE(Usage, !is_there || !same_file(in, out), shown_path(output),
                 ": the output is the input");
  std::error_code ignored;  // of a path that does not resolve nothing can be said
  const fs::path real_out = fs::weakly_canonical(fs::absolute(output, ignored), ignored);
  MINFER_REQUIRE(Usage, !holds(in, real_out), shown_path(output),
                 ": the output would lie inside the input");
  const fs::path real_in = fs::canonical(input, ignored);
  MINFER_REQUIRE(Usage, !is_there || !holds(out, real_in), shown_path(output),
                 ": the input lies inside the output");
}

}  // namespace minfer
