#include "kernels/cuda/bench/gemm_timer.h"

#include "kernels/base/math.h"
#include "kernels/cuda/bench/random_tensors.h"

namespace minfer::cuda {
namespace {

int64_t x_elements(const TimedGemm& c) { return align_up(c.m * c.k, 1024); }

DType out_type(const TimedGemm& c) {
  return c.epilogue == Epilogue::Accumulate ? DType::F32 : DType::F16;
}

}  // namespace

GemmTimer::GemmTimer(cudaStream_t stream, Cublas* cublas)
    : stream_(stream),
      cublas_(cublas),
      timer_(stream),
      arena_(random_tensor(DType::F16, {kArena})),
      outs_(allocate_device(DType::F32, {kOut})) {
  MINFER_CUDA_CHECK(cudaMemset(outs_.view().data, 0, size_t(outs_.view().n_bytes())));
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
}

Tensor GemmTimer::matrix(int64_t first, int64_t rows, int64_t columns) const {
  return {arena_.view().as<f16>() + first, DType::F16, {rows, columns}};
}

std::vector<GemmPart> GemmTimer::parts_of(const TimedGemm& c, int64_t copy) const {
  MINFER_CHECK(x_elements(c) + (copy + 1) * c.n * c.k <= kArena && c.m * c.n <= kOut,
               "a product too large to time: ", c.m, " x ", c.n, " x ", c.k);
  std::vector<GemmPart> parts;
  const int64_t n = c.n / c.n_parts;
  for (int i = 0; i < c.n_parts; ++i) {
    const Tensor w = matrix(x_elements(c) + (copy * c.n_parts + i) * n * c.k, n, c.k);
    auto* const out = outs_.view().as<float>() + i * c.m * n;
    parts.push_back({w, {out, out_type(c), {c.m, n}}, {}});
  }
  return parts;
}

GemmArgs GemmTimer::args_of(const TimedGemm& c) const {
  return check_gemm(x_of(c), parts_of(c, 0), c.epilogue);
}

std::vector<GemmTimer::Times> GemmTimer::times(const TimedGemm& c,
                                               std::span<const Launch> launches) {
  const int64_t copies = std::clamp<int64_t>((kArena - x_elements(c)) / (c.n * c.k), 1,
                                             ceil_div(100 << 20, c.n * c.k));
  const double expected_us = 5 + c.flops() * 1e-6 / 600;
  const int n_launches = int(std::clamp(3000 / expected_us, 2.0, 60.0));
  std::vector<GraphExec> graphs;
  for (const Launch& launch : launches) {
    graphs.push_back(capture_graph(stream_, [&] {
      for (int i = 0; i < n_launches; ++i) launch(x_of(c), parts_of(c, i % copies));
    }));
  }
  if (cublas_ != nullptr) {
    graphs.push_back(capture_graph(stream_, [&] {
      for (int i = 0; i < n_launches; ++i) {
        Tensor w = parts_of(c, i % copies)[0].w;
        w.shape = {c.n / c.n_parts * c.n_parts, c.k};  // the parts lie one behind the other
        const Tensor out{outs_.view().data, out_type(c), {c.m, w.shape[0]}};
        cublas_->product(out, x_of(c), w, c.epilogue == Epilogue::Accumulate);
      }
    }));
  }
  std::vector<std::vector<double>> samples(graphs.size());
  for (int run = 0; run < kUntimedRuns + kTimedRuns; ++run) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      const GraphExec& graph = graphs[i];
      const double us = timer_.us(graph);
      if (run >= kUntimedRuns) samples[i].push_back(us / n_launches);
    }
  }
  std::vector<Times> times(launches.size());
  for (size_t i = 0; i < times.size(); ++i) {
    times[i].us = median(samples[i]);
    if (cublas_ != nullptr) times[i].cublas_us = median(samples.back());
  }
  return times;
}

}  // namespace minfer::cuda
