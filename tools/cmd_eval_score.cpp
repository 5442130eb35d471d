#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/continuation.h"
#include "loaders/strict_json.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/generate_report.h"
#include "tools/json_lines.h"
#include "tools/json_text.h"
#include "tools/loading.h"
#include "tools/model_path.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

struct ScoreOptions {
  std::string model_path, tokenizer_path, input_path;
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16";
  DeviceOptions device;
};

std::string text_field(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  MINFER_REQUIRE(Input, found != object.end() && found->is_string(), "no text \"", name, "\"");
  return found->get<std::string>();
}

ContinuationTokens parse_line(std::string_view line, const Tokenizer& tokenizer) {
  const nlohmann::json object = parse_strict_json(line);
  MINFER_REQUIRE(Input, object.is_object(), "no JSON object");
  const std::string context = text_field(object, "context");
  return encode_continuation(tokenizer, context, text_field(object, "continuation"));
}

// A line of the input: what is to be scored, or why it cannot be.
struct Line {
  int64_t number = 0;  // in the file, from 1
  ContinuationTokens tokens;
  std::string error;  // empty: none
};

std::vector<Line> parse_lines(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<Line> lines;
  for_each_line(text, [&](int64_t number, std::string_view content) {
    Line& line = lines.emplace_back();
    line.number = number;
    line.error = error_of_line(number, [&] { line.tokens = parse_line(content, tokenizer); });
  });
  return lines;
}

// The longest line, as far as the model was trained.
int64_t needed_ctx(const std::vector<Line>& lines, int64_t trained) {
  int64_t longest = 1;
  for (const auto& [number, tokens, error] : lines) {
    longest = std::max(longest, std::ssize(tokens.context) + std::ssize(tokens.continuation));
  }
  return std::min(longest, trained);
}

void run_eval_score(const ScoreOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, !options.input_path.empty(), "no --input FILE.jsonl");
  join_mpi_ranks(options.device, context);
  const DType kv_dtype = kv_dtype_by_name(options.kv_type, options.device);
  const std::string path = find_model(options.model_path);
  OpenedModel opened = open_with_tokenizer(path, options.tokenizer_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, opened);
  std::vector<Line> lines = parse_lines(read_text(options.input_path), *opened.model.tokenizer);
  const SessionOptions session_options = {
      .max_seq_len = needed_ctx(lines, opened.model.spec.trained_seq_len),
      .prefill_chunk = options.batch_size,
      .kv_dtype = kv_dtype,
      .all_logits = true};
  const SessionMemory memory = session_memory(opened, *backend, session_options);
  const Model model = load_with_progress(std::move(opened), *backend, memory, context.common.quiet);
  Session session(model, *backend, session_options);
  log_info(load_line(session.executor(), session_options));

  ContinuationScorer scorer(session);
  int64_t n_failed = 0;
  for (Line& line : lines) {
    throw_if_interrupted();
    ContinuationScore score;
    if (line.error.empty()) {
      line.error = error_of_line(line.number, [&] { score = scorer.score(line.tokens); });
    }
    if (line.error.empty()) {
      context.out.line(compact({{"logprob", score.logprob},
                                {"is_greedy", score.is_greedy},
                                {"n_tokens", score.n_tokens}}));
    } else {
      context.out.line(compact({{"error", line.error}}));
      ++n_failed;
    }
  }
  MINFER_REQUIRE(Input, n_failed == 0, shortened(options.input_path, 200), ": ", n_failed, " of ",
                 lines.size(), " lines could not be scored");
}

}  // namespace

void add_eval_score_command(CommandNode& eval, Context& context) {
  auto options = std::make_shared<ScoreOptions>();
  CommandNode& command =
      eval.add_command("score", "Log-likelihoods of continuations, one JSON object a line",
                       "  echo '{\"context\": \"The sky is\", \"continuation\": \" blue\"}' |\n"
                       "    minfer eval score -m smollm2 --input -",
                       [options, &context] { run_eval_score(*options, context); });
  command.add_text("-m,--model", options->model_path, "MODEL",
                   "Directory, .gguf, llama2.c .bin, or smollm2");
  command.add_text("--tokenizer", options->tokenizer_path, "FILE", "Tokenizer of a llama2.c model");
  command.add_text(
      "--input", options->input_path, "FILE",
      "One object a line with \"context\" and \"continuation\"; -: stdin. A blank line is "
      "left out; one that cannot be scored gets {\"error\": ...}, and the exit status is "
      "3 in the end");
  command.add_integer("-b,--batch-size", options->batch_size, 0, 1 << 20, "Tokens in one pass",
                      Show::More);
  add_kv_type_option(command, options->kv_type);
  add_device_options(command, options->device);
}

}  // namespace minfer
