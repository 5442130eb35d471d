#pragma once

#include <cstddef>

namespace minfer::test {

// Bytes that this program holds from operator new. Programs that link allocation_meter.cpp only.
size_t held_bytes();
// The most that were held since the last call of reset_peak.
size_t peak_bytes();
void reset_peak();

}  // namespace minfer::test
