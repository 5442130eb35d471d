#include "tools/generation_options.h"

#include <random>

#include "engine/draft_decoder.h"
#include "kernels/base/math.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"

namespace minfer {
namespace {

std::pair<TokenId, float> parse_logit_bias(const std::string& text) {
  const size_t equals = text.find('=');
  MINFER_REQUIRE(Usage, equals != std::string::npos, "--logit-bias: ", shortened(text),
                 " is not ID=BIAS");
  const std::string_view view = text;
  const int64_t id = parse_integer("--logit-bias", view.substr(0, equals), 0, INT32_MAX);
  return {narrow<TokenId>(id),
          (parse_number("--logit-bias", view.substr(equals + 1), -1e30f, 1e30f))};
}

}  // namespace

void add_model_options(CommandNode& command, GenerationOptions& options) {
  command.add_text("-m,--model", options.model_path, "MODEL",
                   "Directory, .gguf, llama2.c .bin, or smollm2");
  command.add_text("--tokenizer", options.tokenizer_path, "FILE", "Tokenizer of a llama2.c model");
}

void add_output_options(CommandNode& command, GenerationOptions& options,
                        const std::string& default_predict) {
  GenerateOptions& generate = options.generate;
  command.add_integer(
      "-n,--predict,--n-predict,--max-new-tokens,--max_new_tokens", options.n_predict, -1,
      kMaxTokens,
      "Tokens to generate; -1: to the end of text or context, 0: the prompt only [" +
          default_predict + "]");
  command.add_repeatable("--stop", generate.stop, "TEXT", "End before this text; repeatable");
  command.add_flag("--ignore-eos", generate.ignore_eos, "Go on past the end of text", Show::More);
  command.add_integer("--logprobs", generate.n_logprobs, 0, kMostLogprobs,
                      "Report the K best tokens of each step (--json, --jsonl)", Show::More);
  command.add_flag("--jsonl", options.jsonl, "Print one JSON object a token");
  command.exclude({"--json"}, {"--jsonl"});
}

void add_sampling_options(CommandNode& command, GenerationOptions& options) {
  SamplerOptions& sampler = options.generate.sampler;
  command.add_integer("-s,--seed", options.seed, -1, INT64_MAX,
                      "Seed of the draws; -1: a random one, which is printed");
  command.add_number("--temp,--temperature", sampler.temperature, kTemperatureRange,
                     "Temperature; 0: the most probable token, ties to the lower id");
  command.add_integer("--top-k,--top_k", sampler.top_k, 0, INT32_MAX,
                      "Keep the K most probable; 0: all");
  command.add_number("--top-p,--top_p", sampler.top_p, kTopPRange,
                     "Keep the probability mass P; 1: all");
  command.add_number("--min-p,--min_p", sampler.min_p, kMinPRange,
                     "Keep what is at least this share of the best; 0: all");
  command.add_number("--repeat-penalty,--repetition-penalty,--repetition_penalty",
                     sampler.repeat_penalty, kRepeatPenaltyRange,
                     "Divides the logits of repeated tokens; 1: off", Show::More);
  command.add_integer("--repeat-last-n", sampler.repeat_last_n, -1, INT32_MAX,
                      "How far back penalties look; -1: all, 0: off", Show::More);
  command.add_number("--presence-penalty,--presence_penalty", sampler.presence_penalty,
                     kPenaltyRange, "Subtracted from the logits of tokens seen", Show::More);
  command.add_number("--frequency-penalty,--frequency_penalty", sampler.frequency_penalty,
                     kPenaltyRange, "Subtracted as often as a token was seen", Show::More);
  command.add_repeatable("--logit-bias", options.logit_bias, "ID=B",
                         "Added to the logit of a token; repeatable", Show::More);
}

void add_context_options(CommandNode& command, GenerationOptions& options,
                         const std::string& default_context) {
  command.add_integer("-c,--ctx-size", options.ctx_size, 0, kMaxTokens,
                      "Context in tokens; 0: " + default_context);
  command.add_integer("-b,--batch-size", options.batch_size, 0, 1 << 20,
                      "Tokens of the prompt in one pass", Show::More);
  add_kv_type_option(command, options.kv_type);
  command.add_choice("--draft", options.draft, {"none", "lookup"},
                     "lookup: guess tokens from what stands in the text already, and evaluate "
                     "several at once; on the CPU the text stays the same to the bit",
                     Show::More);
  add_device_options(command, options.device);
  command.exclude({"--draft=lookup"}, {"--tp=mpi"});
}

void check_generation_options(const GenerationOptions& options, bool json) {
  MINFER_REQUIRE(Usage, !(json && options.jsonl), "--json and --jsonl exclude each other");
  MINFER_REQUIRE(Usage, options.generate.n_logprobs == 0 || json || options.jsonl,
                 "--logprobs goes with --json or --jsonl");
  for (const std::string& stop : options.generate.stop) {
    MINFER_REQUIRE(Usage, !stop.empty(), "--stop: an empty string would stop at once");
  }
  kv_dtype_by_name(options.kv_type, options.device);
}

void use_drafts(const GenerationOptions& options, const Backend& backend, GenerateOptions& generate,
                SessionOptions& session) {
  if (options.draft == "none") return;
  // Each rank would measure for itself what a draft costs.
  MINFER_REQUIRE(Usage, backend.n_ranks() == backend.n_ranks_here(), "--draft ", options.draft,
                 " excludes --tp mpi");
  generate.drafts = true;
  session.n_draft_tokens = most_draft_tokens(backend);
}

GenerateOptions parsed_generate_options(const GenerationOptions& options, int64_t default_predict) {
  GenerateOptions generate = options.generate;
  generate.n_predict = options.n_predict.value_or(default_predict);
  for (const std::string& bias : options.logit_bias) {
    generate.sampler.logit_bias.push_back(parse_logit_bias(bias));
  }
  generate.interrupted = &interrupt_flag();
  return generate;
}

uint64_t seed_of(int64_t seed) {
  if (seed >= 0) return uint64_t(seed);
  return std::stoull(from_first_process([] { return cat(std::random_device()()); }));
}

std::optional<uint64_t> chosen_seed(const GenerationOptions& options) {
  if (options.generate.sampler.temperature == 0) return std::nullopt;
  return seed_of(options.seed);
}

}  // namespace minfer
