#include <memory>

#include "tools/commands.h"
#include "tools/completions.h"

namespace minfer {

void add_completions_command(CommandNode& root, Context& context) {
  auto shell = std::make_shared<std::string>("bash");
  CommandNode& command = root.add_command(
      "completions", "Completion script of a shell",
      "  minfer completions bash > ~/.local/share/bash-completion/completions/minfer",
      [shell, &root, &context] {
        context.out.text(*shell == "bash"  ? bash_completion(root)
                         : *shell == "zsh" ? zsh_completion(root)
                                           : fish_completion(root));
      });
  command.add_choice("SHELL", *shell, {"bash", "zsh", "fish"}, "bash, zsh or fish");
}

// Without a description: for the build, not for people.
void add_man_command(CommandNode& root, Context& context) {
  root.add_command("man", "", "", [&root, &context] { context.out.text(man_page(root)); });
}

}  // namespace minfer
