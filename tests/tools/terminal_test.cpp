#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using Clock = std::chrono::steady_clock;

// minfer on a pseudo-terminal.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> args) {
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Reads until the text is on the screen; false at the end of the output or after a minute.
  bool wait_for(const std::string& text) {
    const auto end = Clock::now() + std::chrono::minutes(1);
    while (shown_.find(text) == std::string::npos) {
      if (Clock::now() > end || !read_some()) return false;
    }
    return true;
  }
  void type(char c) { EXPECT_EQ(::write(fd_, &c, 1), 1); }
  void send(int signal) { ::kill(pid_, signal); }
  int exit_code() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& shown() const { return shown_; }

 private:
  bool read_some() {
    pollfd waited{fd_, POLLIN, 0};
    if (::poll(&waited, 1, 60'000) <= 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof buffer);
    if (n > 0) shown_.append(buffer, size_t(n));
    return n > 0;
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string shown_;
};

// A prompt that takes minutes, in one pass: attention of a hundred thousand tokens.
class LongPrompt : public MinferProcess {
 protected:
  std::vector<std::string> reading() const {
    return command({"generate", "-m", dir_.write("long.gguf", tiny_gguf({.context = 200'000})),
                    "-f", dir_.write("prompt.txt", std::string(150'000, 'x')), "-b", "150010", "-n",
                    "1", "-t", "1"});
  }
};

TEST_F(LongPrompt, ShowsProgressAndEndsAtOnceBySignal) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    Terminal terminal(reading());
    ASSERT_TRUE(terminal.wait_for("kv 150")) << terminal.shown();  // the model is loaded
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto sent = Clock::now();
    signal == SIGINT ? terminal.type('\x03') : terminal.send(signal);
    EXPECT_EQ(terminal.exit_code(), code) << terminal.shown();
    // Within 200 ms, and what a busy machine adds.
    EXPECT_LT(Clock::now() - sent, std::chrono::seconds(2));
    EXPECT_NE(terminal.shown().find("interrupted while reading the prompt"), std::string::npos)
        << terminal.shown();
  }
}

TEST_F(LongPrompt, InChunksShowsProgress) {
  std::vector<std::string> args = reading();
  args.insert(args.end(), {"-b", "512"});
  Terminal terminal(args);
  EXPECT_TRUE(terminal.wait_for("reading the prompt [")) << terminal.shown();
  terminal.type('\x03');
  EXPECT_EQ(terminal.exit_code(), 130) << terminal.shown();
  EXPECT_TRUE(terminal.shown().find("\r\x1b[K") != std::string::npos);
}

TEST_F(LongPrompt, WithoutATerminalThereIsNoProgress) {
  std::vector<std::string> args = reading();
  args.insert(args.end(), {"-b", "512"});
  Process process(args);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(result.err.find('\r'), std::string::npos);
  EXPECT_EQ(result.err.find("\x1b["), std::string::npos);
}

// One pass of a minute.
TEST_F(MinferProcess, ASignalEndsThePrefillOfABench) {
  Terminal terminal(command({"bench", "--synthetic", "smollm2-135m:f16", "-p", "8000", "-b", "8000",
                             "-n", "0", "-r", "1", "--no-warmup", "--device", "cpu", "-t", "1"}));
  ASSERT_TRUE(terminal.wait_for("on cpu")) << terminal.shown();  // measures the memory, then begins
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const auto sent = Clock::now();
  terminal.send(SIGINT);
  EXPECT_EQ(terminal.exit_code(), 130) << terminal.shown();
  EXPECT_LT(Clock::now() - sent, std::chrono::seconds(5));
}

}  // namespace
}  // namespace minfer::test
