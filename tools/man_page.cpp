#include "tools/completions.h"
#include "tools/help.h"

namespace minfer {
namespace {

// Text in which roff finds no request and no minus that becomes a hyphen.
std::string roff(const std::string& text) {
  std::string out = CLI::detail::find_and_replace(text, "\\", "\\e");
  out = CLI::detail::find_and_replace(out, "-", "\\-");
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string roff_options(const CLI::App& app) {
  std::string text;
  for (const OptionHelp& option : visible_options(app)) {
    text += ".TP\n\\fB" + roff(CLI::detail::join(option.names, ", ")) + "\\fR";
    if (!option.value.empty()) text += " \\fI" + roff(option.value) + "\\fR";
    text += "\n" + roff(option.text) + "\n";
  }
  return text;
}

std::string roff_examples(const CLI::App& app) {
  std::string text = ".nf\n";
  for (const std::string& line : CLI::detail::split(app.get_footer(), '\n'))
    text += roff(line) + "\n";
  return text + ".fi\n";
}

constexpr const char* kExitStatus =
    "0 done; 1 a bug in minfer; 2 usage, also a prompt past the context or no model found; 3 a "
    "file\n"
    "that is missing, malformed or not supported; 4 the system: permission, read or write error,\n"
    "disk full; 5 out of memory; 6 GPU; 8 numbers that are not finite; 130, 143 ended by SIGINT,\n"
    "SIGTERM; 141 the reader of stdout has gone. Every failure is one line on stderr.\n";

constexpr const char* kEnvironment =
    ".TP\n\\fBMINFER_\\fR\\fIOPTION\\fR\nThe value of any option: MINFER_TEMP=0 is "
    "\\fB\\-\\-temp 0\\fR.\n"
    ".TP\n\\fBMINFER_CPU_ISA\\fR\nbase, avx2 or avx512: forces a path of the CPU backend.\n"
    ".TP\n\\fBXDG_CACHE_HOME\\fR\nModels fetched by name are in minfer/models below it, or below\n"
    "~/.cache.\n";

}  // namespace

std::string man_page(const CLI::App& root) {
  std::string text =
      ".TH MINFER 1\n.SH NAME\nminfer \\- large language models on one machine\n.SH SYNOPSIS\n"
      "\\fBminfer\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH EXAMPLES\n" +
      roff_examples(root);
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : visible_commands(root)) {
    text += ".SS minfer " + command->get_name() + "\n" + roff(command->get_description()) + ".\n";
    if (!command->get_footer().empty()) text += roff_examples(*command);
    text += roff_options(*command);
  }
  text += ".SH COMMON OPTIONS\n" + roff_options(root);
  text += std::string(".SH EXIT STATUS\n") + kExitStatus + ".SH ENVIRONMENT\n" + kEnvironment;
  return text;
}

}  // namespace minfer
