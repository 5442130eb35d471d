#include "tools/json_lines.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace minfer {

void for_each_line(std::string_view text,
                   const std::function<void(int64_t number, std::string_view content)>& f) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (content.find_first_not_of(" \t\r") != content.npos) f(number, content);
  }
}

std::string error_of_line(int64_t number, const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Input && e.kind() != ErrorKind::Usage) {
      throw e.in(cat("line ", number));
    }
    return cat("line ", number, ": ", e.what());
  }
  return {};
}

}  // namespace minfer
