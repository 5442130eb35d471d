#pragma once

#include <string>
#include <string_view>

namespace minfer {

// What stands in the place of a file that was not fetched: "is a git-lfs pointer ...", "is a web
// page ...". `start` are the first bytes of the file, up to kStandInBytes. Empty where it is
// neither.
inline constexpr size_t kStandInBytes = 256;
std::string stand_in(std::string_view start);

// What a file that minfer cannot read as a model is instead, and what to do: "is a zip archive
// ...". Empty where that is not known. `start` are its first bytes.
std::string foreign_format(std::string_view start, std::string_view name);

}  // namespace minfer
