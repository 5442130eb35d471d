#include <algorithm>

#include "engine/session.h"
#include "tools/bench_model.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/statistics.h"
#include "tools/step_report.h"

namespace minfer {
namespace {

// Refuses what has no persistent kernel whatever the model, and what is not one model at one depth.
void check_options(const BenchOptions& options) {
  MINFER_REQUIRE(Usage, on_card(options.device),
                 "bench step: the kernel that it profiles runs on a card (--device cuda)");
  MINFER_REQUIRE(Usage, rank_count(options.device) == 1,
                 "bench step: profiles the kernel of one card, without --tp");
  MINFER_REQUIRE(Usage, options.n_depth.size() == 1 && options.n_gen.size() == 1,
                 "bench step: takes one depth (-d) and one number of tokens (-n)");
  MINFER_REQUIRE(Usage, options.n_gen.front() > 0, "bench step: -n 0 decodes nothing");
}

// Decodes n_gen tokens behind the depth, as often as the repetitions say and once before, each time
// from rest, since the profile has the clocks of all. Returns the median of a step's seconds.
double time_steps(Session& session, const BenchOptions& options) {
  const int64_t n_depth = options.n_depth.front(), n_gen = options.n_gen.front();
  const int64_t vocab_size = session.model().spec.vocab_size;
  std::vector<double> samples;
  for (int64_t i = 0; i <= options.repetitions; ++i) {
    session.truncate(std::min(session.pos(), n_depth));
    if (session.pos() < n_depth) session.eval(bench_tokens(n_depth - session.pos(), vocab_size));
    let_card_rest();
    const double start = now_seconds();
    auto run = session.run_from(1, n_gen, {.n_tokens = vocab_size, .banned = {}});
    MINFER_CHECK(run, "a plan with a profile that cannot choose tokens");
    for (int64_t k = 0; k < n_gen; ++k) {
      throw_if_interrupted();
      run->next();
    }
    if (i > 0) samples.push_back((now_seconds() - start) / double(n_gen));
  }
  return percentile(samples, 0.5);
}

void run_step(BenchOptions options, Context& context) {
  check_options(options);
  options.n_prompt = options.n_draft = {0};
  options.n_parallel = {1};
  std::vector<BenchSubject> subjects = bench_subjects(options);
  MINFER_REQUIRE(Usage, subjects.size() == 1, "bench step: takes one model");
  BenchSubject& subject = subjects.front();
  if (subject.synthetic.empty()) subject.opened = open_model(subject.path);
  make_backend(options.device);  // refuses what this build does not have

  const auto [backend, model] = load_bench_model(options, subject, context);
  Session session(model, *backend, bench_session_options(options, model.spec));
  DecodePlan* const plan = session.executor().decode_plan();
  MINFER_REQUIRE(Usage, plan != nullptr && plan->start_profile(), "bench step: ", model.description,
                 " does not decode by the persistent kernel, the only one that is profiled");
  StepMeasurement measured{.model = model.description,
                           .backend = backend->name_of_ranks(),
                           .kv_type = options.kv_type,
                           .n_depth = options.n_depth.front(),
                           .n_gen = options.n_gen.front(),
                           .profiled_step_s = time_steps(session, options),
                           .profile = {}};
  measured.profile = plan->end_profile();
  measured.step_s = time_steps(session, options);
  if (context.common.json) return context.out.line(step_json(measured));
  context.out.text(step_text(measured));
}

}  // namespace

void add_bench_step_command(CommandNode& bench, std::shared_ptr<const BenchOptions> options,
                            Context& context) {
  bench.add_command("step", "Where the clocks of a decode step go on a card, phase by phase",
                    "  minfer bench step --synthetic llama-2-7b:int4 -d 128 -n 64\n"
                    "  minfer bench step -m model-int4-g64 -d 4096 --json",
                    [options = std::move(options), &context] { run_step(*options, context); });
}

}  // namespace minfer
