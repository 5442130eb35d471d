#include "kernels/cuda/bench/gemm_timer.h"

#include "kernels/base/math.h"
#include "kernels/cuda/bench/random_tensors.h"

namespace minfer::cuda {
namespace {

int64_t x_elements(const TimedGemm& c) { return align_up(c.m * c.k, 1024); }

// Calls sample(i) for each i < n in turn, n_runs times, and returns the median for each i.
template <typename F>
std::vector<double> medians(size_t n, int n_runs, const F& sample) {
  std::vector<std::vector<double>> samples(n);
  for (int run = 0; run < kUntimedRuns + n_runs; ++run) {
    for (size_t i = 0; i < n; ++i) {
      const double us = sample(i);
      if (run >= kUntimedRuns) samples[i].push_back(us);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : samples) medians.push_back(median(std::move(of_one)));
  return medians;
}

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
               "a GEMM too large to time: ", c.m, " x ", c.n, " x ", c.k);
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

void GemmTimer::multiply_by_cublas(const TimedGemm& c, int64_t copy) {
  Tensor w = parts_of(c, copy)[0].w;
  w.shape = {c.n / c.n_parts * c.n_parts, c.k};  // the parts are contiguous
  const Tensor out{outs_.view().data, out_type(c), {c.m, w.shape[0]}};
  cublas_->gemm(out, x_of(c), w, c.epilogue == Epilogue::Accumulate);
}

std::vector<GemmTimer::Times> GemmTimer::times(const TimedGemm& c, std::span<const Launch> launches,
                                               Way way) {
  const int64_t copies = std::clamp<int64_t>((kArena - x_elements(c)) / (c.n * c.k), 1,
                                             ceil_div(100 << 20, c.n * c.k));
  std::vector<Gemm> gemms;
  for (const Launch& launch : launches) {
    gemms.push_back([&](int64_t copy) { launch(x_of(c), parts_of(c, copy)); });
  }
  if (cublas_ != nullptr) {
    gemms.push_back([&](int64_t copy) { multiply_by_cublas(c, copy); });
  }
  const std::vector<double> us = way == Way::InARow
                                     ? us_in_a_row(gemms, copies, 5 + c.flops() * 1e-6 / 600)
                                     : us_one_by_one(gemms, way == Way::Alone);
  std::vector<Times> times(launches.size());
  for (size_t i = 0; i < times.size(); ++i) {
    times[i].us = us[i];
    if (cublas_ != nullptr) times[i].cublas_us = us.back();
  }
  return times;
}

std::vector<double> GemmTimer::us_in_a_row(std::span<const Gemm> gemms, int64_t copies,
                                           double expected_us) {
  const int n_launches = int(std::clamp(3000 / expected_us, 2.0, 60.0));
  std::vector<GraphExec> graphs;
  for (const Gemm& gemm : gemms) {
    graphs.push_back(capture_graph(stream_, [&] {
      for (int i = 0; i < n_launches; ++i) gemm(i % copies);
    }));
  }
  return medians(graphs.size(), kTimedRuns, [&](size_t i) {
    const GraphExec& graph = graphs[i];
    return timer_.us(graph) / n_launches;
  });
}

std::vector<double> GemmTimer::us_one_by_one(std::span<const Gemm> gemms, bool is_behind_fill) {
  constexpr int kRuns = 40;
  return medians(gemms.size(), kRuns, [&](size_t i) {
    const Tensor outs = outs_.view();
    if (is_behind_fill) {
      MINFER_CUDA_CHECK(cudaMemsetAsync(outs.data, 0, size_t(outs.n_bytes()), stream_));
    }
    return timer_.us([&] { gemms[i](0); });
  });
}

}  // namespace minfer::cuda
