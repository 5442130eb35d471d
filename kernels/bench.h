#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/host_tensor.h"

namespace minfer {

// Limits of the host, each the best of several passes on `n_threads` threads (0: all cores).
// `minfer bench` compares its figures with them, measured in the same run.
struct CpuLimits {
  int n_threads = 0;
  double read_bytes_per_second = 0;  // streaming reads of memory far larger than the caches
  double copy_bytes_per_second = 0;  // bytes read plus bytes written
  double fma_flops_per_second = 0;   // f32 fused multiply-adds from registers, 2 flops each
  double barrier_seconds = 0;        // one empty parallel region of the thread pool
};

// Both throw Cancelled once the flag is set; it may be null.
CpuLimits measure_cpu_limits(int n_threads, const std::string& isa,
                             const std::atomic<bool>* cancel_flag = nullptr);
double measure_cpu_read_bandwidth(  // bytes per second
    int n_threads, const std::string& isa, const std::atomic<bool>* cancel_flag = nullptr);

// Limits of a card, medians.
struct CudaLimits {
  std::string card;
  double read_bytes_per_second = 0;     // best stream over 6 GiB: plain loads or bulk copies
  double copy_bytes_per_second = 0;     // best of device to device: bytes read plus bytes written
  double barrier_seconds = 0;           // of one barrier over the grid, a block on each SM
  double launch_seconds = 0;            // of one kernel in a graph
  double dependent_launch_seconds = 0;  // the same with PDL
  // F16 GEMMs of square matrices by cuBLAS; empty without cuBLAS, for the reason in no_cublas.
  struct Hgemm {
    int64_t size;
    double flops_per_second;
  };
  std::vector<Hgemm> hgemm = {};
  std::string no_cublas = {};
};

// Both throw Gpu in a build without CUDA.
CudaLimits measure_cuda_limits(int device);
double measure_cuda_read_bandwidth(int device);  // bytes per second

// What bounds a kernel, which its rate is compared with: reads of memory, reads and writes, or
// arithmetic (HGEMM by cuBLAS on a card, f32 multiply-adds on a CPU).
enum class Bound { Read, Copy, Flops };

// What a kernel has to do: bytes that move, each once, and floating-point operations, where a
// function (exp, erf, tanh, 1 / sqrt, a division) counts as one.
struct KernelWork {
  double bytes = 0, flops = 0;
};

// Such operations for each element of a kernel over rows or elements.
namespace element_flops {
constexpr double kRmsNorm = 4, kAddRmsNorm = 5, kLayerNorm = 7, kLayerNormGelu = 12, kGeluErf = 5,
                 kGeluTanh = 9, kBiasGeluErf = 6, kSilu = 4, kSwiGlu = 5, kAdd = 1, kConvert = 0,
                 kSoftmax = 5, kLogLikelihood = 4, kCompare = 1, kRope = 3, kQuantize = 3,
                 kDequantize = 1;
}

// A kernel at a shape of Llama-2-7B, timed.
struct KernelTiming {
  std::string kernel, shape;  // "gemm_swiglu", "512 x 22016 x 4096 f16"
  Bound bound = Bound::Copy;
  double seconds = 0;  // of one launch: the median on a card, the best on a CPU
  KernelWork work = {};
  std::optional<double> cublas_seconds = {};  // of the GEMM alone, if the kernel is one

  // Bytes or operations per second.
  double rate() const { return (bound == Bound::Flops ? work.flops : work.bytes) / seconds; }
};

// Which kernels are timed, by name and shape, and what is called with each timing.
struct KernelChoice {
  std::function<bool(const std::string& kernel, const std::string& shape)> wants;
  std::function<void(const KernelTiming&)> done;
};

// Inputs of timed CPU kernels: floats in [-0.5, 0.5], and a quantized matrix with all codes.
HostTensor filled(DType dtype, const Shape& shape);
HostQuantizedMatrix filled_codes(DType codes, int64_t out_dim, int64_t in_dim, int64_t group);

// Time the kernels at shapes of Llama-2-7B. Weights and activations come from memory, not from a
// cache; for gemm and attention on a CPU, they come from wherever they are.
void time_cpu_kernels(int n_threads, const std::string& isa, const KernelChoice& choice);
// Throws Gpu in a build without CUDA.
void time_cuda_kernels(int device, const KernelChoice& choice);

}  // namespace minfer
