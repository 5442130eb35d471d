#include "tools/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "tools/help.h"

namespace minfer {
namespace {

// "-n,--predict,--max-new-tokens" to "-n" and "--predict".
std::vector<std::string> shown_names(const std::string& names) {
  std::vector<std::string> shown;
  bool has_long = false;
  for (const std::string& name : CLI::detail::split(names, ',')) {
    if (name.starts_with("--") && has_long) continue;
    has_long = has_long || name.starts_with("--");
    shown.push_back(name);
  }
  return shown;
}

// The name that messages use.
std::string main_name(const std::string& names) { return shown_names(names).back(); }

std::string with_default(const std::string& help, const std::string& value) {
  return value.empty() ? help : help + " [" + value + "]";
}

// MINFER_TOP_K for --top-k.
std::string environment_name(const CLI::Option& option) {
  if (option.get_lnames().empty()) return "";
  std::string name = "MINFER_" + option.get_lnames().front();
  for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z') ? char(c - 'a' + 'A') : c;
  return name;
}

// A key outside of any section belongs to the command that runs, where no common option has it.
class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& root) : root_(root) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(input);
    for (CLI::ConfigItem& item : items) {
      const bool common = root_.get_option_no_throw("--" + item.name) != nullptr;
      if (item.parents.empty() && !common) item.parents = owner("--" + item.name);
    }
    return items;
  }

 private:
  // Names down to the last of the chosen commands that has the option; the first one's where none
  // has it, which is then refused.
  std::vector<std::string> owner(const std::string& option) const {
    std::vector<std::string> path, found;
    for (const CLI::App* app = &root_; !app->get_subcommands().empty();) {
      app = app->get_subcommands().front();
      path.push_back(app->get_name());
      if (found.empty() || app->get_option_no_throw(option) != nullptr) found = path;
    }
    return found;
  }

  const CLI::App& root_;
};

// As CLI11 wants them: last first. "--stop=" becomes "--stop" and an empty value, where CLI11 would
// take the next argument.
std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> args;
  bool only_positionals = false;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    only_positionals = only_positionals || arg == "--";
    const bool empty_value = arg.starts_with("--") && arg.find('=') == arg.size() - 1;
    if (!only_positionals && empty_value) {
      arg.pop_back();
      args.push_back(arg);
      arg.clear();
    }
    args.push_back(std::move(arg));
  }
  std::ranges::reverse(args);
  return args;
}

}  // namespace

CommandNode::CommandNode(CLI::App& app, CommandNode* parent)
    : app_(app), parent_(parent), name_(app.get_name()), description_(app.get_description()) {}

CommandNode::~CommandNode() = default;

CommandNode& CommandNode::add_command(const std::string& name, const std::string& description,
                                      const std::string& examples, std::function<void()> run) {
  CLI::App* app = app_.add_subcommand(name, description);
  app->fallthrough();
  commands_.push_back(std::make_unique<CommandNode>(*app, this));
  commands_.back()->examples_ = examples;
  commands_.back()->run_ = std::move(run);
  return *commands_.back();
}

CLI::Option* CommandNode::add(const std::string& names, const OptionInfo& info, Parse parse) {
  options_.push_back(info);
  options_.back().names = shown_names(names);
  CLI::Option* option =
      app_.add_option(names, [parse = std::move(parse)](const CLI::results_t& results) {
        parse(results.back());
        return true;
      });
  option->take_last();
  return option->envname(environment_name(*option));
}

void CommandNode::add_flag(const std::string& names, bool& value, const std::string& help,
                           Show show) {
  options_.push_back({shown_names(names), "", help, show});
  CLI::Option* flag = app_.add_flag(names, value);
  flag->envname(environment_name(*flag));
}

void CommandNode::add_integer(const std::string& names, int64_t& value, int64_t low, int64_t high,
                              const std::string& help, Show show) {
  add(names, {{}, "N", with_default(help, cat(value)), show},
      [&value, low, high, name = main_name(names)](const std::string& text) {
        value = parse_integer(name, text, low, high);
      });
}

void CommandNode::add_number(const std::string& names, float& value, float low, float high,
                             const std::string& help, Show show) {
  add(names, {{}, "X", with_default(help, cat(value)), show},
      [&value, low, high, name = main_name(names)](const std::string& text) {
        value = parse_number(name, text, low, high);
      });
}

void CommandNode::add_text(const std::string& names, std::string& value, const std::string& kind,
                           const std::string& help, Show show) {
  add(names, {{}, kind, with_default(help, value), show},
      [&value](const std::string& text) { value = text; });
}

void CommandNode::add_text(const std::string& names, std::optional<std::string>& value,
                           const std::string& kind, const std::string& help, Show show) {
  add(names, {{}, kind, help, show}, [&value](const std::string& text) { value = text; });
}

void CommandNode::add_choice(const std::string& names, std::string& value,
                             const std::vector<std::string>& choices, const std::string& help,
                             Show show) {
  const std::string list = CLI::detail::join(choices, "|");
  add(names, {{}, list, with_default(help, value), show},
      [&value, choices, list, name = main_name(names)](const std::string& text) {
        MINFER_REQUIRE(Usage, std::ranges::count(choices, text) > 0, name, ": ", shortened(text),
                       " is none of ", list);
        value = text;
      });
}

void CommandNode::add_integers(const std::string& names, std::vector<int64_t>& value, int64_t low,
                               int64_t high, const std::string& help, Show show) {
  add(names, {{}, "N,...", with_default(help, CLI::detail::join(value, ",")), show},
      [&value, low, high, name = main_name(names)](const std::string& text) {
        value.clear();
        for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
          end = text.find(',', begin);
          const std::string_view item = std::string_view(text).substr(begin, end - begin);
          value.push_back(parse_integer(name, item, low, high));
        }
      });
}

void CommandNode::add_repeatable(const std::string& names, std::vector<std::string>& values,
                                 const std::string& kind, const std::string& help, Show show) {
  options_.push_back({shown_names(names), kind, help, show});
  CLI::Option* option = app_.add_option(names, [&values](const CLI::results_t& results) {
    values = results;
    return true;
  });
  option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  option->envname(environment_name(*option));
}

std::vector<const CommandNode*> CommandNode::visible_commands() const {
  std::vector<const CommandNode*> visible;
  for (const auto& command : commands_) {
    if (!command->description().empty()) visible.push_back(command.get());
  }
  return visible;
}

std::vector<const CommandNode*> CommandNode::all_visible_commands() const {
  std::vector<const CommandNode*> all;
  for (const CommandNode* command : visible_commands()) {
    all.push_back(command);
    const std::vector<const CommandNode*> below = command->all_visible_commands();
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::string CommandNode::full_name() const {
  return parent_ == nullptr ? name_ : parent_->full_name() + " " + name_;
}

const CommandNode* CommandNode::chosen() const {
  for (const auto& command : commands_) {
    if (command->app_.parsed()) return command->chosen();
  }
  return this;
}

CommandLine::CommandLine(const std::string& description, const std::string& examples)
    : app_(std::make_unique<CLI::App>(description, "minfer")) {
  app_->set_help_flag("-h,--help");
  app_->set_help_all_flag("--help-all");
  app_->set_version_flag("--version", "");
  app_->require_subcommand(1);
  app_->fallthrough();
  root_ = std::make_unique<CommandNode>(*app_, nullptr);
  root_->examples_ = examples;
  root_->options_ = {{{"-h", "--help"}, "", "Help with examples", Show::Always},
                     {{"--help-all"}, "", "Help with every option", Show::Always},
                     {{"--version"}, "", "Version, compiler and CPU path", Show::Always},
                     {{"--config"}, "FILE", "Options from a TOML file", Show::More}};
  const char* config = std::getenv("MINFER_CONFIG");
  app_->set_config("--config", config == nullptr ? "" : config);
  app_->config_formatter(std::make_shared<ConfigFile>(*app_));
  app_->allow_config_extras(CLI::config_extras_mode::error);
}

CommandLine::~CommandLine() = default;

std::function<void()> CommandLine::parse(int argc, char** argv,
                                         const std::function<void(const std::string&)>& print,
                                         const std::function<std::string()>& version) {
  // CLI11 passes over a file that only the environment names and that is not there.
  const std::string config = app_->get_config_ptr()->get_default_str();
  MINFER_REQUIRE(Input, config.empty() || path_exists(config),
                 "MINFER_CONFIG: ", shortened(config, 200), ": no such file");
  try {
    app_->parse(reversed_arguments(argc, argv));
  } catch (const CLI::CallForHelp&) {
    return [this, print] { print(help_text(*root_->chosen(), Show::Always)); };
  } catch (const CLI::CallForAllHelp&) {
    return [this, print] { print(help_text(*root_->chosen(), Show::More)); };
  } catch (const CLI::CallForVersion&) {
    return [print, version] { print(version()); };
  } catch (const CLI::FileError& e) {
    throw Error(ErrorKind::Input, e.what());
  } catch (const CLI::RequiredError&) {
    std::string names;
    for (const CommandNode* command : root_->visible_commands()) {
      names += (names.empty() ? "" : ", ") + command->name();
    }
    const std::vector<std::string> rest = app_->remaining();
    throw Error(ErrorKind::Usage,
                rest.empty() ? "no command; there are " + names
                             : cat("no command ", shortened(rest.front()), "; there are ", names));
  } catch (const CLI::ConfigError& e) {
    throw Error(ErrorKind::Usage, cat("--config: ", e.what()));
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorKind::Usage, cat(e.what(), " (minfer --help)"));
  }
  return root_->chosen()->run_;
}

}  // namespace minfer
