#pragma once

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

}  // namespace minfer
