#include <algorithm>
#include <cstdlib>

#include "kernels/base/error.h"
#include "tools/argument_reader.h"
#include "tools/command_line.h"
#include "tools/config_file.h"
#include "tools/help.h"
#include "tools/option_hints.h"

namespace minfer {
namespace {

// MINFER_TOP_K for top-k.
std::string environment_name(const std::string& key) {
  std::string name = "MINFER_" + key;
  for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z') ? char(c - 'a' + 'A') : c;
  return name;
}

std::string comma_list(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

}  // namespace

CommandLine::CommandLine(const std::string& description, const std::string& examples)
    : root_(std::make_unique<CommandNode>("minfer", description, nullptr)) {
  root_->examples_ = examples;
  root_->add_flag("-h,--help", help_, "Help with examples");
  root_->add_flag("--help-all", help_all_, "Help with every option");
  root_->add_flag("--version", version_, "Version, compiler and CPU path");
  for (const auto& option : root_->readers_) option->on_command_line_alone = true;
  root_->add_text("--config", config_, "FILE", "Options from a TOML file", Show::More);
}

CommandLine::~CommandLine() = default;

std::function<void()> CommandLine::parse(int argc, char** argv,
                                         const std::function<void(const std::string&)>& print,
                                         const std::function<std::string()>& version) {
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const auto is_help = [](const std::string& arg) {
    return arg == "-h" || arg == "--help" || arg == "--help-all";
  };
  // Beside a mistake, too, help is what is wanted.
  const auto help = std::ranges::find_if(args, is_help);
  const bool all = std::ranges::count(args, "--help-all") > 0;
  ArgumentReader reader(*root_, args);
  CommandNode* chosen = root_.get();
  try {
    chosen = &reader.read();
    for (CommandNode* node = chosen; node != nullptr; node = node->parent_) {
      for (const auto& option : node->readers_) {
        if (!option->given.empty()) set(*option, option->shown, option->given);
      }
    }
  } catch (const Error&) {
    if (help == args.end() || reader.asks_for_help()) throw;
    help_ = true;
    chosen = &reader.node();
  }
  if (version_) return [print, version] { print(version()); };
  if (help_ || help_all_ || reader.asks_for_help()) {
    return [chosen, all, print] { print(help_text(*chosen, all ? Show::More : Show::Always)); };
  }
  read_environment(*chosen);
  if (!chosen->run_) {
    std::vector<std::string> names;
    for (const CommandNode* command : chosen->visible_commands()) names.push_back(command->name());
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::Usage, cat("no command; there are ", list, " (minfer --help)"));
  }
  command_ = chosen->full_name();
  return chosen->run_;
}

void CommandLine::set(const CommandNode::Option& option, const std::string& what,
                      const std::vector<std::string>& values) {
  option.set(what, values);
  // Only the last value holds, except of options that are repeatable.
  given_[option.shown] = option.repeatable ? comma_list(values) : values.back();
}

std::string CommandLine::settings() const {
  std::string text = command_;
  for (const auto& [name, value] : given_) text += cat(' ', name, ' ', value);
  return text;
}

// Options that the command line leaves open: from the file of --config, then the environment.
void CommandLine::read_environment(CommandNode& chosen) {
  const char* const config = std::getenv("MINFER_CONFIG");
  if (config_.empty() && config != nullptr && *config != '\0') {
    try {
      read_config(config, chosen);
    } catch (const Error& e) {
      throw e.in("MINFER_CONFIG");
    }
  } else if (!config_.empty()) {
    read_config(config_, chosen);
  }
  for (CommandNode* node = &chosen; node != nullptr; node = node->parent_) {
    for (const auto& option : node->readers_) {
      const std::string key = option->key();
      if (!option->given.empty() || key.empty() || option->on_command_line_alone) continue;
      const std::string name = environment_name(key);
      const char* const value = std::getenv(name.c_str());
      if (value != nullptr && *value != '\0') set(*option, name, {value});
    }
  }
}

void CommandLine::read_config(const std::string& path, CommandNode& chosen) {
  for (const ConfigItem& item : read_config_file(path)) {
    CommandNode* node = root_.get();
    for (const std::string& name : item.section) {
      CommandNode* const below = node->command_named(name);
      MINFER_REQUIRE(Usage, below != nullptr, item.place, ": ", node->full_name(),
                     " has no command ", shortened(name));
      node = below;
    }
    if (item.key.empty()) continue;
    CommandNode::Option* const known = node->any_option_named("--" + item.key);
    if (known == nullptr || known->on_command_line_alone || item.key == "config") {
      std::string near = nearest(item.key, node->all_keys());
      throw Error(ErrorKind::Usage, cat(item.place, ": unknown option ", shortened(item.key),
                                        near.empty() ? "" : cat("; did you mean ", near, "?")));
    }
    const bool concerned = [&] {
      for (const CommandNode* above = &chosen; above != nullptr; above = above->parent_) {
        if (above == node) return true;
      }
      return false;
    }();
    CommandNode::Option* const option = chosen.option_named("--" + item.key);
    if (!concerned || option == nullptr) continue;
    // The command line comes first, then the section of the innermost command.
    if (!option->given.empty() && !option->given_by_file) continue;
    const auto depth = std::ssize(item.section);
    if (option->given_by_file && *option->given_by_file > depth) continue;
    option->given =
        option->repeatable ? item.values : std::vector<std::string>{comma_list(item.values)};
    option->given_by_file = depth;
    set(*option, cat(item.place, ": ", item.key), option->given);
  }
}

}  // namespace minfer
