#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>

#include "kernels/comm/communicator.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// Sums of two ranks into the residual stream, for many rows. The rows are cut in halves. While the
// GEMM of the second half runs, the first half of its output is copied to the other card; while the
// first half is added and normalized, the second is copied. The copy engines of the cards do that,
// so all SMs are left to the kernels. Each rank copies from the other's memory to its own. There
// are two buffers for the output, used in turn, so that a rank can begin its next GEMM while the
// other one still copies from the last.
class PeerCopies {
 public:
  // Of a rank whose work is done on `stream`; its card is the current one.
  PeerCopies(int card, cudaStream_t stream);

  // Fewer rows take the kernels. Not measured: it is where they take about as long.
  static constexpr int64_t kLeastRows = 1024;

  // Memory for parts of so many elements of two bytes each.
  static int64_t workspace_bytes(int64_t n_elements) { return 3 * 2 * n_elements; }
  bool has_room(int64_t n_elements) const {
    return inbox_ && inbox_.view().n_elements() >= n_elements;
  }
  // Both ranks have synchronized.
  void reserve(int64_t n_elements);
  void synchronize();
  // Forgets a sum that one rank has begun alone. Both ranks have synchronized.
  void reset() { n_sums_ = 0; }

  // Ranks 0 and 1 call it with each other's. `meet` waits for the thread of the other rank.
  void sum(const MadeSum& sum, int rank, const PeerCopies& peer, const std::function<void()>& meet);

 private:
  struct Part {
    DeviceTensor rows;
    std::array<Event, 2> made, arrived;  // by half: computed; copied by the other rank's engine
  };

  int card_;
  cudaStream_t stream_;
  Stream copies_;
  std::array<Part, 2> parts_;  // of sums with an even and with an odd number
  DeviceTensor inbox_;         // the other rank's part of this sum
  std::array<Event, 2> added_;
  int64_t n_sums_ = 0;
};

}  // namespace minfer::cuda
