#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace minfer {

inline constexpr char32_t kMaxCode = 0x10ffff;

struct CodeRange {
  char32_t first, last;  // inclusive
  auto operator<=>(const CodeRange& other) const = default;
};

// A set of Unicode code points, as ranges that are in order and neither touch nor overlap.
class CodeSet {
 public:
  CodeSet() = default;
  explicit CodeSet(char32_t code) : ranges_{{code, code}} {}
  // The ranges may be in any order and may overlap.
  explicit CodeSet(std::vector<CodeRange> ranges);

  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool contains(char32_t code) const;
  CodeSet united(const CodeSet& other) const;
  CodeSet intersected(const CodeSet& other) const;
  CodeSet inverted() const;
  bool operator==(const CodeSet& other) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

}  // namespace minfer
