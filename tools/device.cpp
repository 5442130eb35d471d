#include "tools/device.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "kernels/base/math.h"
#include "kernels/base/usable_cores.h"
#include "kernels/comm/nccl_comm.h"
#include "kernels/comm/rank_group.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"

namespace minfer {

namespace {

Activations activations_named(const std::string& name) {
  return name == "int8"        ? Activations::Int8
         : name == "int8-asym" ? Activations::Int8Asym
                               : Activations::Float;
}

// "cuda:0,1": 0 and 1. Empty if no card is named.
std::vector<int> named_cards(const DeviceOptions& options) {
  const std::string prefix = "cuda:";
  std::vector<int> cards;
  if (!options.device.starts_with(prefix)) return cards;
  const std::string_view list = std::string_view(options.device).substr(prefix.size());
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    int index = -1;
    const auto [stopped, error] = std::from_chars(list.data() + at, list.data() + end, index);
    MINFER_REQUIRE(Usage, error == std::errc() && stopped == list.data() + end && index >= 0,
                   "--device: ", shortened(options.device), " is none of cpu, cuda, cuda:N,...");
    MINFER_REQUIRE(Usage, std::ranges::find(cards, index) == cards.end(),
                   "--device: ", shortened(options.device), " names cuda:", index, " twice");
    cards.push_back(index);
    at = end + 1;
  }
  return cards;
}

}  // namespace

void add_device_options(CommandNode& command, DeviceOptions& options) {
  command.add_integer("-t,--threads", options.n_threads, 0, 1024,
                      "Threads; 0: one for each core that the process may use");
  command.add_text("--device", options.device, "DEVICE",
                   "cpu, cuda, cuda:N or cuda:N,M,...; cuda where there is a card", Show::More);
  command.add_text("--tp", options.tp, "RANKS",
                   "Ranks that share the model: N cards, or groups of threads with --device cpu; "
                   "mpi: the processes that mpirun has started",
                   Show::More);
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

int thread_count(const DeviceOptions& options) {
  if (options.n_threads > 0) return narrow<int>(options.n_threads);
  return usable_cores();
}

int threads_of_process(const DeviceOptions& options) {
  const int n_processes = mpi_process() == nullptr ? 1 : mpi_process()->n_ranks_of_host();
  return std::max(1, thread_count(options) / n_processes);
}

bool on_card(const DeviceOptions& options) {
  if (options.device.empty()) return n_cuda_devices() > 0;
  return options.device == "cuda" || options.device.starts_with("cuda:");
}

int card_index(const DeviceOptions& options, int rank) {
  const std::vector<int> cards = named_cards(options);
  if (cards.empty()) return rank;
  return cards.size() == 1 ? cards[0] + rank : cards.at(static_cast<size_t>(rank));
}

int rank_count(const DeviceOptions& options) {
  const std::vector<int> cards = named_cards(options);
  if (options.tp == "mpi") {
    MINFER_REQUIRE(Usage, mpi_process() != nullptr, "--tp mpi: this command runs in one process");
    MINFER_REQUIRE(Usage, cards.size() <= 1, "--tp mpi and --device ", shortened(options.device),
                   ": each process has one card");
    return mpi_process()->communicator().n_ranks();
  }
  const int64_t tp = parse_integer("--tp", options.tp, 1, 64);
  const auto n_cards = static_cast<int64_t>(cards.size());
  MINFER_REQUIRE(Usage, n_cards <= 1 || tp == 1 || tp == n_cards, "--tp ", tp, " and --device ",
                 shortened(options.device), ": ", n_cards, " cards");
  return narrow<int>(n_cards > 1 ? n_cards : tp);
}

namespace {

// The backend of one rank.
std::unique_ptr<Backend> make_rank_backend(const DeviceOptions& options, DType float_type, int rank,
                                           int n_threads) {
  if (on_card(options)) {
    MINFER_REQUIRE(Usage, options.activations != "int8-asym",
                   "--activations int8-asym runs on the CPU: --device cpu");
    MINFER_REQUIRE(Usage, options.activations == "float" || options.gemm == "own", "--activations ",
                   options.activations, " and --gemm ", options.gemm,
                   ": cuBLAS takes float activations");
    try {
      const DType compute = float_type == DType::BF16 ? DType::BF16 : DType::F16;
      return make_cuda_backend({.device = card_index(options, rank),
                                .compute_dtype = compute,
                                .use_cublas = options.gemm == "cublas",
                                .activations = activations_named(options.activations)});
    } catch (const Error& e) {
      throw options.device.empty() ? e : e.in(cat("--device ", shortened(options.device)));
    }
  }
  MINFER_REQUIRE(Usage, options.device.empty() || options.device == "cpu", "--device ",
                 shortened(options.device), " is none of cpu, cuda, cuda:N,...");
  MINFER_REQUIRE(Usage, options.gemm == "own", "--gemm ", options.gemm,
                 " runs on a card: --device cuda");
  return make_cpu_backend(
      {.n_threads = n_threads, .isa = {}, .activations = activations_named(options.activations)});
}

// One of the ranks that are processes. On cards they are joined by NCCL.
std::unique_ptr<Backend> make_backend_of_process(const DeviceOptions& options, DType float_type) {
  MpiProcess& process = *mpi_process();
  require_same_on_all_ranks("the device", on_card(options) ? "cuda" : "cpu");
  const int n_ranks = rank_count(options);
  std::unique_ptr<Backend> backend =
      make_rank_backend(options, float_type, process.rank_of_host(), threads_of_process(options));
  backend->cancel_by(&interrupt_flag());
  if (n_ranks == 1) return backend;
  if (on_card(options)) {
    const std::string id = from_first_process(make_nccl_id);
    backend->connect(make_nccl_communicator(*backend, id, process.rank(), n_ranks));
  } else {
    backend->connect(&process.communicator());
  }
  return backend;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const DeviceOptions& options, DType float_type) {
  const int n_ranks = rank_count(options);
  // On the slices of a rank, int8 activations have not been tested on a card.
  MINFER_REQUIRE(Usage, n_ranks == 1 || !on_card(options) || options.activations == "float",
                 "--activations ", options.activations, " and several cards: float activations");
  if (mpi_process() != nullptr) return make_backend_of_process(options, float_type);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < n_ranks; ++rank) {
    const int n_threads = std::max(1, thread_count(options) / n_ranks);
    backends.push_back(make_rank_backend(options, float_type, rank, n_threads));
    backends.back()->cancel_by(&interrupt_flag());
  }
  return join_ranks(std::move(backends));
}

}  // namespace minfer
