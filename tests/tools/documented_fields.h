#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/test_data.h"

namespace minfer::test {

// The fields that docs/json.md names under a heading.
struct Documented {
  std::set<std::string> all, always;
};

inline Documented documented(const std::string& heading) {
  Documented fields;
  std::ifstream in(fixtures_dir() / "../../docs/json.md");
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) here = line == "## `" + heading + "`";
    if (!here || !line.starts_with("| `")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    fields.all.insert(name);
    if (line.ends_with("| |")) fields.always.insert(name);
  }
  EXPECT_FALSE(fields.all.empty()) << heading;
  return fields;
}

// "memory.ctx", "tensors[].name"; keys that are data are "*".
inline void collect(const nlohmann::json& value, const std::string& name,
                    std::set<std::string>& names) {
  const auto below = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (value.is_object()) {
    const bool data = name == "types" || name.ends_with("hgemm_flops_per_s");
    for (const auto& [key, inner] : value.items()) collect(inner, below(data ? "*" : key), names);
  } else if (value.is_array() && !value.empty() && value.front().is_object()) {
    for (const nlohmann::json& inner : value) collect(inner, name + "[]", names);
  } else {
    names.insert(name);
  }
}

// Every field of the object is documented, and every one that is always there is in it.
inline void expect_documented(const nlohmann::json& object, const Documented& fields) {
  std::set<std::string> names;
  collect(object, "", names);
  for (const std::string& name : names) {
    EXPECT_TRUE(fields.all.contains(name)) << name << " is not in docs/json.md";
  }
  for (const std::string& name : fields.always) {
    const bool there = names.contains(name) ||
                       // an object where the document names its null
                       std::ranges::any_of(names, [&](const std::string& found) {
                         return found.starts_with(name + ".") || found.starts_with(name + "[]");
                       });
    EXPECT_TRUE(there) << name << " is in docs/json.md alone";
  }
}

}  // namespace minfer::test
