#pragma once

#include <cstdint>
#include <string_view>

namespace minfer {

// Bytes that this process can still take without swapping or being killed: what the system has
// left, and what the control group allows. The largest int64_t where nothing says.
int64_t available_host_bytes();

// Throws Memory, with both figures, where there are fewer.
void require_host_memory(int64_t bytes, std::string_view purpose);

}  // namespace minfer
