#include "tools/completions.h"

#include <functional>

#include "tools/help.h"

namespace minfer {
namespace {

using CLI::detail::join;

// "f32|f16" is a choice of values; anything else names a kind of value.
bool is_choice(const OptionHelp& option) { return option.value.find('|') != std::string::npos; }

bool takes_file(const OptionHelp& option) {
  return option.value == "FILE" || option.value == "MODEL";
}

std::string spaced_choices(const OptionHelp& option) {
  return join(CLI::detail::split(option.value, '|'), " ");
}

// `text` inside single quotes of a shell.
std::string quoted(const std::string& text) {
  return "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'";
}

std::vector<OptionHelp> options_of(const CLI::App& app) {
  std::vector<OptionHelp> all = visible_options(app);
  if (app.get_parent() != nullptr) {
    for (OptionHelp& option : options_of(*app.get_parent())) {
      const bool help = option.names.back().starts_with("--help");
      if (!help && option.names.back() != "--version") all.push_back(std::move(option));
    }
  }
  std::erase_if(all,
                [](const OptionHelp& option) { return !option.names.front().starts_with('-'); });
  return all;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : visible_commands(app)) names.push_back(command->get_name());
  return names;
}

// Words that may follow: options and commands below.
std::string bash_words(const CLI::App& app) {
  std::vector<std::string> words = command_names(app);
  for (const OptionHelp& option : options_of(app)) {
    words.insert(words.end(), option.names.begin(), option.names.end());
  }
  return join(words, " ");
}

std::string bash_value_cases(const CLI::App& app) {
  std::string cases;
  for (const OptionHelp& option : options_of(app)) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(app.get_name() + ":" + name);
    const std::string words = is_choice(option)    ? "-W '" + spaced_choices(option) + "'"
                              : takes_file(option) ? "-f"
                                                   : "-W ''";
    cases += "    " + join(patterns, "|") + ") COMPREPLY=($(compgen " + words +
             " -- \"$cur\")); return ;;\n";
  }
  return cases;
}

}  // namespace

std::string bash_completion(const CLI::App& root) {
  std::string values, words = "    minfer) words='" + bash_words(root) + "' ;;\n";
  for (const CLI::App* command : visible_commands(root)) {
    values += bash_value_cases(*command);
    words += "    " + command->get_name() + ") words='" + bash_words(*command) + "' ;;\n";
  }
  return "# bash completion for minfer\n"
         "_minfer() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local command=minfer word words=\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \"$word\" in\n"
         "      " +
         join(command_names(root), "|") +
         ") command=\"$word\"; break ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command:$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         words +
         "  esac\n"
         "  if [[ \"$cur\" == -* || \"$command\" == minfer ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _minfer minfer\n";
}

std::string zsh_completion(const CLI::App& root) {
  const auto specs = [](const CLI::App& app) {
    std::string lines;
    for (const OptionHelp& option : options_of(app)) {
      std::string text = option.text;
      for (const char* c : {"[", "]", ":"}) {
        text = CLI::detail::find_and_replace(text, c, std::string("\\") + c);
      }
      std::string value;
      if (is_choice(option)) value = ":value:(" + spaced_choices(option) + ")";
      if (!is_choice(option) && !option.value.empty()) value = ":" + option.value + ":";
      if (takes_file(option)) value += "_files";
      for (const std::string& name : option.names) {
        lines += " \\\n        " + quoted("*" + name + "[" + text + "]" + value);
      }
    }
    return lines;
  };
  std::string commands, cases;
  for (const CLI::App* command : visible_commands(root)) {
    commands += "    " + quoted(command->get_name() + ":" + command->get_description()) + "\n";
    cases += "    " + command->get_name() + ")\n      _arguments" + specs(*command) +
             " \\\n        '*:file:_files' ;;\n";
  }
  return "#compdef minfer\n"
         "_minfer() {\n"
         "  local -a commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )) && [[ \"$words[2]\" != -* ]]; then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  case \"$words[2]\" in\n" +
         cases + "    *)\n      _arguments" + specs(root) +
         " ;;\n"
         "  esac\n"
         "}\n"
         "_minfer \"$@\"\n";
}

std::string fish_completion(const CLI::App& root) {
  std::string text = "# fish completion for minfer\n";
  const auto add_options = [&text](const CLI::App& app, const std::string& condition) {
    for (const OptionHelp& option : visible_options(app)) {
      if (!option.names.front().starts_with('-')) continue;
      text += "complete -c minfer -n " + quoted(condition);
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (is_choice(option)) text += " -x -a " + quoted(spaced_choices(option));
      if (!is_choice(option) && !option.value.empty()) text += takes_file(option) ? " -r" : " -x";
      text += " -d " + quoted(option.text) + "\n";
    }
  };
  for (const CLI::App* command : visible_commands(root)) {
    text += "complete -c minfer -f -n __fish_use_subcommand -a " + command->get_name() + " -d " +
            quoted(command->get_description()) + "\n";
    add_options(*command, "__fish_seen_subcommand_from " + command->get_name());
  }
  add_options(root, "true");
  return text;
}

}  // namespace minfer
