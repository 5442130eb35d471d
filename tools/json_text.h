#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace minfer {

// JSON for stdout: what is not UTF-8 becomes U+FFFD.
std::string pretty(const nlohmann::ordered_json& value);   // indented: one object
std::string compact(const nlohmann::ordered_json& value);  // on one line: one of many

}  // namespace minfer
