#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "loaders/tensor_source.h"

namespace minfer::test {

// A checkpoint in memory, in which a test breaks one thing at a time.
class MemorySource final : public TensorSource {
 public:
  explicit MemorySource(KeyStyle style) {
    path = "memory";
    format = "memory";
    key_style = style;
  }

  // Adds a tensor, or replaces the one of that name.
  void add(const std::string& name, HostTensor tensor) {
    const Tensor& view = tensor.view();
    TensorEntry entry = {name, view.dtype, view.shape, static_cast<uint64_t>(view.n_bytes())};
    if (const TensorEntry* old = find(name)) {
      tensors[index_of(*old)] = std::move(entry);
    } else {
      add_tensor(std::move(entry));
    }
    data_[name] = std::move(tensor);
  }
  void remove(const std::string& name) {
    MemorySource rest(key_style);
    rest.metadata = metadata;
    for (const TensorEntry& entry : tensors) {
      if (entry.name != name) rest.add(entry.name, std::move(data_[entry.name]));
    }
    *this = std::move(rest);
  }
  HostTensor& data(const std::string& name) { return data_.at(name); }

  void read_into(HostTensor& to, const TensorEntry& entry) const override {
    ++std::atomic_ref(n_reads);  // several threads may read
    to.reset(entry.dtype, entry.shape);
    std::memcpy(to.view().data, data_.at(entry.name).view().data,
                static_cast<size_t>(entry.file_bytes));
  }
  void check_unchanged() const override { checked = true; }

  mutable int n_reads = 0;
  mutable bool checked = false;

 private:
  std::map<std::string, HostTensor> data_;
};

}  // namespace minfer::test
