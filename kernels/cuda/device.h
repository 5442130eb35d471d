#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cuda/check.h"

namespace minfer::cuda {

// Properties of a card.
struct DeviceProperties {
  std::string name;
  int index = 0;
  int compute_capability = 0;  // 10 * major + minor: 90 on Hopper
  int n_sms = 0;
};

// Makes card `index` the current card of this thread. Throws Gpu, with a message of one line, if
// there is no driver, no such card, if the card is older than Ampere, for which there are no
// kernels, or if this build (MINFER_CUDA_ARCHS) has no kernels for it.
DeviceProperties use_device(int index);

// The status of loading a kernel on the current card: an error if the binary has none that the card
// and its driver run.
cudaError_t kernel_image_status();

// Whether the current card is a Hopper card and runs `kernel` compiled for sm_90a. Builds for older
// cards also run there, from PTX without what only sm_90a has.
bool runs_hopper_code(const void* kernel);

// Makes other cards the current one of this thread for a while, and that of before again at the
// end.
class CardChange {
 public:
  CardChange();
  ~CardChange() { cudaSetDevice(before_); }
  CardChange(const CardChange&) = delete;
  CardChange& operator=(const CardChange&) = delete;
  void to(int card);

 private:
  int before_ = 0;
};

// Allocates memory of the current card, not initialized, 256-byte aligned. Throws Memory, with the
// number of bytes, if there is not enough.
DeviceTensor allocate_device(DType dtype, const Shape& shape);

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* handle) const {
    kDestroy(handle);
  }
};
template <typename Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

Stream make_stream();
Event make_event();
Event make_event_without_time();  // only orders work, and costs less

// Captures what `work` launches on the stream as a graph that can be replayed.
template <typename F>
GraphExec capture_graph(cudaStream_t stream, F&& work) {
  MINFER_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  MINFER_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  const Owned<cudaGraph_t, cudaGraphDestroy> owned(graph);
  cudaGraphExec_t exec = nullptr;
  MINFER_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  return GraphExec(exec);
}

// Host memory that the card copies to and from directly.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t n) : n_(n) {
    void* memory = nullptr;
    MINFER_CUDA_CHECK(cudaMallocHost(&memory, n * sizeof(T)));
    memory_.reset(static_cast<T*>(memory));
  }
  T* data() const { return memory_.get(); }
  size_t size() const { return n_; }

 private:
  std::unique_ptr<T, Destroy<cudaFreeHost>> memory_;
  size_t n_;
};

}  // namespace minfer::cuda
