#include "tools/mpi_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tools/process.h"
#include "tools/version.h"

namespace minfer {
namespace {

std::unique_ptr<MpiProcess> process;

// By mpirun's word, which holds before this process has joined the others. 0: not started by it.
int started_as_rank() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

void make_silent(Context& context) {
  context.out.silence();
  context.common.quiet = true;
  context.common.log_file.clear();  // which rank 0 writes
  if (context.common.log_level != "off") context.common.log_level.clear();
  configure_log(context.common);
}

}  // namespace

void join_mpi_ranks(const DeviceOptions& options, Context& context) {
  if (options.tp != "mpi") return;
  process = start_mpi({.cancelled = &interrupt_flag(), .on_lost_rank = [](const Error& error) {
                         if (const std::optional<std::string> prefix = prefix_of_error()) {
                           log_error(*prefix + error.what());
                         }
                         process->end_all(static_cast<int>(error.kind()));
                       }});
  if (!is_first_process()) make_silent(context);
  require_same_on_all_ranks("minfer's version", version());
  require_same_on_all_ranks("the command", context.settings);
}

MpiProcess* mpi_process() { return process.get(); }

bool is_first_process() { return !process || process->rank() == 0; }

std::string from_first_process(const std::function<std::string()>& make) {
  if (!process) return make();
  return process->from_rank_0(process->rank() == 0 ? make() : "");
}

void require_same_on_all_ranks(const std::string& what, const std::string& text) {
  if (process) process->require_same(what, text);
}

void meet_processes() { sum_of_processes(0); }

int64_t sum_of_processes(int64_t n) { return process ? process->sum(n) : n; }

std::optional<std::string> prefix_of_error() {
  const int rank = started_as_rank();
  if (rank == 0) return "";
  // An error of all ranks, as that of a file that is not there, is rank 0's to tell; one of several
  // is told by the first of them. Its end ends this process by a signal, which takes longer before
  // they have joined.
  const auto wait = std::chrono::milliseconds((process ? 200 : 1500) + std::min(50 * rank, 1500));
  for (const auto end = std::chrono::steady_clock::now() + wait;
       std::chrono::steady_clock::now() < end;) {
    if (interrupt_flag().load()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return (process ? process->name() : cat("rank ", rank)) + ": ";
}

void finish_mpi_ranks() {
  if (process) process->finish();
  process.reset();
}

void end_all_mpi_ranks(int exit_code) {
  // If a signal ends this process, mpirun, which has most often sent it, ends the others.
  if (process && !interrupt_flag().load()) process->end_all(exit_code);
}

}  // namespace minfer
