#include "loaders/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include "kernels/base/error.h"
#include "loaders/file.h"

namespace minfer {
namespace {

struct Closer {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, Closer>;

// The next name, or null at the end and where reading fails: then errno is set.
const char* next_name(DIR* directory) {
  while (true) {
    errno = 0;
    const dirent* entry = readdir(directory);
    if (entry == nullptr) return nullptr;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return entry->d_name;
  }
}

}  // namespace

std::vector<std::string> names_in_directory(const std::string& path) {
  const Directory directory(opendir(path.c_str()));
  std::vector<std::string> names;
  if (directory) {
    while (const char* name = next_name(directory.get())) names.emplace_back(name);
  }
  const int error = errno;
  if (error != 0) {
    const bool is_input =
        error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
    throw Error(is_input          ? ErrorKind::Input
                : error == ENOMEM ? ErrorKind::Memory
                                  : ErrorKind::System,
                cat(shown_path(path), ": cannot list: ", os_error_text(error)));
  }
  std::ranges::sort(names);
  return names;
}

bool remove_flat_directory(const std::string& path) noexcept {
  if (rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  int descriptor;  // not through a link, which is another's own
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return errno == ENOENT;
  const Directory directory(fdopendir(descriptor));
  if (!directory) {
    close(descriptor);
    return false;
  }
  // Some file systems pass over names while others are removed.
  for (bool any = true; any;) {
    any = false;
    rewinddir(directory.get());
    while (const char* name = next_name(directory.get())) {
      const bool removed =
          unlinkat(descriptor, name, 0) == 0 || unlinkat(descriptor, name, AT_REMOVEDIR) == 0;
      any = removed || any;
    }
  }
  return rmdir(path.c_str()) == 0 || errno == ENOENT;
}

}  // namespace minfer
