#include "tools/config_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "kernels/base/error.h"
#include "tools/options.h"

namespace minfer {
namespace {

class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& root) : root_(root) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(input);
    const std::vector<CLI::App*> chosen = root_.get_subcommands();
    for (CLI::ConfigItem& item : items) {
      const bool common = root_.get_option_no_throw("--" + item.name) != nullptr;
      if (item.parents.empty() && !common && !chosen.empty()) {
        item.parents = {chosen.front()->get_name()};
      }
    }
    return items;
  }

 private:
  const CLI::App& root_;
};

}  // namespace

void add_config_file_option(CLI::App& root) {
  const char* set = std::getenv("MINFER_CONFIG");
  const std::string path = set == nullptr ? "" : set;
  std::error_code ignored;
  MINFER_REQUIRE(Input, path.empty() || std::filesystem::is_regular_file(path, ignored),
                 "MINFER_CONFIG: ", shortened(path, 200), " is not a file");
  root.set_config("--config", path, "Options from a TOML file")
      ->type_name("FILE")
      ->group(kMoreOptions);
  root.config_formatter(std::make_shared<ConfigFile>(root));
  root.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace minfer
