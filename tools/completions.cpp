#include "tools/completions.h"

#include <functional>

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

// The words that lead to each command, as the patterns of a shell's `case`.
std::string command_patterns(const CommandNode& root) {
  std::vector<std::string> patterns;
  for (const CommandNode* command : root.all_visible_commands()) {
    patterns.push_back(quoted(command->full_name()));
  }
  return joined(patterns, "|");
}

// Shell code, the same in bash and zsh: $command becomes the command that the words before the
// cursor name, "minfer eval score".
std::string command_walk(const std::string& words, const CommandNode& root) {
  return "  for word in \"" + words +
         "\"; do\n"
         "    case \"$command $word\" in\n"
         "      " +
         command_patterns(root) +
         ") command=\"$command $word\" ;;\n"
         "    esac\n"
         "  done\n";
}

std::string bash_word_case(const CommandNode& app) {
  return "    " + quoted(app.full_name()) + ") options='" + option_names(app) + "' plain='" +
         plain_words(app) + "' ;;\n";
}

std::string bash_value_cases(const CommandNode& app) {
  std::string cases;
  for (const OptionInfo& option : options_of(app)) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names)
      patterns.push_back(quoted(app.full_name() + ":" + name));
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
  for (const CommandNode* command : root.all_visible_commands()) {
    values += bash_value_cases(*command);
    words += bash_word_case(*command);
  }
  return "# bash completion for minfer\n"
         "_minfer() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local command=minfer word options= plain=\n" +
         command_walk("${COMP_WORDS[@]:1:COMP_CWORD-1}", root) + "  case \"$command:$prev\" in\n" +
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
  const auto descriptions = [](const CommandNode& app) {
    std::vector<std::string> entries;
    for (const CommandNode* command : app.visible_commands()) {
      entries.push_back(quoted(command->name() + ":" + command->description()));
    }
    return joined(entries, "\n        ");
  };
  std::vector<const CommandNode*> nodes = root.all_visible_commands();
  nodes.push_back(&root);
  std::string cases;
  for (const CommandNode* command : nodes) {
    cases += "    " + quoted(command->full_name()) + ")\n";
    if (!command->visible_commands().empty()) {
      cases += "      commands=(\n        " + descriptions(*command) +
               "\n      )\n"
               "      [[ \"$words[CURRENT]\" == -* ]] || _describe command commands\n";
    }
    cases += "      _arguments" + specs(*command) + " \\\n        '*:file:_files' ;;\n";
  }
  return "#compdef minfer\n"
         "_minfer() {\n"
         "  local command=minfer word\n"
         "  local -a commands\n" +
         command_walk("${(@)words[2,CURRENT-1]}", root) + "  case \"$command\" in\n" + cases +
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
  // What stands on the line before a command: those above it and none beside it.
  const std::function<void(const CommandNode&, const std::string&)> add_commands =
      [&](const CommandNode& app, const std::string& seen) {
        const std::string names = joined(command_names(app), " ");
        for (const CommandNode* command : app.visible_commands()) {
          const std::string prefix = seen.empty() ? "" : seen + "; and ";
          text += "complete -c minfer -f -n " +
                  quoted(prefix + "not __fish_seen_subcommand_from " + names) + " -a " +
                  command->name() + " -d " + quoted(command->description()) + "\n";
          const std::string here = prefix + "__fish_seen_subcommand_from " + command->name();
          add_options(*command, here);
          add_commands(*command, here);
        }
      };
  add_commands(root, "");
  add_options(root, "true");
  return text;
}

}  // namespace minfer
