#include "tools/argument_reader.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "tools/option_hints.h"

namespace minfer {
namespace {

bool is_number_like(std::string_view text) {
  return !text.empty() && text.find_first_of("0123456789") != std::string_view::npos &&
         text.find_first_not_of("0123456789.,+-eE") == std::string_view::npos;
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : cat("; did you mean ", name, "?");
}

// "-ngl": one dash and several letters.
bool is_long_short(std::string_view arg) {
  return arg.size() > 2 && arg.front() == '-' && arg[1] != '-';
}

}  // namespace

ArgumentReader::ArgumentReader(CommandNode& root, std::vector<std::string> args)
    : root_(root), node_(&root), args_(std::move(args)), app_(std::make_unique<CLI::App>()) {
  mirror(*app_, root);
}

ArgumentReader::~ArgumentReader() = default;

// What is not known, CLI11 leaves over.
void ArgumentReader::mirror(CLI::App& app, CommandNode& node) {
  nodes_[&app] = &node;
  app.set_help_flag();
  app.allow_extras();
  app.fallthrough();
  app.require_subcommand(0, 1);  // without the limit "generate bench" would be two commands
  for (const auto& option : node.readers_) add(app, *option);
  for (const auto& command : node.commands_) mirror(*app.add_subcommand(command->name_), *command);
}

void ArgumentReader::add(CLI::App& app, CommandNode::Option& option) {
  std::string names = option.names.front();
  for (size_t i = 1; i < option.names.size(); ++i) names += "," + option.names[i];
  for (const std::string& alias : foreign_names_of(option.names)) {
    names += (is_long_short(alias) ? ",-" : ",") + alias;
  }
  const auto take = [&option](const CLI::results_t& results) {
    option.given = results;
    return true;
  };
  CLI::Option* const made =
      option.takes_value ? app.add_option(names, take) : app.add_flag(names, option.given);
  if (!option.takes_value || option.names.front().starts_with('-')) {
    made->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  if (option.takes_value) made->allow_extra_args(false);  // "[a,b]" is a text
}

// As CLI11 wants them: last first. It takes no value that is empty behind "=", ends a command at
// "++", and knows no name of one dash and several letters: such names of llama.cpp, and what no
// value of a number can be, get another dash.
std::vector<std::string> ArgumentReader::reversed_arguments() const {
  std::vector<std::string> given;
  bool is_value = false;
  for (auto arg = args_.begin(); arg != args_.end(); ++arg) {
    if (!is_value && *arg == "--") {
      given.insert(given.end(), arg, args_.end());
      break;
    }
    if (!is_value && *arg == "++") refuse("++: has to be the value of an option, as in -p ++");
    const bool is_long = !is_value && arg->starts_with("--");
    if (is_long && arg->find('=') == arg->size() - 1) {
      given.insert(given.end(), {arg->substr(0, arg->size() - 1), ""});
      continue;
    }
    const ForeignName* const foreign = foreign_name(*arg);
    const bool is_name = is_long_short(*arg) && (foreign != nullptr || is_no_number(*arg));
    given.push_back(!is_value && is_name ? "-" + *arg : *arg);
    const bool has_ours = foreign != nullptr && foreign->ours != nullptr;
    const CommandNode::Option* const option =
        root_.any_option_named(has_ours ? foreign->ours : *arg);
    is_value = !is_value && option != nullptr && option->takes_value;
  }
  std::ranges::reverse(given);
  return given;
}

// "-temp": rather the name of an option that there is not than a value of -t.
bool ArgumentReader::is_no_number(const std::string& arg) const {
  const CommandNode::Option* const option = root_.any_option_named(arg.substr(0, 2));
  return option != nullptr && option->takes_value && !option->takes_text &&
         !is_number_like(std::string_view(arg).substr(2));
}

CommandNode& ArgumentReader::read() {
  asks_for_help_ = !args_.empty() && args_.front() == "help";
  if (asks_for_help_) args_.erase(args_.begin());
  std::string failure;
  try {
    app_->parse(reversed_arguments());
  } catch (const CLI::ArgumentMismatch&) {
    failure = args_.back() + ": needs a value";
  } catch (const CLI::ParseError& e) {
    failure = e.what();
  }
  const CLI::App* app = app_.get();
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  node_ = nodes_.at(app);
  take_help_word();
  for (const std::string& arg : app_->remaining(true)) {
    const bool is_help = arg == "help" || (asks_for_help_ && arg.starts_with('-'));
    if (arg != "--" && !is_help) refuse_extra(arg);
    asks_for_help_ = asks_for_help_ || is_help;
  }
  if (!failure.empty() && !asks_for_help_) refuse(failure);
  return *node_;
}

// `help` in place of a command, or of the first of a command's own arguments.
void ArgumentReader::take_help_word() {
  if (std::ranges::count(args_, "--") > 0) return;
  for (const auto& option : node_->readers_) {
    if (option->names.front().starts_with('-')) continue;
    asks_for_help_ = asks_for_help_ || (option->given.size() == 1 && option->given[0] == "help");
  }
}

// What CLI11 was given with one more dash.
std::string ArgumentReader::as_given(const std::string& name) const {
  const bool is_respelled =
      std::ranges::count(args_, name) == 0 && std::ranges::count(args_, name.substr(1)) > 0;
  return is_respelled ? name.substr(1) : name;
}

void ArgumentReader::refuse(const std::string& message) const {
  throw Error(ErrorKind::Usage, cat(message, " (", node_->full_name(), " --help)"));
}

void ArgumentReader::refuse_extra(const std::string& arg) const {
  if (arg.size() < 2 || arg.front() != '-') refuse_command(arg);
  std::string name = as_given(arg);
  if (name.starts_with("--")) name.resize(std::min(name.size(), name.find('=')));
  const ForeignName* const foreign = foreign_name(name);
  if (foreign == nullptr) refuse_option(name);
  if (foreign->ours == nullptr) refuse(cat(name, ": is llama.cpp's; ", foreign->instead));
  refuse(cat(name, ": is llama.cpp's name of ", foreign->ours, ", which ", node_->full_name(),
             " does not have"));
}

void ArgumentReader::refuse_option(const std::string& name) const {
  const std::string shown = shortened(name);
  const bool is_before_command = node_ == &root_ || node_->option_named(name) != nullptr;
  for (const CommandNode* command : root_.all_visible_commands()) {
    const auto has = [&](const auto& option) { return option->has(name); };
    if (std::ranges::any_of(command->readers_, has)) {
      refuse(cat("unknown option ", shown, "; it is one of ", command->full_name(),
                 is_before_command ? ", behind the command" : ""));
    }
  }
  refuse(cat("unknown option ", shown, did_you_mean(nearest(name, node_->all_option_names()))));
}

void ArgumentReader::refuse_command(const std::string& word) const {
  std::vector<std::string> names;
  for (const CommandNode* command : node_->visible_commands()) names.push_back(command->name());
  if (names.empty()) {
    const bool has_word = std::ranges::any_of(node_->readers_, [](const auto& option) {
      return !option->names.front().starts_with('-') && !option->given.empty();
    });
    refuse(cat("unexpected argument ", shortened(word),
               has_word ? "; a text of several words needs quotes" : ""));
  }
  std::string near = nearest(word, names);
  if (near.empty()) near = command_for(word);
  for (const CommandNode* command : root_.all_visible_commands()) {
    if (near.empty() && command->name() == word) near = command->full_name().substr(7);
  }
  if (near.empty() && path_exists(word)) near = cat("generate -m ", shortened(word));
  if (!near.empty()) refuse(cat("unknown command ", shortened(word), did_you_mean(near)));
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  refuse(cat("unknown command ", shortened(word), "; there are ", list));
}

}  // namespace minfer
