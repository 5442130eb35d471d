#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace minfer::test {

struct ProcessOptions {
  std::string input = {};  // the content of stdin
  // In addition to PATH, HOME and the options of sanitizers.
  std::map<std::string, std::string> environment = {};
  std::optional<std::string> stdout_path = {};  // instead of the pipe
  bool close_stdin = false, close_stdout = false, close_stderr = false;
};

struct ProcessResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string out, err;
};

// Pointers as exec takes them, with a null at the end.
inline std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// A child process with pipes. `args` begins with the path of the binary.
class Process {
 public:
  explicit Process(const std::vector<std::string>& args, const ProcessOptions& options = {});
  ~Process();  // ends the child if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void read_out(size_t n_bytes);  // waits for so many bytes on stdout, or its end
  void close_out();               // like a reader that goes away
  void send(int signal);
  ProcessResult wait();

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  ProcessResult result_;
};

inline ProcessResult run_process(const std::vector<std::string>& args,
                                 const ProcessOptions& options = {}) {
  return Process(args, options).wait();
}

}  // namespace minfer::test
