#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace minfer::test {

// A child process at a terminal of its own, where a test types and reads what is shown.
class PseudoTerminal {
 public:
  // `args` begins with the path of the binary; `environment` comes beside PATH and HOME.
  PseudoTerminal(std::vector<std::string> args, std::map<std::string, std::string> environment);
  ~PseudoTerminal();  // ends what still runs
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(const std::string& keys);
  // Waits for `text` and returns what was shown since the last call, up to its end. A failure of
  // the test where it has not come within 30 s.
  std::string wait_for(const std::string& text);
  void send(int signal);
  // Of the process that has ended by itself; -1 where a signal has ended it.
  int exit_code();
  // Whether lines are echoed and edited by the terminal, as a shell leaves it.
  bool is_cooked() const;

 private:
  pid_t pid_ = -1;
  int master_ = -1;
  std::string shown_;  // and not yet waited for
};

}  // namespace minfer::test
