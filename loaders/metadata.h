#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/error.h"

namespace minfer {

// Typed key-value pairs of a checkpoint: GGUF's metadata, or config.json with nested keys joined by
// dots ("rope_scaling.type"; JSON null is absent). Each getter distinguishes three faults, each an
// Input error naming the key: missing, wrong type, out of range.
class Metadata {
 public:
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<bool>,
                             std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

  Metadata() = default;
  Metadata(Metadata&&) = default;
  Metadata& operator=(Metadata&&) = default;
  // If copying a variant throws, libstdc++ 12 destroys it as if it held a value. Therefore set()
  // copies the value inside, and makes a variant from the copy.
  Metadata(const Metadata& other) : warnings(other.warnings), nulls(other.nulls) {
    for (const auto& [key, value] : other.values_) set(key, value);
  }
  Metadata& operator=(const Metadata& other) { return *this = Metadata(other); }

  void set(std::string key, Value&& value) { values_[std::move(key)] = std::move(value); }
  void set(std::string key, const Value& value) {
    std::visit([&](auto copy) { set(std::move(key), Value(std::move(copy))); }, value);
  }
  bool has(const std::string& key) const { return values_.contains(key); }
  const std::map<std::string, Value>& all() const { return values_; }
  std::string as_text(const std::string& key) const;  // one shortened line, for people

  std::vector<std::string> warnings;  // from reading the file, one line each
  // Keys that are null in config.json. The getters treat them as absent; this is for the few keys
  // whose absence means something else than null.
  std::set<std::string> nulls;

  // An integer in [low, high]; integers of either sign and any width are accepted, floats are not.
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  // A finite number in [low, high]; integers are accepted.
  double number(const std::string& key, double low, double high) const;
  bool boolean(const std::string& key) const;  // 0 and 1 are accepted
  const std::string& text(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const std::vector<double>& numbers(const std::string& key) const;    // array of floats
  const std::vector<int64_t>& integers(const std::string& key) const;  // array of integers
  const std::vector<bool>& booleans(const std::string& key) const;     // array of booleans

  // The same with a default for an absent key.
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) const;
  double number_or(const std::string& key, double fallback, double low, double high) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;

 private:
  const Value& value(const std::string& key) const;
  std::map<std::string, Value> values_;
};

// Throws Input for a value that is not in the list: "key K is "X": not supported (supported: A,
// B)".
void require_supported(const std::string& key, std::string_view value,
                       std::initializer_list<std::string_view> supported);
// The names that follow "prefix." in the keys, up to the next dot, each once.
std::vector<std::string> names_below(const Metadata& metadata, const std::string& prefix);
// Throws Input if the key, or one below it, is there.
void require_absent(const Metadata& metadata, const std::string& key);

}  // namespace minfer
