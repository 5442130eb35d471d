#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/bench/decode_gemvs.h"
#include "kernels/cuda/bench/gemm_timer.h"
#include "kernels/cuda/bench/kernel_rig.h"

namespace minfer::cuda {
namespace {

class MatrixKernels {
 public:
  explicit MatrixKernels(KernelRig& rig) : rig_(rig) {}

  void run() {
    gemms();
    gemvs();
    dequantized();
  }

 private:
  void gemms() {
    const struct {
      const char* name;
      Epilogue epilogue;
      int n_parts;
      int64_t n, k;
    } cases[] = {{"gemm_store", Epilogue::Store, 3, 3 * kBenchDim, kBenchDim},
                 {"gemm_store", Epilogue::Store, 1, kBenchDim, kBenchDim},
                 {"gemm_accumulate", Epilogue::Accumulate, 1, kBenchDim, kBenchDim},
                 {"gemm_accumulate", Epilogue::Accumulate, 1, kBenchDim, kBenchFfnDim},
                 {"gemm_swiglu", Epilogue::SwiGlu, 2, 2 * kBenchFfnDim, kBenchDim},
                 {"gemm_gelu_erf", Epilogue::GeluErf, 1, kBenchFfnDim, kBenchDim},
                 {"gemm_gelu_tanh", Epilogue::GeluTanh, 1, kBenchFfnDim, kBenchDim}};
    for (int64_t m : {512, 2048, 4096}) {
      for (const auto& c : cases) {
        const TimedGemm timed{m, c.n, c.k, c.epilogue, c.n_parts};
        const std::string shape = timed.shape("f16");
        if (!rig_.choice.wants(c.name, shape)) continue;
        const auto times =
            gemm_timer().times(timed, [&](Tensor x, std::span<const GemmPart> parts) {
              gemm(rig_.stream(), x, parts, c.epilogue);
            });
        KernelTiming timing{c.name, shape, Bound::Flops, times.us * 1e-6, timed.work()};
        if (times.cublas_us) timing.cublas_seconds = *times.cublas_us * 1e-6;
        rig_.choice.done(timing);
      }
      append(m);
    }
  }

  // The fused GEMM of q, k and v as in prefill, compared with cuBLAS's GEMM alone.
  void append(int64_t m) {
    const TimedGemm timed{m, 3 * kBenchDim, kBenchDim, Epilogue::Store, 3};
    const std::string shape = cat(m, " x ", timed.n, " x ", timed.k, " f16");
    if (!rig_.choice.wants("gemm_append", shape)) return;
    const int64_t n_pages = pages_for(m);
    const DeviceTensor pages = pages_in_order(n_pages);
    const Shape cache_rows{n_pages, kBenchHeads, kPagePositions, kBenchHeadDim};
    const DeviceTensor keys = allocate_device(DType::F16, cache_rows);
    const DeviceTensor values = allocate_device(DType::F16, cache_rows);
    const DeviceTensor table = random_tensor(DType::F32, {m, kBenchHeadDim / 2, 2});
    KvLayer layer = bench_layer(DType::F16, n_pages, view_of_tensor(keys), view_of_tensor(values));
    if (!gemm_can_append(gemm_timer().args_of(timed), layer, table)) return;
    const auto times = gemm_timer().times(timed, [&](Tensor x, std::span<const GemmPart> parts) {
      gemm_append(rig_.stream(), layer, first_place(pages), x, parts.first<3>(), table, {});
    });
    KernelTiming timing{"gemm_append", shape, Bound::Flops, times.us * 1e-6, timed.work()};
    if (times.cublas_us) timing.cublas_seconds = *times.cublas_us * 1e-6;
    rig_.choice.done(timing);
  }

  void gemvs() {
    for (int64_t n_tokens : {int64_t{1}, kMaxGemvTokens}) {
      const DecodeActivations a(n_tokens);
      for (const WeightFormat& f : {kF16Weights, kInt8Weights, kInt4Weights}) {
        for (DecodeGemv which : kDecodeGemvs) {
          std::vector<std::vector<Matrix>> sets;
          for (int i = 0; i < kBenchLaunches; ++i)
            sets.push_back(matrices_of(rig_.inputs, f, which));
          const std::string name = cat("gemv_", name_of(which));
          const std::string shape = cat(n_tokens, " x ", shape_of(f, sets[0]));
          if (!rig_.choice.wants(name, shape)) continue;
          const double us = graph_us(rig_.stream(), kBenchLaunches, [&] {
            for (const auto& w : sets) run_gemv(rig_.stream(), a, which, w);
          });
          const double flops = 2.0 * double(n_tokens) * double(elements_of_all(sets[0]));
          rig_.choice.done(
              {name, shape, Bound::Read, us * 1e-6, {double(bytes_of_all(sets[0])), flops}});
        }
      }
    }
  }

  void dequantized() {
    for (const WeightFormat& f : {kInt8Weights, kInt4Weights}) {
      for (DecodeGemv which : kDecodeGemvs) {
        double bytes = 0;
        std::vector<std::vector<Matrix>> sets;
        for (int i = 0; i < kBenchLaunches; ++i) sets.push_back(matrices_of(rig_.inputs, f, which));
        const std::string shape = shape_of(f, sets[0]);
        if (!rig_.choice.wants("dequantize_rows", shape)) continue;
        const double us = graph_us(rig_.stream(), kBenchLaunches, [&] {
          for (const auto& set : sets) {
            std::vector<DeviceTensor> halves;
            std::vector<DequantizePart> parts;
            bytes = double(bytes_of_all(set));
            for (const Matrix& w : set) {
              halves.push_back(rig_.outputs.take(DType::F16, {w.out_dim, w.in_dim}));
              parts.push_back({&w, halves.back()});
              bytes += double(halves.back().view().n_bytes());
            }
            dequantize_rows(rig_.stream(), parts);
          }
        });
        const double flops = element_flops::kDequantize * double(elements_of_all(sets[0]));
        rig_.choice.done({"dequantize_rows", shape, Bound::Copy, us * 1e-6, {bytes, flops}});
      }
    }
  }

  GemmTimer& gemm_timer() {
    if (!gemm_timer_) {
      try {
        cublas_.emplace(rig_.stream());
      } catch (const Error&) {  // no cuBLAS: no baseline; CudaLimits::no_cublas has the reason
      }
      gemm_timer_.emplace(rig_.stream(), cublas_ ? &*cublas_ : nullptr);
    }
    return *gemm_timer_;
  }

  KernelRig& rig_;
  std::optional<Cublas> cublas_;
  std::optional<GemmTimer> gemm_timer_;
};

}  // namespace

void time_matrix_kernels(KernelRig& rig) { MatrixKernels(rig).run(); }

}  // namespace minfer::cuda
