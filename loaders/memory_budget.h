#pragma once

#include <cstdint>

#include "kernels/base/error.h"

namespace minfer {

// The memory that a parser may take for what it makes of a file, besides the file's bytes, so that
// a small file cannot take much memory. With those bytes and what is made from the result, the
// total stays below twice the size of the file plus 64 MB.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t file_bytes, uint64_t free_bytes = 24 << 20)
      : file_bytes_(file_bytes), left_(file_bytes + free_bytes) {}

  void spend(uint64_t n_bytes) {
    MINFER_REQUIRE(Input, n_bytes <= left_, "too many values for a file of ", file_bytes_,
                   " bytes");
    left_ -= n_bytes;
  }
  // For a text, which takes memory on the heap unless it is short.
  void spend_text(uint64_t n_bytes) { spend(n_bytes < 16 ? 0 : n_bytes + 16); }

 private:
  uint64_t file_bytes_, left_;
};

// The most tensors that a file of this size may list: 32768, and one more for every 512 bytes.
inline uint64_t max_tensors(uint64_t file_bytes) { return (1 << 15) + file_bytes / 512; }

}  // namespace minfer
