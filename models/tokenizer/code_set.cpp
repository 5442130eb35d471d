#include "models/tokenizer/code_set.h"

#include <algorithm>

namespace minfer {

CodeSet::CodeSet(std::vector<CodeRange> ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  for (const CodeRange& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    else
      ranges_.push_back(range);
  }
}

bool CodeSet::contains(char32_t code) const {
  const auto range = std::ranges::lower_bound(ranges_, code, {}, &CodeRange::last);
  return range != ranges_.end() && range->first <= code;
}

CodeSet CodeSet::united(const CodeSet& other) const {
  std::vector<CodeRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CodeSet(std::move(all));
}

CodeSet CodeSet::intersected(const CodeSet& other) const {
  return inverted().united(other.inverted()).inverted();
}

CodeSet CodeSet::inverted() const {
  CodeSet out;
  char32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (next < range.first) out.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCode) out.ranges_.push_back({next, kMaxCode});
  return out;
}

}  // namespace minfer
