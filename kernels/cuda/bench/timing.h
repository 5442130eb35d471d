#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/device.h"

// How kernels are timed: by events on their stream around a captured graph of many launches, so
// that the host adds no time between them; the median of several replays after two uncounted ones.
namespace minfer::cuda {

constexpr int kTimedRuns = 7, kUntimedRuns = 2;

inline double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

class StreamTimer {
 public:
  explicit StreamTimer(cudaStream_t stream) : stream_(stream) {}

  // The microseconds that the card takes for what `work` puts on the stream.
  template <typename F>
  double us(F&& work) {
    MINFER_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_));
    work();
    MINFER_CUDA_CHECK(cudaGetLastError());
    MINFER_CUDA_CHECK(cudaEventRecord(end_.get(), stream_));
    MINFER_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0;
    MINFER_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return double(ms) * 1e3;
  }
  double us(const GraphExec& graph) {
    return us([&] { MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_)); });
  }
  template <typename Work>
  double median_us(const Work& work) {
    std::vector<double> samples;
    for (int i = 0; i < kUntimedRuns; ++i) us(work);
    for (int i = 0; i < kTimedRuns; ++i) samples.push_back(us(work));
    return median(std::move(samples));
  }

 private:
  cudaStream_t stream_;
  Event begin_ = make_event(), end_ = make_event();
};

// The median microseconds of one of the n_launches that `work` puts on the stream, as a graph.
template <typename F>
double graph_us(cudaStream_t stream, int n_launches, F&& work) {
  return StreamTimer(stream).median_us(capture_graph(stream, work)) / n_launches;
}

}  // namespace minfer::cuda
