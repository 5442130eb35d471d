#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// Lets a growing text through up to the first stop string, and holds back what may yet become one.
class StopMatcher {
 public:
  // Throws Usage for an empty stop string.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that is certain now. The stop string that is complete first ends the text; of those
  // that end at the same byte, the longest.
  std::string push(std::string_view text);
  bool stopped() const { return stopped_; }
  // What was held back, at the end of the text; nothing after a stop.
  std::string flush();

 private:
  std::vector<std::string> stops_;
  std::string held_;  // a proper prefix of some stop string
  bool stopped_ = false;
};

}  // namespace minfer
