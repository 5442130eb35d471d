#pragma once

#include <cstdint>

#include "kernels/base/error.h"

namespace minfer {

// The memory that a parser may take for a file: what it makes of the file beside the bytes
// themselves, so that a small file cannot ask for much. With the file's bytes and what is made of
// that in turn, all stays below twice the file and 64 MB.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t file_bytes, uint64_t free_bytes = 24 << 20)
      : file_bytes_(file_bytes), left_(file_bytes + free_bytes) {}

  void spend(uint64_t n_bytes) {
    MINFER_REQUIRE(Input, n_bytes <= left_, "too many values for a file of ", file_bytes_,
                   " bytes");
    left_ -= n_bytes;
  }
  // Of a text on the heap; short ones are inside the string.
  void spend_text(uint64_t n_bytes) { spend(n_bytes < 16 ? 0 : n_bytes + 16); }

 private:
  uint64_t file_bytes_, left_;
};

// How many tensors a file of so many bytes may list: real ones have some bytes each.
inline uint64_t max_tensors(uint64_t file_bytes) { return (1 << 15) + file_bytes / 512; }

}  // namespace minfer
