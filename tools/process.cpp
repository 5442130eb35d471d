#include "tools/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "kernels/base/error.h"
#include "loaders/staging_directory.h"

namespace minfer {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> interrupted{false};
std::atomic<int> first_signal{0};
std::atomic<bool> keeps_running{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void on_signal(int signal) {
  if (interrupted.load()) {
    if (signal == SIGINT && keeps_running.load()) return;
    _exit(128 + signal);
  }
  first_signal.store(signal);
  interrupted.store(true);
}

[[noreturn]] void on_terminate() {
  remove_open_staging_directories();
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    write_memory_error();
    ::_exit(static_cast<int>(ErrorKind::Memory));
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void install_terminate_handler() { std::set_terminate(on_terminate); }

void write_memory_error() {
  constexpr std::string_view kLine = "minfer: error: out of memory\n";
  (void)!::write(STDERR_FILENO, kLine.data(), kLine.size());
}

void open_standard_files() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // open() returns the lowest free number: `fd` itself.
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)!::open("/dev/null", O_RDWR);
  }
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup = {};
  ::sigaction(SIGHUP, nullptr, &hangup);  // nohup has it ignored, and so it stays
  if (hangup.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  ::sigaction(SIGXFSZ, &action, nullptr);
}

const std::atomic<bool>& interrupt_flag() { return interrupted; }

void throw_if_interrupted() {
  if (interrupted.load()) throw Interrupted(first_signal.load());
}

int interrupt_signal() { return first_signal.load(); }

void keep_running_on_interrupt() { keeps_running.store(true); }

bool take_interrupt() {
  if (!interrupted.load()) return false;
  if (first_signal.load() != SIGINT) throw_if_interrupted();
  interrupted.store(false);
  return true;
}

}  // namespace minfer
