#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace minfer {

// One JSON value from a file that is not trusted, with white space around it and nothing else, by
// the letter of RFC 8259 and stricter: at most 64 levels, no key twice in an object, no byte order
// mark, no number past a double, no half of a surrogate pair, and no more memory than
// MemoryBudget gives. Throws Input with the byte where it happened; takes no stack per level;
// linear.
nlohmann::json parse_strict_json(std::string_view text);

// Containers that are not kept, by their keys from the root on; of each, every value is handed over
// when it has been read (with its key; of an array with an empty one), and the document has it
// empty. A key that comes twice comes twice.
using TakeJson = std::function<void(std::string&& key, nlohmann::json&& value)>;
using StreamedJson = std::map<std::vector<std::string>, TakeJson>;
nlohmann::json parse_strict_json(std::string_view text, const StreamedJson& streamed);

// The same as Python reads it: NaN, Infinity and -Infinity are numbers, one past a double is
// infinite, of a key that comes twice the last one counts; besides, a byte order mark is skipped.
// Each of these adds a line to `warnings`, up to a few, with the name of the file in front.
nlohmann::json parse_python_json(std::string_view text, std::string_view name,
                                 std::vector<std::string>& warnings,
                                 const StreamedJson& streamed = {});

}  // namespace minfer
