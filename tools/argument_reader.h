#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/command_line.h"

namespace CLI {
class App;
}  // namespace CLI

namespace minfer {

// Finds the command that the arguments choose and gives its options their texts. CLI11 reads the
// arguments; what it has no place for is answered here, with the nearest name (Usage).
class ArgumentReader {
 public:
  ArgumentReader(CommandNode& root, std::vector<std::string> args);
  ~ArgumentReader();

  // The chosen command. Where `minfer help COMMAND` or `minfer COMMAND help` asks for help, it is
  // the command of which help is wanted, and asks_for_help() says so.
  CommandNode& read();
  bool asks_for_help() const { return asks_for_help_; }
  CommandNode& node() { return *node_; }  // the command so far, where read() has thrown

 private:
  void mirror(CLI::App& app, CommandNode& node);
  void add(CLI::App& app, CommandNode::Option& option);
  std::vector<std::string> reversed_arguments() const;
  bool is_no_number(const std::string& arg) const;
  void take_help_word();
  std::string as_given(const std::string& name) const;
  [[noreturn]] void refuse(const std::string& message) const;
  [[noreturn]] void refuse_extra(const std::string& arg) const;
  [[noreturn]] void refuse_option(const std::string& name) const;
  [[noreturn]] void refuse_command(const std::string& word) const;

  CommandNode& root_;
  CommandNode* node_;
  std::vector<std::string> args_;
  std::unique_ptr<CLI::App> app_;
  std::map<const CLI::App*, CommandNode*> nodes_;
  bool asks_for_help_ = false;
};

}  // namespace minfer
