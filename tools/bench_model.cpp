#include "tools/bench_model.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "models/synthetic.h"
#include "tools/loading.h"
#include "tools/model_path.h"
#include "tools/mpi_ranks.h"

namespace minfer {
namespace {

// Tokens of context that the largest of the tests fills.
int64_t needed_context(const BenchOptions& options) {
  return std::ranges::max(options.n_depth) +
         std::max(std::ranges::max(options.n_prompt),
                  std::ranges::max(options.n_gen) + std::ranges::max(options.n_draft));
}

}  // namespace

std::vector<BenchSubject> bench_subjects(const BenchOptions& options) {
  std::vector<BenchSubject> subjects;
  for (const std::string& path : options.model_paths)
    subjects.push_back({find_model(path), "", {}});
  for (const std::string& name : options.synthetics) subjects.push_back({"", name, {}});
  if (subjects.empty()) subjects.push_back({find_model(""), "", {}});
  return subjects;
}

SessionOptions bench_session_options(const BenchOptions& options, const ModelSpec& spec) {
  const int64_t needed = needed_context(options);
  MINFER_REQUIRE(Usage, needed <= spec.trained_seq_len, "depth and tests need ", needed,
                 " tokens of context, the model was trained on ", spec.trained_seq_len);
  return {.max_seq_len = needed,
          .prefill_chunk = options.batch_size,
          .kv_dtype = kv_dtype_by_name(options.kv_type, options.device),
          .n_sequences = std::ranges::max(options.n_parallel),
          .n_draft_tokens = std::ranges::max(options.n_draft)};
}

LoadedModel load_bench_model(const BenchOptions& options, BenchSubject& subject,
                             const Context& context) {
  LoadedModel loaded;
  const auto memory_of_session = [&](const OpenedModel& opened) {
    SessionMemory memory =
        session_memory(opened, *loaded.backend, bench_session_options(options, opened.model.spec));
    memory.context_option = "tests (-d with -p or -n) of at most";
    return memory;
  };
  if (!subject.synthetic.empty()) {
    const std::string& name = subject.synthetic;
    loaded.backend =
        make_backend(options.device, name.ends_with(":bf16") ? DType::BF16 : DType::F16);
    const int64_t n_context = needed_context(options);
    const OpenedModel planned = open_synthetic(name, loaded.backend->n_ranks(), n_context);
    meet_processes();  // each looks for memory before another takes any
    loaded.model = make_synthetic_model(name, *loaded.backend, /*seed=*/1, n_context,
                                        memory_of_session(planned));
    loaded.model.bytes_per_token = sum_of_processes(loaded.model.bytes_per_token);
    return loaded;
  }
  OpenedModel& opened = subject.opened;
  loaded.backend = make_backend_for(options.device, opened);
  const SessionMemory memory = memory_of_session(opened);
  loaded.model =
      load_with_progress(std::move(opened), *loaded.backend, memory, context.common.quiet);
  return loaded;
}

void let_card_rest() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }

std::vector<TokenId> bench_tokens(int64_t n, int64_t vocab_size) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(narrow<TokenId>((i * 7919 + 1) % vocab_size));
  return ids;
}

}  // namespace minfer
