#pragma once

#include <string>

#include "kernels/backend.h"

namespace minfer {

// Limits of the host, each the best of several passes on `n_threads` threads (0: all cores): what
// `minfer bench` holds its figures against, measured in the same run.
struct CpuLimits {
  int n_threads = 0;
  double read_bytes_per_second = 0;  // streaming reads of memory far larger than the caches
  double copy_bytes_per_second = 0;  // bytes read plus bytes written
  double fma_flops_per_second = 0;   // f32 fused multiply-adds from registers, 2 flops each
  double barrier_seconds = 0;        // one empty parallel region of the thread pool
};

CpuLimits measure_cpu_limits(int n_threads, const std::string& isa);
double measure_cpu_read_bandwidth(int n_threads, const std::string& isa);  // bytes per second

// Limits of a card, medians.
struct CudaLimits {
  std::string card;
  double read_bytes_per_second = 0;     // best stream over 6 GiB: plain loads or bulk copies
  double copy_bytes_per_second = 0;     // device to device: bytes read plus bytes written
  double barrier_seconds = 0;           // of one barrier over the grid, a block on each SM
  double launch_seconds = 0;            // of one kernel in a graph
  double dependent_launch_seconds = 0;  // the same with programmatic dependent launch
};

// Throw Gpu in a build without CUDA.
CudaLimits measure_cuda_limits(int device);
double measure_cuda_read_bandwidth(int device);  // bytes per second

}  // namespace minfer
