#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace minfer {

// Help with examples first; what is in the group kMoreOptions is shown by --help-all alone. A
// command's examples are its footer.
std::shared_ptr<CLI::FormatterBase> make_help_formatter();

// What the help, the man page and the completions say about one option.
struct OptionHelp {
  std::vector<std::string> names;  // "-n", "--predict": without quiet aliases
  std::string value;               // "N", "f32|f16"; empty for a flag
  std::string text;                // with the default value
  bool more = false;               // in kMoreOptions
};
std::vector<OptionHelp> visible_options(const CLI::App& app);
std::vector<const CLI::App*> visible_commands(const CLI::App& app);

}  // namespace minfer
