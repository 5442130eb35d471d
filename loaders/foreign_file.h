#pragma once

#include <string>
#include <string_view>

namespace minfer {

// Says what stands in for a file that was not downloaded: "is a git-lfs pointer ...", "is a web
// page ..."; empty if the file is neither. `start` are its first bytes, up to kStandInBytes.
inline constexpr size_t kStandInBytes = 256;
std::string stand_in(std::string_view start);

// Says what a file is that minfer cannot read as a model, and what to do: "is a zip archive ...";
// empty if that is not known. `start` are its first bytes.
std::string foreign_format(std::string_view start, std::string_view name);

}  // namespace minfer
