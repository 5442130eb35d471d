#pragma once

#include <string>
#include <vector>

#include "tools/command_line.h"

namespace minfer {

// Finds the command that the arguments choose and gives its options their texts. Throws Usage with
// the nearest name for one that is unknown.
class ArgumentWalk {
 public:
  ArgumentWalk(CommandNode& root, std::vector<std::string> args);

  // The chosen command. Where `minfer help COMMAND` or `minfer COMMAND help` asks for help, it is
  // the command of which help is wanted, and asks_for_help() says so.
  CommandNode& walk();
  bool asks_for_help() const { return asks_for_help_; }
  CommandNode& node() { return *node_; }  // the command so far, where walk() has thrown

 private:
  void take_word(const std::string& word);
  void take_help_words();
  void take_long(const std::string& arg);
  void take_short(const std::string& arg);
  void take_value(CommandNode::Option& option, const std::string& name);
  bool take_foreign(const std::string& name);
  std::string next();
  bool at_end() const { return at_ == args_.size(); }
  [[noreturn]] void refuse(const std::string& message) const;
  [[noreturn]] void refuse_option(const std::string& name) const;
  [[noreturn]] void refuse_command(const std::string& word) const;

  CommandNode& root_;
  CommandNode* node_;
  std::vector<std::string> args_;
  size_t at_ = 0;
  size_t n_words_ = 0;  // positionals of the command so far
  bool asks_for_help_ = false;
};

}  // namespace minfer
