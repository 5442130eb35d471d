// generate --prompts: many prompts, some of them at a time.

#include <algorithm>

#include "engine/generate_many.h"
#include "tools/generate_command.h"
#include "tools/generate_report.h"
#include "tools/id_tokenizer.h"
#include "tools/loading.h"
#include "tools/log.h"
#include "tools/model_path.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/prompt_lines.h"

namespace minfer {
namespace {

// What a sequence needs at most.
int64_t longest(const GenerateCommandOptions& options, const ModelSpec& spec,
                const std::vector<PromptLine>& lines) {
  int64_t most = 1;
  for (const PromptLine& line : lines) {
    if (!line.error.empty()) continue;
    most = std::max(most, needed_positions(options, spec, std::ssize(line.request.prompt),
                                           line.request.options.n_predict));
  }
  return most;
}

// Prints what becomes of each line, and counts.
class LineReport {
 public:
  LineReport(const GenerateCommandOptions& options, Context& context, const Model& model,
             const StartTimes& start, size_t n_lines)
      : options_(options),
        context_(context),
        model_(model),
        start_(start),
        total_(int64_t(n_lines)),
        progress_("generating", context.common.quiet) {}

  void result(const PromptLine& line, const GenerateResult& result) {
    const ResultReport report{result,
                              start_,
                              model_,
                              line.seed,
                              options_.device.activations,
                              line.request.options.n_logprobs > 0,
                              std::nullopt};
    n_tokens_ += std::ssize(result.tokens);
    print(line_json(report, line.id));
  }
  void error(const PromptLine& line, const std::string& what) {
    ++n_failed_;
    print(error_json(line.id, what));
  }

  int64_t n_failed() const { return n_failed_; }
  int64_t n_tokens() const { return n_tokens_; }

 private:
  void print(const std::string& object) {
    progress_.clear();
    context_.out.line(object);
    progress_.show(++n_done_, total_);  // an interrupted run reports all that it has begun
  }

  const GenerateCommandOptions& options_;
  Context& context_;
  const Model& model_;
  const StartTimes& start_;
  int64_t total_, n_done_ = 0, n_failed_ = 0, n_tokens_ = 0;
  Progress progress_;
};

}  // namespace

void run_generate_prompts(const GenerateCommandOptions& options, Context& context) {
  constexpr int64_t kDefaultParallel = 8;
  const GenerateOptions defaults = parsed_generate_options(
      options, options.is_chat() && !options.n_predict ? -1 : kDefaultPredict);
  const std::string path = find_model(options.model_path);
  OpenedModel opened = open_model(path, options.tokenizer_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, opened);
  StartTimes start{.seconds = now_seconds() - context.started - opened.seconds};
  const std::string text = read_text(*options.prompts);
  const double loading = now_seconds() - opened.seconds;
  const std::vector<PromptLine> lines = parse_prompt_lines(text, options, defaults, opened.model);
  if (std::ranges::any_of(lines, &PromptLine::is_text)) {
    tell_of_chat_template(options, *opened.model.tokenizer);
  }
  if (!opened.model.tokenizer) {  // it answers in ids
    opened.model.tokenizer = make_id_tokenizer(opened.model.spec.vocab_size);
  }
  std::vector<const PromptLine*> asked;  // those that can be
  for (const PromptLine& line : lines) {
    if (line.error.empty()) asked.push_back(&line);
  }
  const int64_t n_parallel =
      std::clamp<int64_t>(std::ssize(asked), 1, options.n_parallel.value_or(kDefaultParallel));
  const SessionOptions session_options = {
      .max_seq_len = longest(options, opened.model.spec, lines),
      .prefill_chunk = options.batch_size,
      .kv_dtype = kv_dtype_by_name(options.kv_type, options.device),
      .n_sequences = n_parallel};
  SessionMemory memory = session_memory(opened, *backend, session_options);
  memory.context_option = "--ctx-size or --parallel";
  const Model model = load_with_progress(std::move(opened), *backend, memory, context.common.quiet);
  Executor executor(model, *backend, session_options);
  log_info(load_line(executor, session_options));
  start.loaded_seconds = start.seconds + now_seconds() - loading;

  LineReport report(options, context, model, start, lines.size());
  for (const PromptLine& line : lines) {
    if (!line.error.empty()) report.error(line, line.error);
  }
  const double began = now_seconds();
  size_t n_begun = 0;
  generate_many(
      executor,
      {.n_parallel = n_parallel,
       .interrupted = &interrupt_flag(),
       .next = [&]() -> std::optional<GenerateRequest> {
         if (n_begun == asked.size()) return std::nullopt;
         return asked[n_begun++]->request;
       },
       .on_result = [&](size_t i, const GenerateResult& r) { report.result(*asked[i], r); },
       .on_error =
           [&](size_t i, const Error& error) {
             report.error(*asked[i], cat("line ", asked[i]->number, ": ", error.what()));
           }});
  log_info(texts_line(n_begun, report.n_tokens(), now_seconds() - began));
  throw_if_interrupted();
  MINFER_REQUIRE(Input, report.n_failed() == 0, shortened(*options.prompts, 200), ": ",
                 report.n_failed(), " of ", lines.size(), " lines could not be answered");
}

}  // namespace minfer
