#pragma once

#include <atomic>

#include "kernels/base/cancelled.h"

namespace minfer {

// SIGINT, SIGTERM or SIGHUP asked for the end: the process ends with 128 + signal.
struct Interrupted : Cancelled {
  explicit Interrupted(int number) : signal(number) {}

  int signal;
};

// Opens what is closed of stdin, stdout and stderr on /dev/null, so that no model file gets one of
// their numbers.
void open_standard_files();

// The first SIGINT, SIGTERM or SIGHUP sets the flag, the second ends the process at once. SIGPIPE
// and SIGXFSZ are ignored: a closed stdout and a file size limit are seen at the write.
void install_signal_handlers();
// Where memory ends in a destructor, no error can leave it: the process then ends with its exit
// code and its line all the same, and without its half-written output.
void install_terminate_handler();
// The line of an error for which there may be no memory.
void write_memory_error();
const std::atomic<bool>& interrupt_flag();
void throw_if_interrupted();
int interrupt_signal();  // that set the flag

// For a conversation, in which Ctrl-C ends an answer and not the process: from here on SIGINT sets
// the flag however often it comes.
void keep_running_on_interrupt();
// Whether the flag was set by SIGINT, and clears it. Throws Interrupted where it was set by another
// signal.
bool take_interrupt();

}  // namespace minfer
