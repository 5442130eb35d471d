#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// Parses one JSON value, with only white space around it, from a file that is not trusted. It is
// strict to RFC 8259, and also refuses more than 64 levels, a key twice in an object, a byte order
// mark, a number beyond the range of double, half of a surrogate pair, and values that take more
// than the MemoryBudget. Throws Input with the byte where it happened. It takes linear time and
// does not recurse.
nlohmann::json parse_strict_json(std::string_view text);

// Containers whose values are not kept, by the path of keys from the root. Each value of such a
// container is passed on when it has been read, with its key (empty in an array); the container is
// empty in the result. A key that the file has twice is passed on twice.
using TakeJson = std::function<void(std::string&& key, nlohmann::json&& value)>;
using StreamedJson = std::map<std::vector<std::string>, TakeJson>;
nlohmann::json parse_strict_json(std::string_view text, const StreamedJson& streamed);

// The same, as Python reads JSON: NaN, Infinity and -Infinity are numbers, a number beyond double's
// range is infinite, the last of equal keys counts, a byte order mark is skipped. Each of these
// adds a line to `warnings`, up to a few, with the name of the file in front.
nlohmann::json parse_python_json(std::string_view text, std::string_view name,
                                 std::vector<std::string>& warnings,
                                 const StreamedJson& streamed = {});

}  // namespace minfer
