#include "tools/argument_walk.h"

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

}  // namespace

ArgumentWalk::ArgumentWalk(CommandNode& root, std::vector<std::string> args)
    : root_(root), node_(&root), args_(std::move(args)) {}

CommandNode& ArgumentWalk::walk() {
  bool only_words = false;
  while (!at_end() && !asks_for_help_) {
    const std::string arg = next();
    if (only_words || arg.size() < 2 || arg.front() != '-') {
      take_word(arg);
    } else if (arg == "--") {
      only_words = true;
    } else if (arg.starts_with("--")) {
      take_long(arg);
    } else {
      take_short(arg);
    }
  }
  return *node_;
}

std::string ArgumentWalk::next() { return args_[at_++]; }

void ArgumentWalk::refuse(const std::string& message) const {
  throw Error(ErrorKind::Usage, cat(message, " (", node_->full_name(), " --help)"));
}

void ArgumentWalk::take_word(const std::string& word) {
  if (n_words_ == 0) {
    CommandNode* const command = node_->command_named(word);
    if (command != nullptr) {
      node_ = command;
      return;
    }
    if (word == "help") return take_help_words();
  }
  std::vector<CommandNode::Option*> positionals;
  for (const auto& option : node_->readers_) {
    if (!option->names.front().starts_with('-')) positionals.push_back(option.get());
  }
  if (n_words_ == positionals.size()) refuse_command(word);
  positionals[n_words_++]->given.push_back(word);
}

// `help` in place of a command or of all arguments: those behind it name the command.
void ArgumentWalk::take_help_words() {
  asks_for_help_ = true;
  for (; !at_end(); ++at_) {
    if (args_[at_].starts_with('-')) continue;
    CommandNode* const command = node_->command_named(args_[at_]);
    if (command == nullptr) refuse_command(args_[at_]);
    node_ = command;
  }
}

void ArgumentWalk::take_long(const std::string& arg) {
  const size_t equals = arg.find('=');
  const std::string name = arg.substr(0, equals);
  CommandNode::Option* const option = node_->option_named(name);
  if (option == nullptr) {
    if (take_foreign(name)) return;
    refuse_option(name);
  }
  if (equals != std::string::npos) {
    option->given.push_back(arg.substr(equals + 1));
  } else {
    take_value(*option, name);
  }
}

// "-n", "-n64", "-qv", or one of llama.cpp's, "-ngl".
void ArgumentWalk::take_short(const std::string& arg) {
  if (take_foreign(arg)) return;
  for (size_t i = 1; i < arg.size(); ++i) {
    const std::string name = {'-', arg[i]}, rest = arg.substr(i + 1);
    CommandNode::Option* const option = node_->option_named(name);
    if (option == nullptr) refuse_option(i == 1 ? arg : name);
    if (!option->takes_value || rest.empty()) {
      take_value(*option, name);
      continue;
    }
    // A word that no number begins is rather the name of an option that there is not.
    if (!option->takes_text && !is_number_like(rest)) refuse_option(arg);
    option->given.push_back(rest);
    return;
  }
}

void ArgumentWalk::take_value(CommandNode::Option& option, const std::string& name) {
  if (!option.takes_value) {
    option.given.push_back("true");
  } else {
    if (at_end()) refuse(cat(name, ": needs a value"));
    option.given.push_back(next());
  }
}

// Whether the name is another program's for something that this command has too.
bool ArgumentWalk::take_foreign(const std::string& name) {
  const ForeignName* const foreign = foreign_name(name);
  if (foreign == nullptr) return false;
  if (foreign->ours == nullptr) refuse(cat(name, ": is llama.cpp's; ", foreign->instead));
  CommandNode::Option* const option = node_->option_named(foreign->ours);
  if (option == nullptr) {
    refuse(cat(name, ": is llama.cpp's name of ", foreign->ours, ", which ", node_->full_name(),
               " does not have"));
  }
  take_value(*option, name);
  return true;
}

void ArgumentWalk::refuse_option(const std::string& name) const {
  const std::string shown = shortened(name);
  for (const CommandNode* command : root_.all_visible_commands()) {
    const auto has = [&](const auto& option) { return option->has(name); };
    if (std::ranges::any_of(command->readers_, has)) {
      refuse(cat("unknown option ", shown, "; it is one of ", command->full_name(),
                 node_ == &root_ ? ", behind the command" : ""));
    }
  }
  refuse(cat("unknown option ", shown, did_you_mean(nearest(name, node_->all_option_names()))));
}

void ArgumentWalk::refuse_command(const std::string& word) const {
  std::vector<std::string> names;
  for (const CommandNode* command : node_->visible_commands()) names.push_back(command->name());
  if (names.empty()) {
    refuse(cat("unexpected argument ", shortened(word),
               n_words_ > 0 ? "; a text of several words needs quotes" : ""));
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
