#include <array>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "models/chat/run.h"

namespace minfer::jinja {
namespace {

// $MINFER_NOW, an ISO date with or without a time, stands in for the clock.
std::tm now() {
  std::tm time{};
  const char* const set = std::getenv("MINFER_NOW");
  if (set == nullptr || *set == '\0') {
    const std::time_t seconds = std::time(nullptr);
    ::localtime_r(&seconds, &time);
    return time;
  }
  for (const char* format : {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                             "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    time = {};
    const char* const end = ::strptime(set, format, &time);
    if (end == nullptr || (*end != '\0' && std::string_view(end) != "Z")) continue;
    time.tm_isdst = -1;
    std::tm normal = time;  // finds the day of the week
    std::mktime(&normal);
    time.tm_wday = normal.tm_wday;
    time.tm_yday = normal.tm_yday;
    return time;
  }
  throw Error(ErrorKind::Usage, cat("MINFER_NOW is \"", shortened(set),
                                    "\", not a date like 2026-01-31 or 2026-01-31T12:00:00"));
}

}  // namespace

std::string local_time(const std::string& format) {
  constexpr std::string_view kKnown = "aAbBcdeDFGHIjklmMnpPrRSStTuUVwWxXyY%";
  constexpr size_t kMaxFormat = 1000;
  MINFER_REQUIRE(Input, format.size() <= kMaxFormat && format.find(char{0}) == format.npos,
                 "the format of a time is too long or has a NUL");
  for (size_t at = format.find('%'); at != format.npos; at = format.find('%', at + 2)) {
    if (format.substr(at + 1).starts_with('-')) ++at;
    const char letter = at + 1 < format.size() ? format[at + 1] : ' ';
    MINFER_REQUIRE(Input, kKnown.find(letter) != kKnown.npos, "the format \"%",
                   shortened(std::string(1, letter)), "\" of a time is not supported");
    if (at + 2 >= format.size()) break;
  }
  const std::tm time = now();
  std::string out(20 * kMaxFormat, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &time));
  return out;
}

}  // namespace minfer::jinja
