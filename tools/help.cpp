#include "tools/help.h"

#include <sstream>

namespace minfer {
namespace {

constexpr size_t kTextColumn = 34;

void write_entry(std::ostream& out, const std::string& left, const std::string& text) {
  const size_t used = left.size() + 2;
  out << "  " << left
      << (used < kTextColumn ? std::string(kTextColumn - used, ' ')
                             : "\n" + std::string(kTextColumn, ' '))
      << text << '\n';
}

void write_options(std::ostream& out, const std::string& title, const CommandNode& command,
                   Show show) {
  bool first = true;
  for (const OptionInfo& option : command.options()) {
    if (option.show != show) continue;
    if (first) out << '\n' << title << ":\n";
    first = false;
    std::string left;
    for (const std::string& name : option.names) left += (left.empty() ? "" : ", ") + name;
    if (!option.value.empty() && !option.positional()) left += " " + option.value;
    write_entry(out, left, option.help);
  }
}

std::string usage_line(const CommandNode& command) {
  std::string line = command.full_name();
  if (!command.visible_commands().empty()) {
    line += command.parent() == nullptr ? " COMMAND" : " [COMMAND]";
  }
  line += " [OPTIONS]";
  for (const OptionInfo& option : command.options()) {
    if (option.positional()) line += " [" + option.names.front() + "]";
  }
  return line;
}

void write_command(std::ostream& out, const CommandNode& command, Show upto) {
  out << command.description() << "\n\n";
  if (!command.examples().empty()) out << "Examples:\n" << command.examples() << "\n\n";
  out << "Usage: " << usage_line(command) << '\n';
  bool first = true;
  for (const CommandNode* below : command.visible_commands()) {
    if (first) out << "\nCommands:\n";
    first = false;
    write_entry(out, below->name(), below->description());
  }
  write_options(out, "Options", command, Show::Always);
  if (upto == Show::More) write_options(out, "More options", command, Show::More);
}

void write_commands_below(std::ostream& out, const CommandNode& command) {
  for (const CommandNode* below : command.visible_commands()) {
    out << '\n' << std::string(72, '-') << "\n\n";
    write_command(out, *below, Show::More);
    write_commands_below(out, *below);
  }
}

}  // namespace

std::string help_text(const CommandNode& command, Show upto) {
  std::ostringstream out;
  write_command(out, command, upto);
  for (const CommandNode* above = command.parent(); above != nullptr; above = above->parent()) {
    const std::string title = "Options of " + above->full_name();
    write_options(out, title, *above, Show::Always);
    if (upto == Show::More)
      write_options(out, "More options of " + above->full_name(), *above, Show::More);
  }
  if (upto == Show::Always) {
    out << "\n--help-all shows every option.\n";
    return std::move(out).str();
  }
  out << "\nEvery option can be set by MINFER_<OPTION> (MINFER_TEMP=0) and by a line of the file\n"
         "of --config (temp = 0, alone or under [generate]); the command line comes first, then\n"
         "the file, then the environment.\n";
  write_commands_below(out, command);
  return std::move(out).str();
}

}  // namespace minfer
