#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace minfer {

// A bar on stderr while something takes long: on a terminal alone, after the first half second,
// gone when it is done. Also where Ctrl-C is noticed: throws Interrupted.
class Progress {
 public:
  Progress(std::string label, bool quiet);
  ~Progress();
  void update(int64_t done, int64_t total);
  // The same, but for Ctrl-C: for what is reported of work that has ended.
  void show(int64_t done, int64_t total);
  // With a figure behind the bar, and the time that is left.
  void update(int64_t done, int64_t total, const std::string& figure);
  void clear();  // the line is free for other output until the next update
  // For LoadOptions::progress; this object outlives the function.
  std::function<void(int64_t, int64_t)> callback();

 private:
  bool is_due(int64_t done, int64_t total);
  void show(const std::string& detail);

  std::string label_;
  bool enabled_, shown_ = false;
  double started_;
  int64_t last_percent_ = -1;
};

double now_seconds();  // on the monotonic clock

}  // namespace minfer
