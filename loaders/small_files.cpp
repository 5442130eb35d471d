#include "loaders/small_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kernels/base/error.h"
#include "loaders/safetensors.h"

namespace minfer {

namespace fs = std::filesystem;

bool SmallFiles::has(const std::string& name) const {
  return inside_ ? inside_->contains(name) : path_exists(fs::path(path_) / name);
}

std::string SmallFiles::read(const std::string& name, uint64_t max_bytes) const {
  return inside_ ? inside_->at(name) : read_whole_file(fs::path(path_) / name, max_bytes);
}

std::string SmallFiles::shown(const std::string& name) const {
  return inside_ ? cat(shown_path(path_), ": ", inside_tensor_name(name))
                 : shown_path(fs::path(path_) / name);
}

std::string inside_tensor_name(const std::string& file_name) {
  std::string name = file_name == "config.json" ? "config" : file_name;
  std::ranges::replace(name, '.', '_');
  return "minfer." + name;
}

SmallFiles small_files_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return SmallFiles(path);
  if (!path_exists(path)) return SmallFiles(path, {});
  File file(path);
  if (!is_safetensors(file)) return SmallFiles(path, {});
  SafetensorsSource source;
  source.add_file(std::move(file));
  return SmallFiles(path, source.files_inside());
}

}  // namespace minfer
