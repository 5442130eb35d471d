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

// MINFER_TOP_K for --top-k and --top_k.
std::string environment_name(const std::string& option) {
  std::string name = "MINFER_" + option.substr(2);
  for (char& c : name) c = c == '-' ? '_' : (c >= 'a' && c <= 'z') ? char(c - 'a' + 'A') : c;
  return name;
}

// CommandNode::Option::distance; a section is at most as deep as there are commands.
constexpr int64_t kDistanceOfFile = 100, kDistanceOfEnvironment = kDistanceOfFile + 1;

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
        if (option->given.empty()) continue;
        option->given_as = option->shown;
        set(*option);
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
  read_defaults(*chosen);
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

void CommandLine::set(const CommandNode::Option& option) {
  option.set(option.given_as, option.given);
  // Only the last value holds, except of options that are repeatable.
  given_[option.shown] = option.repeatable ? comma_list(option.given) : option.given.back();
}

std::string CommandLine::settings() const {
  std::string text = command_;
  for (const auto& [name, value] : given_) text += cat(' ', name, ' ', value);
  return text;
}

// Options that the command line leaves open: from the file of --config, then the environment.
void CommandLine::read_defaults(CommandNode& chosen) {
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
  read_environment(chosen);
  chosen.drop_what_yields();
  for (CommandNode* node = &chosen; node != nullptr; node = node->parent_) {
    for (const auto& option : node->readers_) {
      if (!option->given.empty() && option->distance > 0) set(*option);
    }
  }
}

void CommandLine::read_environment(CommandNode& chosen) {
  for (CommandNode* node = &chosen; node != nullptr; node = node->parent_) {
    for (const auto& option : node->readers_) {
      if (option->on_command_line_alone) continue;
      for (const std::string& name : option->names) {
        if (!option->given.empty() || !name.starts_with("--")) continue;
        const std::string variable = environment_name(name);
        const char* const value = std::getenv(variable.c_str());
        if (value == nullptr || *value == '\0') continue;
        option->give(variable, {value}, kDistanceOfEnvironment);
      }
    }
  }
}

void CommandLine::read_config(const std::string& path, CommandNode& chosen) {
  for (const ConfigItem& item : read_config_file(path)) {
    CommandNode* node = root_.get();
    for (const std::string& section : item.section) {
      CommandNode* const below = node->command_named(section);
      MINFER_REQUIRE(Usage, below != nullptr, item.place, ": ", node->full_name(),
                     " has no command ", shortened(section));
      node = below;
    }
    if (item.key.empty()) continue;
    // "ctx_size" is --ctx-size: a key of TOML has no dash as a rule.
    std::string name = "--" + item.key;
    if (node->any_option_named(name) == nullptr) std::ranges::replace(name, '_', '-');
    CommandNode::Option* const known = node->any_option_named(name);
    if (known == nullptr || known->on_command_line_alone || name == "--config") {
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
    CommandNode::Option* const option = chosen.option_named(name);
    if (!concerned || option == nullptr) continue;
    // The command line comes first, then the section of the innermost command.
    const int64_t distance = kDistanceOfFile - std::ssize(item.section);
    if (!option->given.empty() && option->distance < distance) continue;
    option->give(cat(item.place, ": ", item.key),
                 option->repeatable ? item.values : std::vector{comma_list(item.values)}, distance);
  }
}

}  // namespace minfer
