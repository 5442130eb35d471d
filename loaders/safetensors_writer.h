#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "loaders/checksum.h"
#include "loaders/output_file.h"

namespace minfer {

// A safetensors file whose tensors are known from the start and written in pieces: tensors in any
// order, each from its first byte to its last. `__metadata__` gets, beside what is given, the
// checksum of each tensor's bytes as "xxh3.NAME".
class SafetensorsWriter {
 public:
  struct Record {
    std::string name, type;  // "F16", "I32"
    std::vector<int64_t> dims;
    uint64_t n_bytes = 0;
  };

  SafetensorsWriter(const std::string& path, const std::vector<Record>& records,
                    std::map<std::string, std::string> metadata);

  void append(const std::string& name, const void* bytes, uint64_t n);
  // Writes the header; the file is on the disk afterwards.
  void finish();
  // Reads the finished file back and returns its SHA-256. Throws System if it does not hold what
  // was written. `progress` is called with the bytes done and in all.
  std::string check(const std::function<void(int64_t, int64_t)>& progress) const;

 private:
  struct Open {
    Record record;
    uint64_t begin = 0, written = 0;  // in the data
    Xxh3 checksum;
  };
  std::string header() const;

  OutputFile file_;
  std::map<std::string, std::string> metadata_;
  std::vector<Open> tensors_;
  std::map<std::string, size_t> index_;
  uint64_t data_begin_ = 0;
};

}  // namespace minfer
