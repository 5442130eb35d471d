#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "tests/support/process.h"

namespace minfer::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

}  // namespace

PseudoTerminal::PseudoTerminal(std::vector<std::string> args,
                               std::map<std::string, std::string> environment) {
  for (const char* name : {"PATH", "HOME", "ASAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) environment.try_emplace(name, value);
  }
  environment.try_emplace("TERM", "xterm");
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(args), envp = pointers(entries);
  winsize size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = ::forkpty(&master_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  EXPECT_GT(pid_, 0) << "no pseudo-terminal";
}

PseudoTerminal::~PseudoTerminal() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(master_);
}

void PseudoTerminal::type(const std::string& keys) {
  EXPECT_EQ(::write(master_, keys.data(), keys.size()), std::ssize(keys));
}

std::string PseudoTerminal::wait_for(const std::string& text) {
  const auto end = Clock::now() + kPatience;
  size_t at;
  while ((at = shown_.find(text)) == std::string::npos) {
    pollfd file = {master_, POLLIN, 0};
    char buffer[4096];
    const ssize_t n = ::poll(&file, 1, 100) > 0 ? ::read(master_, buffer, sizeof buffer) : 0;
    if (n > 0) shown_.append(buffer, static_cast<size_t>(n));
    if (n < 0 || Clock::now() > end) {
      ADD_FAILURE() << "\"" << text << "\" was not shown, but \"" << shown_ << "\"";
      return std::exchange(shown_, "");
    }
  }
  std::string before = shown_.substr(0, at + text.size());
  shown_.erase(0, at + text.size());
  return before;
}

void PseudoTerminal::send(int signal) { ::kill(pid_, signal); }

int PseudoTerminal::exit_code() {
  const auto end = Clock::now() + kPatience;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    pollfd file = {master_, POLLIN, 0};
    char buffer[4096];
    if (::poll(&file, 1, 20) > 0) (void)!::read(master_, buffer, sizeof buffer);
    if (Clock::now() > end) {
      ADD_FAILURE() << "the process still runs";
      return -1;
    }
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool PseudoTerminal::is_cooked() const {
  termios modes = {};
  EXPECT_EQ(::tcgetattr(master_, &modes), 0);
  return (modes.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG);
}

}  // namespace minfer::test
