#pragma once

#include <cstddef>

namespace minfer::test {

// Bytes that this program holds from operator new. Only for programs that link
// allocation_meter.cpp.
size_t held_bytes();
// The most bytes held since the last call of reset_peak.
size_t peak_bytes();
void reset_peak();

}  // namespace minfer::test
