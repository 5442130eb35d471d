#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/continuation.h"
#include "loaders/strict_json.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/generate_report.h"
#include "tools/json_text.h"
#include "tools/loading.h"
#include "tools/model_path.h"
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

// All lines before the first is scored: a bad one is found before the long work.
std::vector<ContinuationTokens> parse_lines(std::string_view text, const Tokenizer& tokenizer,
                                            const std::string& name) {
  std::vector<ContinuationTokens> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    try {
      lines.push_back(parse_line(text.substr(0, end), tokenizer));
    } catch (const Error& e) {
      throw e.in(cat(shortened(name, 200), ": line ", lines.size() + 1));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The longest line, as far as the model was trained.
int64_t needed_ctx(const std::vector<ContinuationTokens>& lines, int64_t trained) {
  int64_t longest = 1;
  for (const ContinuationTokens& line : lines) {
    longest = std::max(longest, std::ssize(line.context) + std::ssize(line.continuation));
  }
  return std::min(longest, trained);
}

void run_eval_score(const ScoreOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, !options.input_path.empty(), "no --input FILE.jsonl");
  const DType kv_dtype = kv_dtype_by_name(options.kv_type, options.device);
  const std::string path = find_model(options.model_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, path);
  const std::string text = read_text(options.input_path);
  std::vector<ContinuationTokens> lines;
  SessionOptions session_options = {
      .prefill_chunk = options.batch_size, .kv_dtype = kv_dtype, .all_logits = true};
  const auto plan_session = [&](const Model& model) {
    lines = parse_lines(text, *model.tokenizer, options.input_path);
    session_options.max_seq_len = needed_ctx(lines, model.config.trained_seq_len);
    return session_memory(model.config, *backend, session_options);
  };
  const Model model = load_with_tokenizer(path, *backend, options.tokenizer_path,
                                          context.common.quiet, plan_session);
  Session session(model, *backend, session_options);
  log_info(load_line(model, session, session_options, *backend));

  ContinuationScorer scorer(session);
  for (size_t i = 0; i < lines.size(); ++i) {
    throw_if_interrupted();
    try {
      const ContinuationScore score = scorer.score(lines[i]);
      context.out.line(compact({{"logprob", score.logprob},
                                {"is_greedy", score.is_greedy},
                                {"n_tokens", score.n_tokens}}));
    } catch (const Error& e) {
      throw e.in(cat(shortened(options.input_path, 200), ": line ", i + 1));
    }
  }
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
  command.add_text("--input", options->input_path, "FILE",
                   "One object a line with \"context\" and \"continuation\"; -: stdin");
  command.add_integer("-b,--batch-size", options->batch_size, 0, 1 << 20, "Tokens in one pass",
                      Show::More);
  add_kv_type_option(command, options->kv_type);
  add_device_options(command, options->device);
}

}  // namespace minfer
