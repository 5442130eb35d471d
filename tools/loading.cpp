#include "tools/loading.h"

#include <utility>

#include "models/model_identity.h"
#include "tools/log.h"
#include "tools/mpi_ranks.h"
#include "tools/progress.h"

namespace minfer {

OpenedModel open_with_tokenizer(const std::string& path, const std::string& tokenizer_path) {
  OpenedModel opened = open_model(path, tokenizer_path);
  MINFER_REQUIRE(Input, opened.model.tokenizer, shortened(path, 200),
                 ": has no tokenizer; --tokenizer FILE gives one");
  return opened;
}

std::unique_ptr<Backend> make_backend_for(const DeviceOptions& options, OpenedModel& opened) {
  cut_for_ranks(opened, rank_count(options));
  return make_backend(options, on_card(options) ? float_type_of(*opened.source) : DType::F16);
}

Model load_with_progress(OpenedModel opened, Backend& backend, const SessionMemory& session,
                         bool quiet) {
  if (mpi_process() != nullptr) require_same_on_all_ranks("the model", identity_of(opened));
  meet_processes();  // each looks for memory before another takes any
  Progress progress("loading", quiet);
  Model model = load_weights(std::move(opened), backend,
                             {.progress = progress.callback(), .session = session});
  model.bytes_per_token = sum_of_processes(model.bytes_per_token);
  for (const std::string& warning : model.warnings) log_warning(warning);
  if (model.tokenizer != nullptr)
    for (const std::string& note : model.tokenizer->notes()) log_debug(note);
  return model;
}

}  // namespace minfer
