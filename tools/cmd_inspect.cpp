#include <filesystem>
#include <optional>

#include "loaders/sha256_sums.h"
#include "loaders/tensor_source.h"
#include "tools/commands.h"
#include "tools/device.h"
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
  const std::string path = find_model(options.model_path);
  std::optional<Checked> checked;
  if (options.check) {  // first: what is damaged is not worth a look inside
    checked.emplace();
    Progress progress("checking files", context.common.quiet);
    std::error_code ignored;  // opening it says what is wrong
    if (std::filesystem::is_directory(path, ignored)) {
      checked->n_files = check_sha256_sums(path, progress.callback());
    }
  }
  const std::unique_ptr<TensorSource> source = open_source(path);
  if (checked) checked->n_tensors = source->check_checksums();
  const Inspection inspection = inspect(*source, options.ctx, static_cast<int>(options.tp));
  if (!inspection.spec) checked.reset();
  if (checked) {
    Progress progress("checking tensors", context.common.quiet);
    check_values(*source, progress.callback());
  }
  if (context.common.json) {
    context.out.line(to_json(inspection, *source, checked));
  } else {
    context.out.text(to_text(inspection, *source, options.tensors));
    if (checked) context.out.line(to_text(*checked));
  }
  MINFER_REQUIRE(Input, inspection.spec, inspection.refusal);
}

}  // namespace

void add_inspect_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<InspectOptions>();
  CommandNode& command =
      root.add_command("inspect", "What a model file holds, how it is kept, and whether it runs",
                       "  minfer inspect smollm2\n"
                       "  minfer inspect model.gguf --ctx 8192\n"
                       "  minfer inspect model_directory --check --json",
                       [options, &context] { run_inspect(*options, context); });
  command.add_text("MODEL,-m,--model", options->model_path, "MODEL",
                   "Directory, .gguf, llama2.c .bin, or smollm2");
  command.add_flag("--check", options->check,
                   "Read everything: all there, whole, finite, checksums equal");
  command.add_flag("--tensors", options->tensors, "List every tensor");
  command.add_integer("-c,--ctx,--ctx-size", options->ctx, 0, kMaxTokens,
                      "Context for the memory figure; 0: the trained one");
  command.add_integer("--tp", options->tp, 1, 64, "Cards that share the model: the memory of each",
                      Show::More);
}

}  // namespace minfer
