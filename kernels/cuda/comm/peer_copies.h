#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>

#include "kernels/comm/communicator.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// Long sums of two ranks into the residual stream, by the copy engines, which need no SM: the part
// of one half of the rows travels while the GEMM of the other half runs, and that one while the
// first is added and normed. Each rank copies the other's part to its own memory. Two sets of
// parts take turns: the GEMMs of a sum may begin while the other rank still copies the parts of the
// sum before.
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
