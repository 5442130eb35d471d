#pragma once

#include <memory>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// Copies host memory to a card at the speed of the link: pieces go through a ring of pinned
// buffers, which several threads fill while the copy of the piece before is in flight.
class Uploader {
 public:
  explicit Uploader(cudaStream_t stream);

  // Returns when `host` may be changed again. Later work on the stream sees the copy.
  void copy(void* device, const void* host, int64_t n_bytes);

 private:
  static constexpr int64_t kPieceBytes = int64_t{8} << 20;
  static constexpr size_t kPieces = 4;
  struct Piece {
    PinnedArray<char> memory{kPieceBytes};
    Event sent = make_event();
  };

  // Several threads: one core moves about 10 GB/s, the link five times that.
  void fill(char* to, const char* from, int64_t n_bytes);

  cudaStream_t stream_;
  std::vector<Piece> ring_;              // made with the first large copy ...
  std::unique_ptr<ThreadPool> threads_;  // ... as these are
  size_t next_ = 0;
};

}  // namespace minfer::cuda
