#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "tools/command_line.h"

namespace minfer {

// Where the mathematics runs.
struct DeviceOptions {
  int64_t n_threads = 0;
  std::string device = {};  // empty: cuda where there is a card, else cpu
  std::string tp = "1";     // ranks, or "mpi"
  std::string activations = "float";
  std::string gemm = "own";  // or "cublas"
};

void add_device_options(CommandNode& command, DeviceOptions& options);
// --kv-type, and what its value names; Usage where a card has no such cache.
void add_kv_type_option(CommandNode& command, std::string& kv_type);
DType kv_dtype_by_name(const std::string& kv_type, const DeviceOptions& device);
int thread_count(const DeviceOptions& options);  // with 0 resolved: of all ranks of this host
int threads_of_process(const DeviceOptions& options);
bool on_card(const DeviceOptions& options);  // whether a CUDA backend is asked for, or the default
// The card of a rank: "cuda:3,1" names one for each, "cuda:3" the first of neighbours.
int card_index(const DeviceOptions& options, int rank = 0);
// By --tp, or by the cards that --device names. With --tp mpi, the ranks that this process has
// joined; Usage if it has joined none.
int rank_count(const DeviceOptions& options);
// float_type: that of the model's weights, BF16 or another one; a card computes in BF16 or F16.
std::unique_ptr<Backend> make_backend(const DeviceOptions& options, DType float_type = DType::F16);

}  // namespace minfer
