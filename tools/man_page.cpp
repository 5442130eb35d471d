#include <sstream>

#include "tools/completions.h"

namespace minfer {
namespace {

// Text in which roff finds no request, no escape and no minus that becomes a hyphen.
std::string roff(const std::string& text) {
  std::string out = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (char c : text) {
    if (c == '-') out += '\\';
    out += c == '\\' ? "\\e" : std::string(1, c);
  }
  return out;
}

std::string roff_options(const CommandNode& command) {
  std::string text;
  for (const OptionInfo& option : command.options()) {
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
    text += ".TP\n\\fB" + roff(names) + "\\fR";
    if (!option.value.empty()) text += " \\fI" + roff(option.value) + "\\fR";
    text += "\n" + roff(option.help) + "\n";
  }
  return text;
}

std::string roff_examples(const CommandNode& command) {
  std::string text = ".nf\n";
  std::istringstream lines(command.examples());
  for (std::string line; std::getline(lines, line);) text += roff(line) + "\n";
  return text + ".fi\n";
}

constexpr const char* kExitStatus =
    "0 done; 1 a bug in minfer; 2 usage, also a prompt past the context or no model found; 3 a "
    "file\n"
    "that is missing, malformed or not supported; 4 the system: permission, read or write error,\n"
    "disk full; 5 out of memory; 6 GPU; 8 numbers that are not finite; 129, 130, 143 ended by\n"
    "SIGHUP, SIGINT, SIGTERM; 141 the reader of stdout has gone. Every failure is one line on "
    "stderr.\n";

constexpr const char* kEnvironment =
    ".TP\n\\fBMINFER_\\fR\\fIOPTION\\fR\nThe value of any option: MINFER_TEMP=0 is "
    "\\fB\\-\\-temp 0\\fR.\n"
    ".TP\n\\fBMINFER_CPU_ISA\\fR\nbase, avx2 or avx512: forces a path of the CPU backend.\n"
    ".TP\n\\fBXDG_CACHE_HOME\\fR\nModels fetched by name are in minfer/models below it, or below\n"
    "~/.cache.\n";

}  // namespace

std::string man_page(const CommandNode& root) {
  std::string text =
      ".TH MINFER 1\n.SH NAME\nminfer \\- large language models on one machine\n.SH SYNOPSIS\n"
      "\\fBminfer\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH EXAMPLES\n" +
      roff_examples(root);
  text += ".SH COMMANDS\n";
  for (const CommandNode* command : root.all_visible_commands()) {
    text += ".SS " + command->full_name() + "\n" + roff(command->description()) + ".\n";
    if (!command->examples().empty()) text += roff_examples(*command);
    text += roff_options(*command);
  }
  text += ".SH COMMON OPTIONS\n" + roff_options(root);
  text += std::string(".SH EXIT STATUS\n") + kExitStatus + ".SH ENVIRONMENT\n" + kEnvironment;
  return text;
}

}  // namespace minfer
