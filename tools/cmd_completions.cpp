#include "tools/commands.h"
#include "tools/completions.h"

namespace minfer {

Command add_completions_command(CLI::App& root, Context& context) {
  CLI::App* app = root.add_subcommand("completions", "Completion script of a shell");
  app->fallthrough();
  app->footer("  minfer completions bash > ~/.local/share/bash-completion/completions/minfer");
  auto shell = std::make_shared<std::string>();
  add_choice(*app, "SHELL", *shell, {"bash", "zsh", "fish"}, "bash, zsh or fish")->required();
  return {app, [shell, &root, &context] {
            context.out.text(*shell == "bash"  ? bash_completion(root)
                             : *shell == "zsh" ? zsh_completion(root)
                                               : fish_completion(root));
          }};
}

Command add_man_command(CLI::App& root, Context& context) {
  CLI::App* app = root.add_subcommand("man", "The manual page, in roff");
  app->fallthrough();
  app->group("");  // for the build, not for people
  return {app, [&root, &context] { context.out.text(man_page(root)); }};
}

}  // namespace minfer
