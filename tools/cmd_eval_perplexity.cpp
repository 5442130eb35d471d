#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/perplexity.h"
#include "loaders/checksum.h"
#include "loaders/file.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/generate_report.h"
#include "tools/loading.h"
#include "tools/model_path.h"
#include "tools/mpi_ranks.h"
#include "tools/perplexity_report.h"
#include "tools/progress.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

constexpr const char* kWikitext2 = "wikitext2";
// Of wiki.test.raw of wikitext-2-raw-v1.
constexpr const char* kWikitext2Sha256 =
    "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08";

struct PerplexityCommandOptions {
  std::vector<std::string> model_paths;  // empty: the default model
  std::string tokenizer_path, against_path;
  std::string text = kWikitext2;
  std::string convention;  // empty: gptq, llamacpp for a .gguf
  int64_t ctx = 0;         // 0: the convention's
  std::optional<int64_t> stride;
  int64_t n_windows = 0;  // 0: all
  bool raw_text = false;
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16";
  DeviceOptions device;
};

std::string read_evaluation_text(const std::string& name) {
  if (name != kWikitext2) return read_text(name);
  const std::string path = cache_dir() + "/data/wiki.test.raw";
  MINFER_REQUIRE(Input, !is_first_process() || path_exists(path), shortened(path, 200),
                 " is not there; ", shortened(script_path("get_wikitext2.sh"), 500), " fetches it");
  std::string text = read_text(path);
  const std::string found = sha256_hex(text);
  MINFER_REQUIRE(Input, found == kWikitext2Sha256, shortened(path, 200), ": SHA-256 ", found,
                 ", expected ", kWikitext2Sha256);
  return text;
}

Convention choose_convention(const PerplexityCommandOptions& options, const std::string& model) {
  if (!options.convention.empty()) return convention_by_name(options.convention);
  return model.ends_with(".gguf") ? Convention::LlamaCpp : Convention::Gptq;
}

// The context that is asked for, or else the convention's as far as the model was trained.
void settle_ctx(PerplexityReport& report, int64_t asked, int64_t trained) {
  MINFER_REQUIRE(Usage, asked <= trained, "--ctx ", asked, " is past the trained context of ",
                 trained, " tokens");
  const int64_t usual = default_ctx(report.scoring.convention);
  report.trained_ctx = asked == 0 && usual > trained;
  report.scoring.ctx = asked > 0 ? asked : usual > 0 ? std::min(usual, trained) : trained;
}

struct EvaluatedModel {
  std::string path;
  OpenedModel opened;  // until its weights are loaded
  ScoringPlan plan;
  Model model;
  std::unique_ptr<Session> session;
};

class PerplexityRun {
 public:
  PerplexityRun(const PerplexityCommandOptions& options, const Context& context)
      : options_(options),
        quiet_(context.common.quiet),
        kv_dtype_(kv_dtype_by_name(options.kv_type, options.device)),
        backend_(make_backend(options.device)),
        text_(read_evaluation_text(options.text)) {
    for (const std::string& path : options.model_paths) open(models_.emplace_back(), path);
    if (models_.empty()) open(models_.emplace_back(), "");
    if (!options.against_path.empty()) open(reference_.emplace(), options.against_path);
    settle_report();
    for (EvaluatedModel& model : models_) load(model, *backend_);
    if (!reference_) return;
    DeviceOptions device = options.device;
    device.activations = "float";
    reference_backend_ = make_backend(device);
    load(*reference_, *reference_backend_);
  }

  // One for each model.
  std::vector<PerplexityReport> run() {
    report_.plan = std::move(models_.front().plan);
    report_.n_windows_in_all = std::ssize(report_.plan.windows);
    report_.plan.windows.resize(n_evaluated_windows(report_.plan));
    return evaluate();
  }

 private:
  // What is the same for all models, by their headers.
  void settle_report() {
    report_.kv_type = options_.kv_type;
    report_.activations = options_.device.activations;
    report_.text_sha256 = sha256_hex(text_);
    report_.scoring.convention = choose_convention(options_, models_.front().path);
    MINFER_REQUIRE(Usage, !options_.stride || report_.scoring.convention == Convention::HfStride,
                   "--stride goes with --convention hf-stride");
    report_.scoring.stride = options_.stride.value_or(report_.scoring.stride);
    report_.scoring.raw_text = options_.raw_text;
    int64_t trained = kMaxTokens;
    const auto look_at = [&](const EvaluatedModel& model) {
      trained = std::min(trained, model.opened.model.spec.trained_seq_len);
    };
    for (const EvaluatedModel& model : models_) look_at(model);
    if (reference_) {
      look_at(*reference_);
      report_.against = reference_->path;
    }
    settle_ctx(report_, options_.ctx, trained);
  }

  void open(EvaluatedModel& evaluated, const std::string& path) const {
    evaluated.path = find_model(path);
    evaluated.opened = open_with_tokenizer(evaluated.path, options_.tokenizer_path);
  }

  // The text becomes tokens before the weights are read: their session's memory goes by them.
  void load(EvaluatedModel& evaluated, Backend& backend) {
    OpenedModel& opened = evaluated.opened;
    evaluated.plan = plan_scoring(text_, *opened.model.tokenizer, report_.scoring);
    require_same_tokens(models_.front(), evaluated);
    const SessionOptions session_options = {.max_seq_len = report_.scoring.ctx,
                                            .prefill_chunk = pass_tokens(evaluated.plan, backend),
                                            .kv_dtype = kv_dtype_,
                                            .several_sequences = true,
                                            .all_logits = true};
    cut_for_ranks(opened, backend.n_ranks());
    SessionMemory memory = session_memory(opened, backend, session_options);
    memory.context_option = "--ctx";
    evaluated.model = load_with_progress(std::move(opened), backend, memory, quiet_);
    evaluated.session = std::make_unique<Session>(evaluated.model, backend, session_options);
    log_info(load_line(evaluated.session->executor(), session_options));
  }

  // No pass has more than all that is evaluated.
  int64_t pass_tokens(const ScoringPlan& plan, const Backend& backend) const {
    int64_t n_tokens = 0;
    for (size_t i = 0; i < n_evaluated_windows(plan); ++i) {
      n_tokens += std::ssize(plan.windows[i].tokens) - 1;
    }
    const int64_t asked = options_.batch_size;
    return std::min(asked > 0 ? asked : backend.preferred_chunk(), n_tokens);
  }

  size_t n_evaluated_windows(const ScoringPlan& plan) const {
    const size_t n = plan.windows.size();
    return options_.n_windows > 0 ? std::min(n, size_t(options_.n_windows)) : n;
  }

  void require_same_tokens(const EvaluatedModel& model, const EvaluatedModel& other) const {
    const bool same = std::ranges::equal(model.plan.windows, other.plan.windows, {},
                                         &ScoringWindow::tokens, &ScoringWindow::tokens);
    MINFER_REQUIRE(Input, same, shortened(other.path, 200),
                   ": makes other tokens of the text than ", shortened(model.path, 200),
                   "; --tokenizer FILE gives all the same one");
  }

  std::vector<PerplexityReport> evaluate() {
    std::vector<Session*> sessions;
    for (const EvaluatedModel& evaluated : models_) sessions.push_back(evaluated.session.get());
    Progress progress("perplexity", quiet_);
    const double started = now_seconds();
    const std::vector<Perplexity> results = evaluate_perplexity(
        report_.plan.windows, sessions, reference_ ? reference_->session.get() : nullptr,
        {.n_threads = threads_of_process(options_.device),
         .progress = [&](int64_t done, int64_t total, double perplexity) {
           progress.update(done, total, fmt::format("{:.4f}", perplexity));
         }});
    report_.seconds = now_seconds() - started;
    std::vector<PerplexityReport> reports(models_.size(), report_);
    for (size_t i = 0; i < models_.size(); ++i) {
      reports[i].model = models_[i].path;
      reports[i].result = results[i];
      require_finite(reports[i]);
    }
    return reports;
  }

  const PerplexityCommandOptions& options_;
  bool quiet_;
  DType kv_dtype_;
  // The reference always has float activations: what --activations costs is part of the difference.
  std::unique_ptr<Backend> backend_, reference_backend_;
  std::string text_;
  PerplexityReport report_;            // but for the results
  std::deque<EvaluatedModel> models_;  // which stay where they are: sessions refer to them
  std::optional<EvaluatedModel> reference_;
};

void run_eval_perplexity(const PerplexityCommandOptions& options, Context& context) {
  join_mpi_ranks(options.device, context);
  const std::vector<PerplexityReport> reports = PerplexityRun(options, context).run();
  if (context.common.json) return context.out.line(perplexity_json(reports));
  context.out.text(perplexity_text(reports));
}

}  // namespace

void add_eval_perplexity_command(CommandNode& eval, Context& context) {
  auto options = std::make_shared<PerplexityCommandOptions>();
  CommandNode& command =
      eval.add_command("perplexity", "Perplexity of a text, with the recipe that made it",
                       "  minfer eval perplexity -m smollm2 --windows 8\n"
                       "  minfer eval perplexity -m DIRECTORY --convention gptq --ctx 4096\n"
                       "  minfer eval perplexity -m model-int4 --against model --json\n"
                       "  minfer eval perplexity -m model.gguf --text book.txt",
                       [options, &context] { run_eval_perplexity(*options, context); });
  command.add_repeatable("-m,--model", options->model_paths, "MODEL",
                         "Directory, .gguf, llama2.c .bin, or smollm2; repeatable: in one pass");
  command.add_text("--tokenizer", options->tokenizer_path, "FILE", "Tokenizer of a llama2.c model");
  command.add_text("--text", options->text, "FILE",
                   "Text to evaluate; wikitext2: what scripts/get_wikitext2.sh has fetched");
  command.add_choice("--convention", options->convention,
                     {"gptq", "llamacpp", "hf-stride", "lm-eval"},
                     "Text form, windows and what is scored; default gptq, llamacpp for a .gguf");
  command.add_text("--against", options->against_path, "MODEL",
                   "Paired difference, KL divergence and same top tokens beside this model");
  command.add_integer("-c,--ctx,--ctx-size", options->ctx, 0, kMaxTokens,
                      "Tokens in a window; 0: the convention's, within the trained context");
  command.add_integer("--stride", options->stride, 1, kMaxTokens,
                      "Tokens between windows of hf-stride [512]");
  command.add_integer("--windows", options->n_windows, 0, kMaxTokens,
                      "Only the first N windows; 0: all");
  command.add_flag("--raw-text", options->raw_text,
                   "The file as it is where the convention would join its lines");
  command.add_integer("-b,--batch-size", options->batch_size, 0, 1 << 20,
                      "Tokens in one pass: a part of a window, or several whole ones", Show::More);
  add_kv_type_option(command, options->kv_type);
  add_device_options(command, options->device);
  command.need({"--stride"}, {"--convention=hf-stride"});
}

}  // namespace minfer
