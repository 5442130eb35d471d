#include "tools/json_text.h"

#include <nlohmann/json.hpp>

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string pretty(const Json& value) { return dump(value, 2); }

std::string compact(const Json& value) { return dump(value, -1); }

}  // namespace minfer
