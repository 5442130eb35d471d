#include "tools/help.h"

#include <algorithm>
#include <sstream>

#include "tools/options.h"

namespace minfer {
namespace {

constexpr size_t kTextColumn = 34;

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

void write_entry(std::ostream& out, const std::string& left, const std::string& text) {
  out << "  " << left;
  const size_t used = left.size() + 2;
  out << (used < kTextColumn ? std::string(kTextColumn - used, ' ')
                             : "\n" + std::string(kTextColumn, ' '));
  out << text << '\n';
}

void write_options(std::ostream& out, const std::string& title, const CLI::App& app, bool more) {
  bool first = true;
  for (const OptionHelp& option : visible_options(app)) {
    if (option.more != more) continue;
    if (first) out << '\n' << title << ":\n";
    first = false;
    std::string left = CLI::detail::join(option.names, ", ");
    if (!option.value.empty()) left += " " + option.value;
    write_entry(out, left, option.text);
  }
}

std::string usage_line(const CLI::App& app) {
  std::string line = full_name(app) + " [OPTIONS]";
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) line += " [" + option->get_name(true) + "]";
  }
  if (!visible_commands(app).empty()) {
    line += app.get_require_subcommand_min() > 0 ? " COMMAND" : " [COMMAND]";
  }
  return line;
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const override {
    const bool all = mode == CLI::AppFormatMode::All;
    const CLI::App* parent = app->get_parent();
    std::ostringstream out;
    out << app->get_description() << "\n\n";
    if (!app->get_footer().empty()) out << "Examples:\n" << app->get_footer() << "\n\n";
    out << "Usage: " << usage_line(*app) << '\n';
    for (const CLI::App* command : visible_commands(*app)) {
      if (command == visible_commands(*app).front()) out << "\nCommands:\n";
      write_entry(out, command->get_name(), command->get_description());
    }
    write_options(out, "Options", *app, false);
    if (all) write_options(out, kMoreOptions, *app, true);
    while (parent != nullptr) {
      write_options(out, "Options of every command", *parent, false);
      if (all) write_options(out, "More options of every command", *parent, true);
      parent = parent->get_parent();
    }
    if (!all) return out.str() + "\n--help-all shows every option.\n";
    out << "\nEvery option can be set by MINFER_<OPTION> (MINFER_TEMP=0) and by a line of the "
           "file\n"
           "of --config (temp = 0, alone or under [generate]); the command line comes first, then\n"
           "the file, then the environment.\n";
    for (const CLI::App* command : visible_commands(*app)) {
      out << '\n' << std::string(72, '-') << '\n' << make_help(command, "", mode);
    }
    return out.str();
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_formatter() {
  return std::make_shared<HelpFormatter>();
}

std::vector<OptionHelp> visible_options(const CLI::App& app) {
  std::vector<OptionHelp> found;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    OptionHelp entry;
    for (const std::string& name : option->get_snames()) entry.names.push_back("-" + name);
    if (!option->get_lnames().empty()) entry.names.push_back("--" + option->get_lnames().front());
    if (option->get_positional()) entry.names.push_back(option->get_name(true));
    if (option->get_type_size() != 0 && option->nonpositional()) {
      entry.value = option->get_type_name();
    }
    entry.text = option->get_description();
    if (!option->get_default_str().empty()) entry.text += " [" + option->get_default_str() + "]";
    entry.more = option->get_group() == kMoreOptions;
    found.push_back(std::move(entry));
  }
  return found;
}

std::vector<const CLI::App*> visible_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

}  // namespace minfer
