#pragma once

#include <functional>
#include <string>

#include "kernels/comm/mpi_comm.h"
#include "tools/commands.h"
#include "tools/device.h"

namespace minfer {

// Every process of `mpirun minfer ... --tp mpi` runs the same command and has one rank of the
// model. Rank 0 alone prints, and what could differ between processes comes from it: stdin, files
// of text, random seeds.

// Joins this process to the others if --tp mpi asks for it, and makes it silent unless it is rank
// 0. Throws Usage if it cannot join, and Peer if the processes differ in version or options.
void join_mpi_ranks(const DeviceOptions& options, Context& context);

MpiProcess* mpi_process();  // null: this process has joined no others
bool is_first_process();    // rank 0, or a process that has joined no others

// What `make` returns, on rank 0 if there are others. It is called there alone.
std::string from_first_process(const std::function<std::string()>& make);
// Throws Peer if `text` differs between ranks. `what` names it: "the model".
void require_same_on_all_ranks(const std::string& what, const std::string& text);
// Returns when all ranks have called it.
void meet_processes();
// The sum over the processes.
int64_t sum_of_processes(int64_t n);

// An error that ends this process: what stands before its message, or none if it is not to be told,
// because rank 0 has ended this process meanwhile and tells of it.
std::optional<std::string> prefix_of_error();

void finish_mpi_ranks();  // at the end of a command: waits for the others
// Where an error ends this process: ends all others too. Returns if there are none.
void end_all_mpi_ranks(int exit_code);

}  // namespace minfer
