#include "kernels/cuda/upload.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/usable_cores.h"

namespace minfer::cuda {

Uploader::Uploader(cudaStream_t stream) : stream_(stream) {}

void Uploader::copy(void* device, const void* host, int64_t n_bytes) {
  constexpr int64_t kSmall = 64 << 10;  // the driver's own staging is as fast
  if (n_bytes <= kSmall) {
    MINFER_CUDA_CHECK(cudaMemcpyAsync(device, host, static_cast<size_t>(n_bytes),
                                      cudaMemcpyHostToDevice, stream_));
    return;
  }
  if (ring_.empty()) {
    ring_.resize(kPieces);
    threads_ = std::make_unique<ThreadPool>(std::min(8, usable_cores()));
  }
  for (int64_t begin = 0; begin < n_bytes; begin += kPieceBytes) {
    const int64_t n = std::min(kPieceBytes, n_bytes - begin);
    Piece& piece = ring_[next_++ % kPieces];
    MINFER_CUDA_CHECK(cudaEventSynchronize(piece.sent.get()));
    fill(piece.memory.data(), static_cast<const char*>(host) + begin, n);
    MINFER_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(device) + begin, piece.memory.data(),
                                      static_cast<size_t>(n), cudaMemcpyHostToDevice, stream_));
    MINFER_CUDA_CHECK(cudaEventRecord(piece.sent.get(), stream_));
  }
}

void Uploader::fill(char* to, const char* from, int64_t n_bytes) {
  constexpr int64_t kPartBytes = int64_t{256} << 10;
  threads_->parallel_for(ceil_div(n_bytes, kPartBytes), [=](int64_t part, int) {
    const int64_t begin = part * kPartBytes;
    std::memcpy(to + begin, from + begin,
                static_cast<size_t>(std::min(kPartBytes, n_bytes - begin)));
  });
}

}  // namespace minfer::cuda
