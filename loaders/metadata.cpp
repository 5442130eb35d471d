#include "loaders/metadata.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>

namespace minfer {
namespace {

std::string_view type_name(const Metadata::Value& value) {
  constexpr std::string_view kNames[] = {"a boolean",
                                         "an integer",
                                         "an integer",
                                         "a number",
                                         "text",
                                         "an array of booleans",
                                         "an array of integers",
                                         "an array of numbers",
                                         "an array of texts"};
  static_assert(std::size(kNames) == std::variant_size_v<Metadata::Value>);
  return kNames[value.index()];
}

[[noreturn]] void throw_wrong_type(const std::string& key, const Metadata::Value& value,
                                   std::string_view wanted) {
  throw Error(ErrorKind::Input,
              cat("key ", shortened(key), " is ", type_name(value), ", expected ", wanted));
}

template <typename T>
const T& get_as(const std::string& key, const Metadata::Value& value, std::string_view wanted) {
  const T* typed = std::get_if<T>(&value);
  if (typed == nullptr) throw_wrong_type(key, value, wanted);
  return *typed;
}

template <typename T>
void append_value(std::string& line, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    line += value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    line += '"' + shortened(value) + '"';
  } else {
    line += cat(value);
  }
}

}  // namespace

const Metadata::Value& Metadata::value(const std::string& key) const {
  const auto found = values_.find(key);
  MINFER_REQUIRE(Input, found != values_.end(), "key ", shortened(key), " is missing");
  return found->second;
}

std::string Metadata::as_text(const std::string& key) const {
  return std::visit(
      []<typename T>(const T& value) {
        std::string line;
        if constexpr (requires { value.size(); } && !std::is_same_v<T, std::string>) {
          constexpr size_t kShown = 4;
          line += cat(value.size(), " values: [");
          for (size_t i = 0; i < value.size() && i < kShown; ++i) {
            if (i > 0) line += ", ";
            append_value<typename T::value_type>(line, value[i]);
          }
          line += value.size() > kShown ? ", ...]" : "]";
        } else {
          append_value(line, value);
        }
        return line;
      },
      value(key));
}

int64_t Metadata::integer(const std::string& key, int64_t low, int64_t high) const {
  const Value& found = value(key);
  const auto* as_signed = std::get_if<int64_t>(&found);
  const auto* as_unsigned = std::get_if<uint64_t>(&found);
  if (as_signed == nullptr && as_unsigned == nullptr) throw_wrong_type(key, found, "an integer");
  const bool fits = as_signed != nullptr ? *as_signed >= low && *as_signed <= high
                                         : std::cmp_greater_equal(*as_unsigned, low) &&
                                               std::cmp_less_equal(*as_unsigned, high);
  MINFER_REQUIRE(Input, fits, "key ", shortened(key), " is ", as_text(key), ", expected ", low,
                 " to ", high);
  return as_signed != nullptr ? *as_signed : static_cast<int64_t>(*as_unsigned);
}

double Metadata::number(const std::string& key, double low, double high) const {
  const Value& found = value(key);
  double number = 0;
  if (const auto* real = std::get_if<double>(&found)) {
    number = *real;
  } else if (const auto* as_signed = std::get_if<int64_t>(&found)) {
    number = static_cast<double>(*as_signed);
  } else if (const auto* as_unsigned = std::get_if<uint64_t>(&found)) {
    number = static_cast<double>(*as_unsigned);
  } else {
    throw_wrong_type(key, found, "a number");
  }
  MINFER_REQUIRE(Input, std::isfinite(number) && number >= low && number <= high, "key ",
                 shortened(key), " is ", number, ", expected ", low, " to ", high);
  return number;
}

bool Metadata::boolean(const std::string& key) const {
  const Value& found = value(key);
  // Some writers have no booleans.
  if (const auto* number = std::get_if<uint64_t>(&found)) {
    if (*number <= 1) return *number == 1;
  }
  if (const auto* number = std::get_if<int64_t>(&found)) {
    if (*number == 0 || *number == 1) return *number == 1;
  }
  return get_as<bool>(key, found, "a boolean");
}

const std::string& Metadata::text(const std::string& key) const {
  return get_as<std::string>(key, value(key), "text");
}

const std::vector<std::string>& Metadata::texts(const std::string& key) const {
  return get_as<std::vector<std::string>>(key, value(key), "an array of texts");
}

const std::vector<double>& Metadata::numbers(const std::string& key) const {
  return get_as<std::vector<double>>(key, value(key), "an array of numbers");
}

const std::vector<int64_t>& Metadata::integers(const std::string& key) const {
  return get_as<std::vector<int64_t>>(key, value(key), "an array of integers");
}

const std::vector<bool>& Metadata::booleans(const std::string& key) const {
  return get_as<std::vector<bool>>(key, value(key), "an array of booleans");
}

int64_t Metadata::integer_or(const std::string& key, int64_t fallback, int64_t low,
                             int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double Metadata::number_or(const std::string& key, double fallback, double low, double high) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool Metadata::boolean_or(const std::string& key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

std::string Metadata::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

void require_supported(const std::string& key, std::string_view value,
                       std::initializer_list<std::string_view> supported) {
  std::string list;
  for (const std::string_view name : supported) {
    if (name == value) return;
    list += cat(list.empty() ? "" : ", ", name);
  }
  throw Error(ErrorKind::Input, cat("key ", key, " is \"", shortened(value),
                                    "\": not supported (supported: ", list, ")"));
}

std::vector<std::string> names_below(const Metadata& metadata, const std::string& prefix) {
  std::vector<std::string> names;
  const std::string start = prefix + ".";
  // Keys are in order, so that those below one name stand together but for names that go on with
  // a character before the dot ("a-b" between "a" and "a.b"): hence the set.
  std::unordered_set<std::string> seen;
  for (auto it = metadata.all().lower_bound(start);
       it != metadata.all().end() && it->first.starts_with(start); ++it) {
    const size_t end = it->first.find('.', start.size());
    std::string name =
        it->first.substr(start.size(), end == std::string::npos ? end : end - start.size());
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

void require_absent(const Metadata& metadata, const std::string& key) {
  const auto below = metadata.all().lower_bound(key + ".");
  const bool is_there =
      metadata.has(key) || (below != metadata.all().end() && below->first.starts_with(key + "."));
  MINFER_REQUIRE(Input, !is_there, "key ", key, " is there: not supported");
}

}  // namespace minfer
