#include "tools/loading.h"

#include "tools/log.h"
#include "tools/progress.h"

namespace minfer {

std::unique_ptr<Backend> make_backend_for(const DeviceOptions& options, const std::string& path) {
  return make_backend(options, on_card(options) ? float_type_of(*open_source(path)) : DType::F16);
}

Model load_with_progress(const std::string& path, Backend& backend,
                         const std::string& tokenizer_path, bool quiet,
                         const SessionMemoryOf& session_memory) {
  Progress progress("loading", quiet);
  Model model = load_model(path, backend,
                           {.tokenizer_path = tokenizer_path,
                            .progress = progress.callback(),
                            .session_memory = session_memory});
  for (const std::string& warning : model.warnings) log_warning(warning);
  if (model.tokenizer != nullptr)
    for (const std::string& note : model.tokenizer->notes()) log_debug(note);
  return model;
}

Model load_with_tokenizer(const std::string& path, Backend& backend,
                          const std::string& tokenizer_path, bool quiet,
                          const SessionMemoryOf& session_memory) {
  return load_with_progress(path, backend, tokenizer_path, quiet, [&](const Model& model) {
    MINFER_REQUIRE(Input, model.tokenizer, shortened(path, 200),
                   ": has no tokenizer; --tokenizer FILE gives one");
    return session_memory ? session_memory(model) : SessionMemory();
  });
}

}  // namespace minfer
