#pragma once

#include <histedit.h>

#include <memory>
#include <string>

namespace minfer {

// Lines of earlier runs and of this one. Kept in a file that its owner alone may read, to which
// each line is appended at once; without such a file, for this run alone.
class LineHistory {
 public:
  LineHistory();

  History* get() const { return history_.get(); }
  void add(const std::string& line);

 private:
  struct End {
    void operator()(History* history) const { history_end(history); }
  };
  std::unique_ptr<History, End> history_;
  std::string path_;  // empty: none
};

}  // namespace minfer
