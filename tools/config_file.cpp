#include "tools/config_file.h"

#include <toml++/toml.h>

#include "kernels/base/error.h"
#include "loaders/file.h"

namespace minfer {
namespace {

constexpr uint64_t kMaxSettingsBytes = 1 << 20;

std::string place_of(const std::string& path, const toml::source_region& source) {
  return cat(shortened(path, 200), ':', source.begin.line);
}

// As it would be given on the command line.
std::string text_of(const toml::node& node, const std::string& place, std::string_view key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return cat(integer->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  const auto* number = node.as_floating_point();
  MINFER_REQUIRE(Input, number != nullptr, place, ": ", shortened(key),
                 ": expected text, a number, true or false, or a list of these");
  return cat(number->get());
}

void add_items(const toml::table& table, const std::string& path, std::vector<std::string>& section,
               std::vector<ConfigItem>& items) {
  for (const auto& [key, node] : table) {
    const std::string place = place_of(path, key.source());
    if (const toml::table* inner = node.as_table()) {
      section.emplace_back(key.str());
      if (inner->empty()) items.push_back({place, section, "", {}});
      add_items(*inner, path, section, items);
      section.pop_back();
      continue;
    }
    ConfigItem item{place, section, std::string(key.str()), {}};
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) {
        item.values.push_back(text_of(element, place, key.str()));
      }
      MINFER_REQUIRE(Input, !item.values.empty(), place, ": ", shortened(key.str()),
                     ": an empty list");
    } else {
      item.values = {text_of(node, place, key.str())};
    }
    items.push_back(std::move(item));
  }
}

}  // namespace

std::vector<ConfigItem> read_config_file(const std::string& path) {
  const std::string text = read_whole_file(path, kMaxSettingsBytes);
  std::vector<ConfigItem> items;
  std::vector<std::string> section;
  try {
    add_items(toml::parse(text), path, section, items);
  } catch (const toml::parse_error& e) {
    throw Error(ErrorKind::Input,
                cat(place_of(path, e.source()), ": ", shortened(e.description(), 300)));
  }
  return items;
}

}  // namespace minfer
