#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace minfer {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    MINFER_REQUIRE(Usage, !stop.empty(), "a stop string is empty");
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  std::string out;
  for (const char byte : text) {
    held_ += byte;
    size_t match = 0, may_grow = 0;
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) match = std::max(match, stop.size());
      for (size_t n = std::min(held_.size(), stop.size() - 1); n > may_grow; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) may_grow = n;
      }
    }
    if (match > 0) {
      stopped_ = true;
      out.append(held_, 0, held_.size() - match);
      held_.clear();
      return out;
    }
    const size_t n_certain = held_.size() - may_grow;
    out.append(held_, 0, n_certain);
    held_.erase(0, n_certain);
  }
  return out;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace minfer
