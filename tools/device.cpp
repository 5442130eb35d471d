#include "tools/device.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/math.h"
#include "kernels/base/usable_cores.h"
#include "tools/process.h"

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
  command.add_text("--device", options.device, "DEVICE",
                   "cpu, cuda or cuda:N; cuda where there is a card", Show::More);
  command.add_integer("--tp", options.tp, 1, 64, "Ranks that share the model", Show::More);
  command.add_choice("--activations", options.activations, {"float", "int8", "int8-asym"},
                     "Type of the inputs of linear layers; on a card int8 is for long prompts",
                     Show::More);
  command.add_choice("--gemm", options.gemm, {"own", "cublas"},
                     "GEMMs of many tokens on a card: minfer's kernels or cuBLAS", Show::More);
}

void add_kv_type_option(CommandNode& command, std::string& kv_type) {
  command.add_choice("--kv-type", kv_type, {"f32", "f16", "int8"},
                     "Type of the KV cache; f32 on the CPU alone", Show::More);
}

DType kv_dtype_by_name(const std::string& kv_type, const DeviceOptions& device) {
  MINFER_REQUIRE(Usage, kv_type != "f32" || !on_card(device),
                 "--kv-type f32 runs on the CPU (--device cpu); on a card f16 or int8 do");
  return kv_type == "int8" ? DType::U8 : kv_type == "f16" ? DType::F16 : DType::F32;
}

void check_ranks(int64_t tp) {
  MINFER_REQUIRE(Usage, tp == 1, "--tp ", tp, ": this build runs on one rank");
}

int thread_count(const DeviceOptions& options) {
  if (options.n_threads > 0) return narrow<int>(options.n_threads);
  return usable_cores();
}

bool on_card(const DeviceOptions& options) {
  if (options.device.empty()) return n_cuda_devices() > 0;
  return options.device == "cuda" || options.device.starts_with("cuda:");
}

int card_index(const DeviceOptions& options) {
  const std::string& device = options.device;
  if (device.empty() || device == "cuda") return 0;
  const std::string text = device.substr(std::string("cuda:").size());
  int index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  const bool whole = error == std::errc() && end == text.data() + text.size() && index >= 0;
  MINFER_REQUIRE(Gpu, whole || text.find(',') == std::string::npos, "this build runs on one card");
  MINFER_REQUIRE(Usage, whole, "--device: ", shortened(device),
                 " is none of cpu, cuda, cuda:N,...");
  return index;
}

namespace {

std::unique_ptr<Backend> make_uncancelled_backend(const DeviceOptions& options, DType float_type) {
  if (on_card(options)) {
    MINFER_REQUIRE(Usage, options.activations != "int8-asym",
                   "--activations int8-asym runs on the CPU: --device cpu");
    MINFER_REQUIRE(Usage, options.activations == "float" || options.gemm == "own", "--activations ",
                   options.activations, " and --gemm ", options.gemm,
                   ": cuBLAS takes float activations");
    try {
      const DType compute = float_type == DType::BF16 ? DType::BF16 : DType::F16;
      return make_cuda_backend({.device = card_index(options),
                                .compute_dtype = compute,
                                .use_cublas = options.gemm == "cublas",
                                .activations = activations_named(options.activations)});
    } catch (const Error& e) {
      throw options.device.empty() ? e : e.in(cat("--device ", shortened(options.device)));
    }
  }
  MINFER_REQUIRE(Usage, options.device.empty() || options.device == "cpu", "--device ",
                 shortened(options.device), ": is none of cpu, cuda, cuda:N");
  MINFER_REQUIRE(Usage, options.gemm == "own", "--gemm ", options.gemm,
                 " runs on a card: --device cuda");
  return make_cpu_backend({.n_threads = thread_count(options),
                           .isa = {},
                           .activations = activations_named(options.activations)});
}

}  // namespace

std::unique_ptr<Backend> make_backend(const DeviceOptions& options, DType float_type) {
  check_ranks(options.tp);
  std::unique_ptr<Backend> backend = make_uncancelled_backend(options, float_type);
  backend->cancel_by(&interrupt_flag());
  return backend;
}

}  // namespace minfer
