#include "tools/loading.h"

#include "tools/log.h"
#include "tools/progress.h"

namespace minfer {

Model load_with_progress(const std::string& path, Backend& backend,
                         const std::string& tokenizer_path, bool quiet) {
  Progress progress("loading", quiet);
  Model model = load_model(path, backend,
                           {.tokenizer_path = tokenizer_path, .progress = progress.callback()});
  for (const std::string& warning : model.warnings) log_warning(warning);
  return model;
}

}  // namespace minfer
