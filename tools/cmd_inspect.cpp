#include <nlohmann/json.hpp>

#include "loaders/tensor_source.h"
#include "tools/commands.h"
#include "tools/inspection.h"
#include "tools/model_path.h"
#include "tools/progress.h"

namespace minfer {
namespace {

struct InspectOptions {
  std::string model_path;
  bool check = false, tensors = false;
  int64_t ctx = 0;
  int64_t tp = 1;
};

void run_inspect(const InspectOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, options.tp == 1, "--tp ", options.tp,
                 ": this build runs on one rank; --tp 1 runs here");
  const std::unique_ptr<TensorSource> source = open_source(find_model(options.model_path));
  const Inspection inspection = inspect(*source, options.ctx);
  if (options.check && inspection.config) {
    Progress progress("checking", context.common.quiet);
    check_values(*source, progress.callback());
  }
  if (context.common.json) {
    nlohmann::ordered_json object = to_json(inspection, *source);
    object["checked"] = options.check && inspection.config;
    context.out.json(object);
  } else {
    context.out.text(to_text(inspection, *source, options.tensors));
    if (options.check && inspection.config) {
      context.out.line("check          every tensor is there, whole and finite");
    }
  }
  MINFER_REQUIRE(Input, inspection.config, inspection.refusal);
}

}  // namespace

Command add_inspect_command(CLI::App& root, Context& context) {
  CLI::App* app = root.add_subcommand("inspect", "What a model file holds, and whether it runs");
  app->fallthrough();
  app->footer(
      "  minfer inspect smollm2\n"
      "  minfer inspect model.gguf --ctx 8192\n"
      "  minfer inspect model_directory --check --json");
  auto options = std::make_shared<InspectOptions>();
  add_text(*app, "MODEL,-m,--model", options->model_path, "MODEL",
           "Directory, .gguf, llama2.c .bin, or smollm2");
  app->add_flag("--check", options->check, "Read everything: all there, whole and finite");
  app->add_flag("--tensors", options->tensors, "List every tensor");
  add_integer(*app, "-c,--ctx,--ctx-size", options->ctx, 0, int64_t{1} << 31,
              "Context for the memory figure; 0: the trained one");
  add_integer(*app, "--tp", options->tp, 1, 64, "Ranks that share the model")->group(kMoreOptions);
  return {app, [options, &context] { run_inspect(*options, context); }};
}

}  // namespace minfer
