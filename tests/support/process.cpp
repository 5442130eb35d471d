#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace minfer::test {
namespace {

// Passes stdin as a file, so that no writer can block or get SIGPIPE.
int memory_file(const std::string& bytes) {
  const int fd = ::memfd_create("stdin", MFD_CLOEXEC);
  EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::vector<std::string> environment_of(const ProcessOptions& options) {
  std::vector<std::string> entries;
  for (const char* name : {"PATH", "HOME", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && !options.environment.contains(name)) {
      entries.push_back(std::string(name) + "=" + value);
    }
  }
  for (const auto& [name, value] : options.environment) entries.push_back(name + "=" + value);
  return entries;
}

// Reads what is available; false at the end of the file.
bool append_available(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) text.append(buffer, static_cast<size_t>(n));
  return n > 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& args, const ProcessOptions& options) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "pipe: " << std::strerror(errno);
    return;
  }
  const int input = memory_file(options.input);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  if (options.stdout_path) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.stdout_path->c_str(),
                                       O_WRONLY, 0);
  }
  if (options.close_stdin) ::posix_spawn_file_actions_addclose(&actions, STDIN_FILENO);
  if (options.close_stdout) ::posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  if (options.close_stderr) ::posix_spawn_file_actions_addclose(&actions, STDERR_FILENO);

  std::vector<std::string> arguments = args, environment = environment_of(options);
  const int error = ::posix_spawn(&pid_, args.front().c_str(), &actions, nullptr,
                                  pointers(arguments).data(), pointers(environment).data());
  EXPECT_EQ(error, 0) << args.front() << ": " << std::strerror(error);
  if (error != 0) pid_ = -1;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(input);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  close_out();
  ::close(err_);
}

void Process::read_out(size_t n_bytes) {
  while (result_.out.size() < n_bytes && append_available(out_, result_.out)) {
  }
}

void Process::close_out() {
  if (out_ >= 0) ::close(out_);
  out_ = -1;
}

void Process::send(int signal) { ::kill(pid_, signal); }

ProcessResult Process::wait() {
  pollfd files[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // poll ignores a negative fd
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    if (::poll(files, 2, -1) < 0) break;
    if (files[0].revents != 0 && !append_available(out_, result_.out)) files[0].fd = -1;
    if (files[1].revents != 0 && !append_available(err_, result_.err)) files[1].fd = -1;
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return result_;
}

}  // namespace minfer::test
