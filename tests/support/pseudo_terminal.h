#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace minfer::test {

// A child process with a terminal of its own, where a test types and reads what is shown.
class PseudoTerminal {
 public:
  // `args` begins with the path of the binary; `environment` is added to PATH and HOME.
  PseudoTerminal(std::vector<std::string> args, std::map<std::string, std::string> environment);
  ~PseudoTerminal();  // ends the child if it still runs
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(const std::string& keys);
  // Waits for `text` and returns what was shown since the last call, up to its end. The test fails
  // if `text` does not come within 30 s.
  std::string wait_for(const std::string& text);
  void send(int signal);
  // The exit code of the process, which has ended by itself; -1 if a signal has ended it.
  int exit_code();
  // Whether the terminal echoes and edits lines, as it does when a shell leaves it.
  bool is_cooked() const;

 private:
  pid_t pid_ = -1;
  int master_ = -1;
  std::string shown_;  // shown, but not yet returned by wait_for
};

}  // namespace minfer::test
