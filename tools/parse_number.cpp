#include <charconv>
#include <limits>

#include "kernels/base/error.h"
#include "tools/command_line.h"

namespace minfer {
namespace {

template <typename T>
T parse_whole(std::string_view what, std::string_view text, T low, T high) {
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  MINFER_REQUIRE(Usage, whole && value >= low && value <= high, what, ": ", shortened(text),
                 " is not ", std::is_integral_v<T> ? "an integer" : "a number", " in [", low, ", ",
                 high, "]");
  return value;
}

}  // namespace

int64_t parse_integer(std::string_view what, std::string_view text, int64_t low, int64_t high) {
  return parse_whole<int64_t>(what, text, low, high);
}

float parse_number(std::string_view what, std::string_view text, float low, float high) {
  return parse_whole<float>(what, text, low, high);
}

}  // namespace minfer
