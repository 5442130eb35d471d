#include "kernels/base/error.h"
#include "tools/commands.h"

namespace minfer {

void add_eval_command(CommandNode& root, Context& context) {
  CommandNode& command =
      root.add_command("eval", "Perplexity of a text, log-likelihoods of continuations",
                       "  minfer eval perplexity -m smollm2 --windows 8\n"
                       "  minfer eval score -m smollm2 --input questions.jsonl",
                       [] { throw Error(ErrorKind::Usage, "eval: what? perplexity or score"); });
  add_eval_perplexity_command(command, context);
  add_eval_score_command(command, context);
}

}  // namespace minfer
