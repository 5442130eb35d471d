#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cuda/check.h"

namespace minfer::cuda {

// What is asked of a card, by attribute.
struct DeviceProperties {
  std::string name;
  int index = 0;
  int compute_capability = 0;  // 90
  int n_sms = 0;
};

// Makes card `index` the one of this thread. Throws Gpu, in one line, where there is no driver, no
// such card, one older than Ampere, for which no kernel is written, or one for which this build
// (MINFER_CUDA_ARCHS) has none.
DeviceProperties use_device(int index);

// What loading a kernel on the current card gives: an error where the binary has none that the card
// and its driver run.
cudaError_t kernel_image_status();

// Whether the current card is a Hopper and runs `kernel` as compiled for that, sm_90a: a build for
// older cards runs there too, from PTX in which what sm_90a alone has is left out.
bool runs_hopper_code(const void* kernel);

// Memory of the current card, not initialized, 256-byte aligned. Throws Memory with the bytes asked
// for where there is none.
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
