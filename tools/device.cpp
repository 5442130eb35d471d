#include "tools/device.h"

#include <algorithm>
#include <thread>

#include "kernels/base/math.h"

namespace minfer {

namespace {

Activations activations_named(const std::string& name) {
  return name == "int8"        ? Activations::Int8
         : name == "int8-asym" ? Activations::Int8Asym
                               : Activations::Float;
}

}  // namespace

void add_device_options(CommandNode& command, DeviceOptions& options) {
  command.add_integer("-t,--threads", options.n_threads, 0, 1024,
                      "Threads; 0: one for each core that the process may use");
  command.add_text("--device", options.device, "DEVICE", "cpu, cuda, cuda:0 or cuda:0,1",
                   Show::More);
  command.add_integer("--tp", options.tp, 1, 64, "Ranks that share the model", Show::More);
  command.add_choice("--activations", options.activations, {"float", "int8", "int8-asym"},
                     "Type of the inputs of each matmul", Show::More);
}

void add_kv_type_option(CommandNode& command, std::string& kv_type) {
  command.add_choice("--kv-type", kv_type, {"f32", "f16", "int8"}, "Type of the KV cache",
                     Show::More);
}

DType kv_dtype_by_name(const std::string& kv_type) {
  return kv_type == "int8" ? DType::U8 : kv_type == "f16" ? DType::F16 : DType::F32;
}

void check_ranks(int64_t tp) {
  MINFER_REQUIRE(Usage, tp == 1, "--tp ", tp, ": this build runs on one rank");
}

int thread_count(const DeviceOptions& options) {
  if (options.n_threads > 0) return narrow<int>(options.n_threads);
  return std::max(1, narrow<int>(std::thread::hardware_concurrency()));
}

std::unique_ptr<Backend> make_backend(const DeviceOptions& options) {
  const bool cuda = options.device == "cuda" || options.device.starts_with("cuda:");
  MINFER_REQUIRE(Gpu, !cuda, "--device ", shortened(options.device),
                 ": this build has no CUDA backend; --device cpu runs here");
  MINFER_REQUIRE(Usage, options.device == "cpu", "--device: ", shortened(options.device),
                 " is none of cpu, cuda, cuda:N,...");
  check_ranks(options.tp);
  return make_cpu_backend({.n_threads = thread_count(options),
                           .isa = {},
                           .activations = activations_named(options.activations)});
}

}  // namespace minfer
