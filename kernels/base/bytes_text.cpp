#include "kernels/base/bytes_text.h"

#include <cmath>
#include <iterator>
#include <sstream>

#include "kernels/base/error.h"

namespace minfer {

std::string bytes_text(int64_t n_bytes) {
  if (n_bytes < 1000) return cat(n_bytes, " B");
  struct Unit {
    double bytes;
    const char* name;
    int decimals;
  };
  constexpr Unit kUnits[] = {{1e3, "kB", 1}, {1e6, "MB", 1}, {1e9, "GB", 2}, {1e12, "TB", 2}};
  const Unit* unit = kUnits;
  // 999,960 bytes are 1.0 MB and not 1000.0 kB.
  while (unit + 1 != std::end(kUnits) && double(n_bytes) >= 0.99995 * unit[1].bytes) ++unit;
  const double steps = unit->decimals == 1 ? 10 : 100;
  std::ostringstream text;  // "83 GB" and not "83.00 GB"
  text.precision(15);
  text << std::round(double(n_bytes) / unit->bytes * steps) / steps << ' ' << unit->name;
  return std::move(text).str();
}

}  // namespace minfer
