#include "tools/completions.h"

namespace minfer {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

bool takes_file(const OptionInfo& option) {
  return option.value == "FILE" || option.value == "MODEL";
}

std::string spaced_choices(const OptionInfo& option) { return replaced(option.value, "|", " "); }

// `text` inside single quotes of a shell.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// What may stand behind a command: its own options and those of every command.
std::vector<OptionInfo> options_of(const CommandNode& command) {
  std::vector<OptionInfo> found;
  for (const CommandNode* node = &command; node != nullptr; node = node->parent()) {
    for (const OptionInfo& option : node->options()) {
      if (!option.positional()) found.push_back(option);
    }
  }
  return found;
}

std::vector<std::string> command_names(const CommandNode& app) {
  std::vector<std::string> names;
  for (const CommandNode* command : app.visible_commands()) names.push_back(command->name());
  return names;
}

std::string option_names(const CommandNode& app) {
  std::vector<std::string> words;
  for (const OptionInfo& option : options_of(app)) {
    words.insert(words.end(), option.names.begin(), option.names.end());
  }
  return joined(words, " ");
}

// Commands below, and the values of a positional that is a choice.
std::string plain_words(const CommandNode& app) {
  std::vector<std::string> words = command_names(app);
  for (const OptionInfo& option : app.options()) {
    if (option.positional() && option.is_choice()) words.push_back(spaced_choices(option));
  }
  return joined(words, " ");
}

std::string bash_word_case(const CommandNode& app) {
  return "    " + app.name() + ") options='" + option_names(app) + "' plain='" + plain_words(app) +
         "' ;;\n";
}

std::string bash_value_cases(const CommandNode& app) {
  std::string cases;
  for (const OptionInfo& option : options_of(app)) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(app.name() + ":" + name);
    const std::string words = option.is_choice()   ? "-W '" + spaced_choices(option) + "'"
                              : takes_file(option) ? "-f"
                                                   : "-W ''";
    cases += "    " + joined(patterns, "|") + ") COMPREPLY=($(compgen " + words +
             " -- \"$cur\")); return ;;\n";
  }
  return cases;
}

}  // namespace

std::string bash_completion(const CommandNode& root) {
  std::string values, words = bash_word_case(root);
  for (const CommandNode* command : root.visible_commands()) {
    values += bash_value_cases(*command);
    words += bash_word_case(*command);
  }
  return "# bash completion for minfer\n"
         "_minfer() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local command=minfer word options= plain=\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case \"$word\" in\n"
         "      " +
         joined(command_names(root), "|") +
         ") command=\"$word\"; break ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$command:$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         words +
         "  esac\n"
         "  if [[ \"$cur\" == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -W \"$plain\" -- \"$cur\") $(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _minfer minfer\n";
}

std::string zsh_completion(const CommandNode& root) {
  const auto specs = [](const CommandNode& app) {
    std::string lines;
    for (const OptionInfo& option : options_of(app)) {
      std::string text = option.help;
      for (const char* c : {"[", "]", ":"}) {
        text = replaced(text, c, std::string("\\") + c);
      }
      std::string value;
      if (option.is_choice()) value = ":value:(" + spaced_choices(option) + ")";
      if (!option.is_choice() && !option.value.empty()) value = ":" + option.value + ":";
      if (takes_file(option)) value += "_files";
      for (const std::string& name : option.names) {
        lines += " \\\n        " + quoted("*" + name + "[" + text + "]" + value);
      }
    }
    return lines;
  };
  std::string commands, cases;
  for (const CommandNode* command : root.visible_commands()) {
    commands += "    " + quoted(command->name() + ":" + command->description()) + "\n";
    cases += "    " + command->name() + ")\n      _arguments" + specs(*command) +
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

std::string fish_completion(const CommandNode& root) {
  std::string text = "# fish completion for minfer\n";
  const auto add_options = [&text](const CommandNode& app, const std::string& condition) {
    for (const OptionInfo& option : app.options()) {
      if (!option.names.front().starts_with('-')) continue;
      text += "complete -c minfer -n " + quoted(condition);
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (option.is_choice()) text += " -x -a " + quoted(spaced_choices(option));
      if (!option.is_choice() && !option.value.empty()) text += takes_file(option) ? " -r" : " -x";
      text += " -d " + quoted(option.help) + "\n";
    }
  };
  for (const CommandNode* command : root.visible_commands()) {
    text += "complete -c minfer -f -n __fish_use_subcommand -a " + command->name() + " -d " +
            quoted(command->description()) + "\n";
    add_options(*command, "__fish_seen_subcommand_from " + command->name());
  }
  add_options(root, "true");
  return text;
}

}  // namespace minfer
