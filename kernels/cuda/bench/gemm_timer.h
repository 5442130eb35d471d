#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/gemm/cublas.h"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer::cuda {

// A product to be timed: x [m, k], w of all parts together [n, k].
struct TimedGemm {
  int64_t m, n, k;
  Epilogue epilogue = Epilogue::Store;
  int n_parts = 1;

  double flops() const { return 2.0 * double(m) * double(n) * double(k); }
  // "512 x 12288 x 4096 f16, 3 parts"
  std::string shape(const char* type) const {
    return cat(m, " x ", n, " x ", k, " ", type,
               n_parts > 1 ? cat(", ", n_parts, " parts") : std::string());
  }
};

// Times products whose weights come from DRAM, as in a model.
class GemmTimer {
 public:
  // InARow: many launches in a graph, over rotating weights, median of a few replays; of many rows
  // at the card's limit of power. Alone: one at a time, each behind a fill of 512 MB that leaves
  // none of its operands in L2 and lets the host run ahead, median of many. Called: one at a time
  // over the same operands, on an idle card, the host's part of the call included, median of many.
  enum class Way { InARow, Alone, Called };
  using Launch = std::function<void(Tensor x, std::span<const GemmPart> parts)>;
  struct Times {
    double us = 0;
    std::optional<double> cublas_us;
  };

  // cublas may be null.
  GemmTimer(cudaStream_t stream, Cublas* cublas);

  // Of each launch, and of cuBLAS for the product alone, without an epilogue: they take turns.
  std::vector<Times> times(const TimedGemm& c, std::span<const Launch> launches,
                           Way way = Way::InARow);
  Times times(const TimedGemm& c, const Launch& launch) { return times(c, {&launch, 1})[0]; }
  GemmArgs args_of(const TimedGemm& c) const;

 private:
  using Product = std::function<void(int64_t copy)>;  // by that copy of the weights

  static constexpr int64_t kArena = int64_t{1} << 29;  // halves: 1 GiB
  static constexpr int64_t kOut = int64_t{1} << 27;    // floats: 512 MiB

  Tensor matrix(int64_t first, int64_t rows, int64_t columns) const;
  Tensor x_of(const TimedGemm& c) const { return matrix(0, c.m, c.k); }
  std::vector<GemmPart> parts_of(const TimedGemm& c, int64_t copy) const;
  void multiply_by_cublas(const TimedGemm& c, int64_t copy);
  // Of each product; expected_us is a guess at the time of one.
  std::vector<double> us_in_a_row(std::span<const Product> products, int64_t copies,
                                  double expected_us);
  std::vector<double> us_one_by_one(std::span<const Product> products, bool is_behind_fill);

  cudaStream_t stream_;
  Cublas* cublas_;
  StreamTimer timer_;
  DeviceTensor arena_, outs_;
};

}  // namespace minfer::cuda
