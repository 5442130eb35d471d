#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <regex>

#include "engine/draft_decoder.h"
#include "engine/session.h"
#include "models/synthetic.h"
#include "tools/bench_model.h"
#include "tools/bench_report.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/kernel_report.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

double flops_of_all_ranks(const Model& model, int64_t n, int64_t n_depth, bool with_logits) {
  double flops = flops_per_token(model.spec, n, n_depth, with_logits);
  for (const Model& rank : model.other_ranks) {
    flops += flops_per_token(rank.spec, n, n_depth, with_logits);
  }
  return static_cast<double>(sum_of_processes(static_cast<int64_t>(flops)));
}

// How tokens are chosen where the backend chooses.
DecodeSampling greedy(const Model& model) {
  return {.n_tokens = model.spec.vocab_size, .banned = {}};
}

// Bytes of the cache that one pass over n_rows of n tokens behind n_depth reads, on average. With a
// window, each row reads one window, and the rows' windows lie side by side.
int64_t kv_bytes_of_pass(const Executor& executor, int64_t n, int64_t n_depth, int64_t n_rows) {
  const std::vector<LayerSpec>& layers = executor.model().spec.layers;
  const double n_held = double(executor.n_pages() * kPagePositions);
  double n_bytes = 0;
  for (int64_t i = 0; i < std::ssize(layers); ++i) {
    const int64_t window = layers[size_t(i)].window;
    const int64_t most = window == 0 ? 0 : window + n_rows - 1;
    n_bytes += double(executor.kv_bytes_of(i)) / n_held * mean_positions_seen(n, n_depth, most);
  }
  return sum_of_processes(static_cast<int64_t>(n_bytes));
}

// Calls run(row.n_gen, &row) once for each repetition, behind an untimed run(n, nullptr) of a few
// tokens, which also captures graphs; then row.first_token_s is a mean. A card rests before each
// repetition that decodes: what is measured is an answer that an idle card gives, and a long one
// has the card's lower clock in it.
template <typename F>
void repeat(const BenchOptions& options, BenchRow& row, F run) {
  const bool warms_up = !options.no_warmup;
  const bool rests = warms_up && row.n_gen > 0 && on_card(options.device);
  if (warms_up) run(std::min<int64_t>(row.n_gen, 4), nullptr);
  for (int64_t r = 0; r < options.repetitions; ++r) {
    if (rests) let_card_rest();
    run(row.n_gen, &row);
  }
  row.first_token_s /= double(options.repetitions);
}

// One test of a session whose context holds depth + n tokens.
class Bench {
 public:
  Bench(const Model& model, Session& session, const BenchOptions& options)
      : model_(model), session_(session), options_(options) {}

  // The share of the timed calls in which weights are read once each: one a chunk in prefill.
  BenchRow measure(int64_t n_prompt, int64_t n_gen, int64_t n_depth, int64_t n_draft) {
    BenchRow row;
    row.n_prompt = n_prompt;
    row.n_gen = n_gen;
    row.n_depth = n_depth;
    row.n_draft = n_draft;
    row.accepted_share = n_draft > 0 ? accepted_share() : 0;
    row.test_time = utc_now();
    const int64_t n = n_prompt + n_gen;
    const int64_t rows_of_pass =
        n_prompt > 0 ? std::min(n_prompt, session_.prefill_chunk()) : 1 + n_draft;
    const double tokens_of_pass = n_prompt > 0 ? double(rows_of_pass) : row.tokens_per_pass();
    const int64_t bytes_of_pass =
        model_.bytes_per_token + kv_bytes_of_pass(session_.executor(), n, n_depth, rows_of_pass);
    row.bytes_per_token = static_cast<int64_t>(double(bytes_of_pass) / tokens_of_pass);
    row.flops_per_token = flops_of_all_ranks(model_, n, n_depth, /*with_logits=*/n_gen > 0) *
                          double(rows_of_pass) / tokens_of_pass;
    set_depth(n_depth);
    repeat(options_, row, [&](int64_t n_decoded, BenchRow* timed) {
      if (n_draft > 0) return run_drafts(n_decoded, n_depth, n_draft, timed);
      run_once(n_prompt, n_decoded, n_depth, timed);
    });
    return row;
  }

 private:
  void set_depth(int64_t n_depth) {
    session_.truncate(std::min(session_.pos(), n_depth));
    if (session_.pos() < n_depth) session_.eval(tokens(n_depth - session_.pos()));
  }

  std::vector<TokenId> tokens(int64_t n) const { return bench_tokens(n, model_.spec.vocab_size); }
  double accepted_share() const { return double(options_.accepted_percent) / 100; }

  void run_once(int64_t n_prompt, int64_t n_gen, int64_t n_depth, BenchRow* row) {
    set_depth(n_depth);
    const std::vector<TokenId> ids = tokens(n_prompt + n_gen);
    std::vector<double> steps;
    const double start = now_seconds();
    if (n_prompt > 0) {
      session_.eval(ids);
      steps.push_back((now_seconds() - start) / double(n_prompt));
    }
    if (n_gen > 0) decode(std::span(ids).last(size_t(n_gen)), steps);
    throw_if_interrupted();
    if (row == nullptr) return;
    const double seconds = now_seconds() - start;
    row->samples_s.push_back(seconds);
    row->first_token_s += n_prompt > 0 ? seconds : steps.front();
    row->step_s.insert(row->step_s.end(), steps.begin(), steps.end());
  }

  // Seconds of a step for each token: as text is generated where the backend chooses tokens itself,
  // from the first one on, greedily; else of the given ones.
  void decode(std::span<const TokenId> ids, std::vector<double>& steps) {
    double before = now_seconds();
    auto run = session_.run_from(ids.front(), std::ssize(ids), greedy(model_));
    for (const TokenId& id : ids) {
      throw_if_interrupted();
      if (run) {
        run->next();
      } else {
        session_.eval({&id, 1});
      }
      const double now = now_seconds();
      steps.push_back(now - before);
      before = now;
    }
  }

  // n_gen tokens by passes that each evaluate a token and a draft behind it, and take as many of
  // the draft as the share says, on average. As in decode(), the backend chooses where it can.
  void run_drafts(int64_t n_gen, int64_t n_depth, int64_t n_draft, BenchRow* row) {
    set_depth(n_depth);
    const std::vector<TokenId> ids = tokens(n_gen + n_draft);
    const double accepted_of_pass = accepted_share() * double(n_draft);
    const double start = now_seconds();
    double before = start;
    for (int64_t n_done = 0, n_passes = 0; n_done < n_gen;) {
      throw_if_interrupted();
      const auto pass = std::span(ids).subspan(size_t(n_done), size_t(1 + n_draft));
      if (session_.choose(pass, greedy(model_)).empty()) session_.decode(pass);
      const auto accepted_by = [&](int64_t n) {
        return std::llround(accepted_of_pass * double(n));
      };
      const int64_t n_accepted = accepted_by(n_passes + 1) - accepted_by(n_passes);
      const int64_t n_taken = std::min<int64_t>(1 + n_accepted, n_gen - n_done);
      ++n_passes;
      n_done += n_taken;
      session_.truncate(n_depth + n_done);
      const double now = now_seconds();
      if (row != nullptr) {
        if (before == start) row->first_token_s += now - before;
        row->pass_s.push_back(now - before);
        row->step_s.insert(row->step_s.end(), size_t(n_taken), (now - before) / double(n_taken));
      }
      before = now;
    }
    if (row != nullptr) row->samples_s.push_back(before - start);
  }

  const Model& model_;
  Session& session_;
  const BenchOptions& options_;
};

// Decode of several sequences side by side, each with the same depth. As in Bench::decode(), the
// backend chooses tokens where it can.
class ParallelBench {
 public:
  ParallelBench(Executor& executor, const BenchOptions& options)
      : executor_(executor), options_(options) {}

  BenchRow measure(int64_t n_gen, int64_t n_depth, int64_t n_parallel) {
    const Model& model = executor_.model();
    BenchRow row;
    row.n_gen = n_gen;
    row.n_depth = n_depth;
    row.n_parallel = n_parallel;
    row.test_time = utc_now();
    row.bytes_per_token = model.bytes_per_token / n_parallel +
                          kv_bytes_of_pass(executor_, n_gen, n_depth, /*n_rows=*/1);
    row.flops_per_token = flops_of_all_ranks(model, n_gen, n_depth, /*with_logits=*/true);
    for (int64_t i = 0; i < n_parallel; ++i) {
      sequences_.push_back(executor_.make_sequence());
      if (n_depth > 0) executor_.evaluate_all(sequences_.back(), tokens(n_depth));
    }
    repeat(options_, row,
           [&](int64_t n_decoded, BenchRow* timed) { run_once(n_decoded, n_depth, timed); });
    sequences_.clear();
    return row;
  }

 private:
  std::vector<TokenId> tokens(int64_t n) const {
    return bench_tokens(n, executor_.model().spec.vocab_size);
  }

  void run_once(int64_t n_gen, int64_t n_depth, BenchRow* row) {
    for (Sequence& sequence : sequences_) sequence.truncate(n_depth);
    const double start = now_seconds();
    double before = start;
    for (const TokenId& id : tokens(n_gen)) {
      throw_if_interrupted();
      std::vector<SequenceTokens> parts;
      for (Sequence& sequence : sequences_) parts.push_back({&sequence, {&id, 1}, 1});
      executor_.in_turns(std::span<const SequenceTokens>(parts), [&](auto some) {
        const std::vector<DecodeSampling> samplings(some.size(), greedy(executor_.model()));
        if (executor_.choose(some, samplings).empty()) executor_.decode(some);
      });
      const double now = now_seconds();
      if (row != nullptr) row->step_s.push_back(now - before);
      if (row != nullptr && before == start) row->first_token_s += now - before;
      before = now;
    }
    if (row != nullptr) row->samples_s.push_back(before - start);
  }

  Executor& executor_;
  const BenchOptions& options_;
  std::vector<Sequence> sequences_;
};

std::vector<BenchRow> run_tests(const BenchOptions& options, const Model& model, Backend& backend) {
  Session session(model, backend, bench_session_options(options, model.spec));
  Bench bench(model, session, options);
  ParallelBench parallel(session.executor(), options);
  std::vector<BenchRow> rows;
  const auto run = [&](int64_t n_prompt, int64_t n_gen, int64_t n_depth, int64_t n_parallel,
                       int64_t n_draft) {
    if (n_prompt + n_gen == 0) return;
    if (n_parallel > 1) session.truncate(0);
    rows.push_back(n_parallel > 1 ? parallel.measure(n_gen, n_depth, n_parallel)
                                  : bench.measure(n_prompt, n_gen, n_depth, n_draft));
    log_info(fmt::format("{}: {:.2f} tok/s", rows.back().test(), mean(rows.back().samples_ts())));
  };
  for (int64_t n_depth : options.n_depth) {
    for (int64_t n_prompt : options.n_prompt) run(n_prompt, 0, n_depth, 1, 0);
    for (int64_t n_gen : options.n_gen) {
      for (int64_t n_parallel : options.n_parallel) {
        for (int64_t n_draft : options.n_draft) run(0, n_gen, n_depth, n_parallel, n_draft);
      }
    }
  }
  return rows;
}

void warn_of_spread(const BenchRow& row) {
  const std::vector<double> rates = row.samples_ts();
  const double share = per_second(standard_deviation(rates), mean(rates));
  if (share > 0.03) {
    log_warning(fmt::format(
        "{}: the repetitions spread by {:.0f} %: the machine is busy or its clock moves",
        row.test(), share * 100));
  }
}

// Of what rank 0 runs on, while the others wait.
MachineLimits measure_limits(const DeviceOptions& device) {
  MachineLimits limits;
  if (!is_first_process()) return limits;
  limits.cpu = measure_cpu_limits(thread_count(device), "", &interrupt_flag());
  if (on_card(device)) limits.cuda = measure_cuda_limits(card_index(device));
  return limits;
}

// Of the memory that holds the weights.
double measure_read_bandwidth(const DeviceOptions& device) {
  if (!is_first_process()) return 0;
  return on_card(device) ? measure_cuda_read_bandwidth(card_index(device))
                         : measure_cpu_read_bandwidth(thread_count(device), "", &interrupt_flag());
}

// Of f32 on the processors, of F16 on a card; 0 where it is not known.
double arithmetic_of(const MachineLimits& limits) {
  if (!limits.cuda) return limits.cpu.fma_flops_per_second;
  double best = 0;
  for (const auto& hgemm : limits.cuda->hgemm) best = std::max(best, hgemm.flops_per_second);
  return best;
}

std::vector<BenchRow> bench_model(const BenchOptions& options, BenchSubject& subject,
                                  const MachineLimits& limits, const Context& context) {
  const auto [backend, model] = load_bench_model(options, subject, context);
  log_info(model.description + " on " + backend->name_of_ranks());
  // Before and after the tests, for a machine whose speed moves in between; the better one holds.
  double read_bytes_per_second = measure_read_bandwidth(options.device);
  throw_if_interrupted();
  std::vector<BenchRow> rows = run_tests(options, model, *backend);
  read_bytes_per_second = std::max(read_bytes_per_second, measure_read_bandwidth(options.device));
  log_info(fmt::format("read bandwidth {:.1f} GB/s", read_bytes_per_second / 1e9));
  for (BenchRow& row : rows) {
    row.model = model.description;
    row.model_bytes = model.file_bytes;
    row.n_params = model.n_params;
    row.backend = backend->name_of_ranks();
    row.n_threads = thread_count(options.device);
    row.n_batch = options.batch_size > 0 ? options.batch_size : backend->preferred_chunk();
    row.kv_type = options.kv_type;
    row.activations = options.device.activations;
    row.gemm = options.device.gemm;
    // The limits are those of the host's memory and cores, or of one card.
    const double n_cards = on_card(options.device) ? backend->n_ranks() : 1;
    row.read_bytes_per_second = read_bytes_per_second * n_cards;
    row.flops_per_second = arithmetic_of(limits) * n_cards;
    warn_of_spread(row);
  }
  return rows;
}

void run_bench(const BenchOptions& options, Context& context) {
  MINFER_REQUIRE(
      Usage, std::ranges::max(options.n_draft) == 0 || std::ranges::max(options.n_parallel) == 1,
      "--draft-tokens and --parallel exclude each other");
  join_mpi_ranks(options.device, context);
  kv_dtype_by_name(options.kv_type, options.device);  // refused before a model is read
  std::vector<BenchSubject> subjects = bench_subjects(options);
  // All of them, so that the last is not refused after hours.
  for (BenchSubject& subject : subjects) {
    if (subject.synthetic.empty()) subject.opened = open_model(subject.path);
  }
  make_backend(options.device);  // refuses what this build does not have
  const MachineLimits limits = measure_limits(options.device);
  std::vector<BenchRow> rows;
  for (BenchSubject& subject : subjects) {
    const std::vector<BenchRow> more = bench_model(options, subject, limits, context);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  if (!context.common.json) return context.out.text(format_rows(rows, options.format));
  context.out.line(bench_json(limits, rows));
}

void run_limits(const BenchOptions& options, Context& context) {
  make_backend(options.device);  // refuses what this build does not have
  const MachineLimits limits = measure_limits(options.device);
  if (context.common.json) return context.out.line(limits_json(limits));
  context.out.text(limits_text(limits));
}

std::regex filter_of(const BenchOptions& options) {
  try {
    return std::regex(options.filter);
  } catch (const std::regex_error&) {
    throw Error(ErrorKind::Usage,
                cat("--filter: ", shortened(options.filter), " is no regular expression"));
  }
}

void run_kernels(const BenchOptions& options, Context& context) {
  const std::regex filter = filter_of(options);
  make_backend(options.device);  // refuses what this build does not have
  const MachineLimits limits = measure_limits(options.device);
  std::vector<KernelTiming> timings;
  const KernelChoice choice{.wants =
                                [&](const std::string& kernel, const std::string& shape) {
                                  throw_if_interrupted();
                                  return std::regex_search(kernel + " " + shape, filter);
                                },
                            .done =
                                [&](const KernelTiming& timing) {
                                  timings.push_back(timing);
                                  log_info(fmt::format("{} {}: {:.1f} us", timing.kernel,
                                                       timing.shape, timing.seconds * 1e6));
                                }};
  if (on_card(options.device)) {
    time_cuda_kernels(card_index(options.device), choice);
  } else {
    time_cpu_kernels(thread_count(options.device), "", choice);
  }
  MINFER_REQUIRE(Usage, !timings.empty(), "--filter: no kernel has ", shortened(options.filter),
                 " in its name or shape");
  if (context.common.json) return context.out.line(kernels_json(limits, timings));
  context.out.text(kernels_text(limits, timings));
}

}  // namespace

void add_bench_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<BenchOptions>();
  CommandNode& command =
      root.add_command("bench", "Speed of a model, beside the machine's limits",
                       "  minfer bench -m smollm2\n"
                       "  minfer bench --synthetic tinyllama-1.1b:f16 -p 512 -n 32 -r 3\n"
                       "  minfer bench -m model.gguf -p 128,512 -d 0,1024 -o json\n"
                       "  minfer bench -m model -m model-int4-g64\n"
                       "  minfer bench limits\n"
                       "  minfer bench kernels --filter gemm\n"
                       "  minfer bench step --synthetic llama-2-7b:int4 -d 128\n"
                       "  minfer bench allreduce --tp 2",
                       [options, &context] { run_bench(*options, context); });
  command.add_repeatable("-m,--model", options->model_paths, "MODEL",
                         "Directory, .gguf, llama2.c .bin, or smollm2; repeatable");
  std::string names;
  for (const std::string& name : synthetic_names()) names += (names.empty() ? "" : ", ") + name;
  command.add_repeatable("--synthetic", options->synthetics, "NAME[:TYPE]",
                         "Random weights in a known shape: " + names +
                             "; f16, bf16, f32, int8 or int4[:GROUP]; repeatable");
  constexpr int64_t kMax = 1 << 24;
  command.add_integers("-p,--n-prompt", options->n_prompt, 0, kMax, "Tokens of prefill; 0: none");
  command.add_integers("-n,--n-gen", options->n_gen, 0, kMax, "Tokens of decode; 0: none");
  command.add_integers("--parallel", options->n_parallel, 1, 1024,
                       "Sequences whose tokens are decoded side by side", Show::More);
  command.add_integers("--draft-tokens", options->n_draft, 0, kMostDraftTokens,
                       "Tokens drafted behind each token that is decoded; 0: none", Show::More);
  command.add_integer("--draft-accepted", options->accepted_percent, 0, 100,
                      "Percent of them that are taken", Show::More);
  command.add_integers("-d,--n-depth", options->n_depth, 0, kMax, "Tokens of context before them");
  command.add_integer("-r,--repetitions", options->repetitions, 1, 10000,
                      "Repetitions of each test; a card rests before each that decodes");
  command.add_choice("-o,--output", options->format, {"md", "csv", "json", "jsonl", "sql"},
                     "Format");
  command.add_integer("-b,--batch-size", options->batch_size, 0, 1 << 20,
                      "Tokens of the prompt in one pass", Show::More);
  add_kv_type_option(command, options->kv_type);
  command.add_flag("--no-warmup", options->no_warmup, "No untimed run before a test, and no rest",
                   Show::More);
  add_device_options(command, options->device);
  command.exclude({"--synthetic"}, {"--model"});  // both may be named, but MINFER_MODEL yields
  command.exclude({"--draft-tokens!=0"}, {"--parallel!=1"});
  command.exclude({"--output"}, {"--json"});
  command.add_command("limits", "Bandwidth and arithmetic that the machine has",
                      "  minfer bench limits --json",
                      [options, &context] { run_limits(*options, context); });
  add_bench_step_command(command, options, context);
  add_bench_all_reduce_command(command, {options, &options->device},
                               {options, &options->repetitions}, context);
  command
      .add_command("kernels", "Each kernel at the shapes of Llama-2-7B, beside the limits",
                   "  minfer bench kernels --filter 'gemv.* 1 x' --json",
                   [options, &context] { run_kernels(*options, context); })
      .add_text("--filter", options->filter, "RE", "Those whose name and shape match");
}

}  // namespace minfer
