#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/bench.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/gemm/cublas.h"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {

// A GEMM to time: x [m, k], and w [n, k] of all parts together.
struct TimedGemm {
  int64_t m, n, k;
  Epilogue epilogue = Epilogue::Store;
  int n_parts = 1;

  double flops() const { return 2.0 * double(m) * double(n) * double(k); }
  // With each operand once; a residual stream is F32, read and written.
  KernelWork work(double element_bytes = 2) const {
    const double out_bytes = epilogue == Epilogue::Accumulate ? 8 : is_gated(epilogue) ? 1 : 2;
    return {element_bytes * double(m + n) * double(k) + out_bytes * double(m) * double(n), flops()};
  }
  // "512 x 12288 x 4096 f16, 3 parts"
  std::string shape(const char* type) const {
    return cat(m, " x ", n, " x ", k, " ", type,
               n_parts > 1 ? cat(", ", n_parts, " parts") : std::string());
  }
};

// Times GEMMs whose weights are read from DRAM, as in a model.
class GemmTimer {
 public:
  // InARow: many launches in a graph, over rotating copies of the weights, median of a few replays;
  // with many rows, the card runs at its power limit. Alone: one launch at a time, each after a
  // fill of 512 MB, which evicts its operands from L2 and lets the host run ahead, median of many.
  // Called: one launch at a time over the same operands, on an idle card, so that the time includes
  // the host's part of the call, median of many.
  enum class Way { InARow, Alone, Called };
  using Launch = std::function<void(Tensor x, std::span<const GemmPart> parts)>;
  struct Times {
    double us = 0;
    std::optional<double> cublas_us;
  };

  // cublas may be null.
  GemmTimer(cudaStream_t stream, Cublas* cublas);

  // The times of each launch, and of cuBLAS for the GEMM without an epilogue. They run in turn.
  std::vector<Times> times(const TimedGemm& c, std::span<const Launch> launches,
                           Way way = Way::InARow);
  Times times(const TimedGemm& c, const Launch& launch) { return times(c, {&launch, 1})[0]; }
  GemmArgs args_of(const TimedGemm& c) const;

 private:
  using Gemm = std::function<void(int64_t copy)>;  // uses that copy of the weights

  static constexpr int64_t kArena = int64_t{1} << 29;  // halves: 1 GiB
  static constexpr int64_t kOut = int64_t{1} << 27;    // floats: 512 MiB

  Tensor matrix(int64_t first, int64_t rows, int64_t columns) const;
  Tensor x_of(const TimedGemm& c) const { return matrix(0, c.m, c.k); }
  std::vector<GemmPart> parts_of(const TimedGemm& c, int64_t copy) const;
  void multiply_by_cublas(const TimedGemm& c, int64_t copy);
  // The time of each GEMM; expected_us is an estimate for one of them.
  std::vector<double> us_in_a_row(std::span<const Gemm> gemms, int64_t copies, double expected_us);
  std::vector<double> us_one_by_one(std::span<const Gemm> gemms, bool is_behind_fill);

  cudaStream_t stream_;
  Cublas* cublas_;
  StreamTimer timer_;
  DeviceTensor arena_, outs_;
};

}  // namespace minfer::cuda
