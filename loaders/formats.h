#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loaders/file.h"
#include "loaders/tensor_source.h"

// What the loaders share among themselves; all other code calls open_source().
namespace minfer {

// A source with one or more files, in which each tensor is one range of bytes.
class FileTensorSource : public TensorSource {
 public:
  void read_into(HostTensor& to, const TensorEntry& entry) const override;
  HostTensor read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const override;
  void check_unchanged() const override;

 protected:
  struct Extent {
    size_t file = 0;  // index into files_
    uint64_t begin = 0;
  };
  void add_tensor(TensorEntry entry, Extent extent);
  // The bytes of an entry, which lie inside their file by construction.
  void read_bytes(const TensorEntry& entry, void* to) const;

  std::vector<File> files_;

 private:
  std::vector<Extent> extents_;  // of the tensor of the same index
};

std::unique_ptr<TensorSource> open_gguf(File file);
std::unique_ptr<TensorSource> open_safetensors(File file);
std::unique_ptr<TensorSource> open_hf_directory(const std::string& path);
std::unique_ptr<TensorSource> open_llama2c(File file);

bool is_gguf(const File& file);
bool is_safetensors(const File& file);
bool is_llama2c(const File& file);

// Runs parse() and puts the file's name in front of the message of its Input errors.
template <typename F>
decltype(auto) in_file(const std::string& path, F&& parse) {
  try {
    return std::forward<F>(parse)();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input) throw;  // System errors come from File and name it
    throw e.in(shown_path(path));
  }
}

}  // namespace minfer
