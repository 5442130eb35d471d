#include <algorithm>
#include <random>

#include "engine/generate.h"
#include "models/chat.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/generate_report.h"
#include "tools/id_tokenizer.h"
#include "tools/loading.h"
#include "tools/model_path.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

struct GenerateCommandOptions {
  std::string model_path, tokenizer_path;
  TextOptions prompt;
  std::optional<std::string> prompt_ids;  // in place of a text
  bool chat = false;
  std::optional<std::string> system;
  std::string chat_template;
  bool special = false, no_bos = false, echo = false, jsonl = false;

  int64_t ctx_size = 0;    // 0: what prompt and -n need, within the trained context
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16";
  int64_t seed = -1;                    // -1: a random one
  std::vector<std::string> logit_bias;  // "ID=B"
  GenerateOptions generate;
  DeviceOptions device;
};

std::pair<TokenId, float> parse_logit_bias(const std::string& text) {
  const size_t equals = text.find('=');
  MINFER_REQUIRE(Usage, equals != std::string::npos, "--logit-bias: ", shortened(text),
                 " is not ID=BIAS");
  const std::string_view view = text;
  const int64_t id = parse_integer("--logit-bias", view.substr(0, equals), 0, INT32_MAX);
  return {narrow<TokenId>(id),
          (parse_number("--logit-bias", view.substr(equals + 1), -1e30f, 1e30f))};
}

uint64_t random_seed() { return std::random_device()(); }

// What the options say that cannot be, before a model is read.
void check(const GenerateCommandOptions& options, const Context& context) {
  MINFER_REQUIRE(Usage, options.chat || (!options.system && options.chat_template.empty()),
                 "--system and --chat-template go with --chat");
  const bool has_text = options.prompt.positional || options.prompt.option || options.prompt.file;
  MINFER_REQUIRE(Usage, !options.prompt_ids || (!has_text && !options.chat),
                 "--prompt-ids takes the place of a prompt, and of --chat");
  MINFER_REQUIRE(Usage, !(context.common.json && options.jsonl),
                 "--json and --jsonl exclude each other");
  MINFER_REQUIRE(Usage, options.generate.n_logprobs == 0 || context.common.json || options.jsonl,
                 "--logprobs goes with --json or --jsonl");
  for (const std::string& stop : options.generate.stop) {
    MINFER_REQUIRE(Usage, !stop.empty(), "--stop: an empty string would stop at once");
  }
  if (!options.chat_template.empty()) chat_family_by_name(options.chat_template);
  kv_dtype_by_name(options.kv_type, options.device);
}

std::string read_prompt(const TextOptions& options) {
  std::optional<std::string> text = read_text_options(options);
  MINFER_REQUIRE(Usage, text,
                 "no prompt: give it as an argument, with -p, with -f FILE or by a pipe");
  bool typed = options.positional || options.option;
  if (typed) {
    if (const std::optional<std::string> piped = piped_text()) {
      *text += '\n' + *piped;
      typed = false;
    }
  }
  // The newline that ends a file is the editor's or echo's and not the prompt's.
  if (!typed && text->ends_with('\n')) text->pop_back();
  return *std::move(text);
}

ChatPrompt make_prompt(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                       const std::string& text) {
  ChatPrompt prompt;
  if (options.chat) {
    const ChatFamily family = options.chat_template.empty()
                                  ? recognize_chat_family(tokenizer.chat_template())
                                  : chat_family_by_name(options.chat_template);
    prompt = make_chat_prompt(tokenizer, family, text, options.system, options.special);
    const bool bos_first = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos();
    if (options.no_bos && bos_first) prompt.tokens.erase(prompt.tokens.begin());
  } else {
    prompt.tokens =
        tokenizer.encode(text, {.add_bos = !options.no_bos, .parse_special = options.special});
  }
  MINFER_REQUIRE(Usage, !prompt.tokens.empty(),
                 "the prompt is empty and the model begins with no token of its own");
  return prompt;
}

std::string listed(const std::vector<TokenId>& ids) {
  std::string list;
  for (TokenId id : ids) list += cat(' ', id);
  return list;
}

// The KV cache holds what this run can need and no more.
SessionOptions session_options(const GenerateCommandOptions& options, const Model& model,
                               int64_t n_prompt) {
  const int64_t trained = model.config.trained_seq_len;
  MINFER_REQUIRE(Usage, options.ctx_size <= trained, "--ctx-size ", options.ctx_size,
                 " is past the trained context of ", trained, " tokens");
  const int64_t limit = options.ctx_size > 0 ? options.ctx_size : trained;
  MINFER_REQUIRE(Usage, n_prompt <= limit, "the prompt has ", n_prompt,
                 " tokens, the context holds ", limit);
  const int64_t n_predict = options.generate.n_predict;
  const bool bounded = options.ctx_size == 0 && n_predict >= 0;
  return {.max_seq_len = bounded ? std::min(limit, n_prompt + n_predict) : limit,
          .prefill_chunk = options.batch_size,
          .kv_dtype = kv_dtype_by_name(options.kv_type, options.device)};
}

// With token ids as the prompt a model needs no tokenizer: it answers in ids.
Model load_to_generate(const GenerateCommandOptions& options, const std::string& path,
                       Backend& backend, const Context& context,
                       const SessionMemoryOf& plan_session) {
  const bool quiet = context.common.quiet;
  if (!options.prompt_ids) {
    return load_with_tokenizer(path, backend, options.tokenizer_path, quiet, plan_session);
  }
  Model model = load_with_progress(path, backend, options.tokenizer_path, quiet, plan_session);
  if (!model.tokenizer) model.tokenizer = make_id_tokenizer(model.config.vocab_size);
  return model;
}

void run_generate(const GenerateCommandOptions& options, Context& context) {
  check(options, context);
  GenerateOptions generate_options = options.generate;
  for (const std::string& bias : options.logit_bias) {
    generate_options.sampler.logit_bias.push_back(parse_logit_bias(bias));
  }
  const std::string path = find_model(options.model_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, path);
  StartTimes start{.seconds = now_seconds() - context.started};
  const std::string text = options.prompt_ids ? *options.prompt_ids : read_prompt(options.prompt);
  const double loading = now_seconds();
  ChatPrompt prompt;
  SessionOptions session_opts;
  const auto plan_session = [&](const Model& model) {
    if (options.prompt_ids) {
      prompt.tokens = parse_token_ids("--prompt-ids", text, model.config.vocab_size);
      MINFER_REQUIRE(Usage, !prompt.tokens.empty(), "--prompt-ids: no ids");
    } else {
      prompt = make_prompt(options, *model.tokenizer, text);
    }
    session_opts = session_options(options, model, narrow<int64_t>(prompt.tokens.size()));
    SessionMemory memory = session_memory(model.config, *backend, session_opts);
    memory.context_option = "--ctx-size";
    return memory;
  };
  const Model model = load_to_generate(options, path, *backend, context, plan_session);
  log_debug("prompt ids" + listed(prompt.tokens));
  Progress reading("reading the prompt", context.common.quiet);
  session_opts.progress = reading.callback();
  Session session(model, *backend, session_opts);
  log_info(load_line(model, session, session_opts, *backend));

  std::optional<uint64_t> seed;  // where something is drawn
  if (options.generate.sampler.temperature > 0) {
    seed = options.seed >= 0 ? uint64_t(options.seed) : random_seed();
    generate_options.sampler.seed = *seed;
  }
  generate_options.end_ids = prompt.end_ids;
  generate_options.show_special = options.special;
  generate_options.interrupted = &interrupt_flag();

  const bool logprobs = generate_options.n_logprobs > 0;
  const bool streamed = !context.common.json && !options.jsonl;
  if (streamed && options.echo) context.out.text(text);
  std::vector<double> token_seconds;
  double last = 0;
  int64_t index = 0;
  const auto on_token = [&](const GeneratedToken& token) {
    reading.clear();
    const double now = now_seconds();
    if (index > 0 && token.id >= 0) token_seconds.push_back(now - last);
    last = now;
    if (options.jsonl) context.out.line(token_json(token, index, model, logprobs));
    if (streamed) context.out.text(token.text);
    ++index;
  };
  start.loaded_seconds = start.seconds + now_seconds() - loading;
  const GenerateResult result = generate(session, prompt.tokens, generate_options, on_token);

  reading.clear();
  if (streamed && (result.stop_reason != StopReason::Interrupted || !result.tokens.empty())) {
    context.out.text("\n");
  }
  if (!streamed) {
    const std::optional<std::string> echo = options.echo ? std::optional(text) : std::nullopt;
    const ResultReport report{result,   start, model, seed, options.device.activations,
                              logprobs, echo};
    context.out.line(options.jsonl ? done_json(report) : result_json(report));
  }
  log_info(finish_line(result, std::move(token_seconds), model, seed));
  throw_if_interrupted();
}

void add_prompt_options(CommandNode& command, GenerateCommandOptions& options) {
  command.add_text("PROMPT", options.prompt.positional, "TEXT", "Text to continue");
  command.add_text("-p,--prompt", options.prompt.option, "TEXT",
                   "Text to continue; \"\" is a prompt too");
  command.add_text("-f,--file", options.prompt.file, "FILE",
                   "Read the prompt from FILE, - for stdin; one newline at its end is dropped");
  command.add_text("--prompt-ids", options.prompt_ids, "IDS",
                   "Token ids instead of a text, \"1 450 17\"; nothing is put in front of them",
                   Show::More);
  command.add_flag("--chat", options.chat, "The prompt is a user's turn in the chat template");
  command.add_text("--system", options.system, "TEXT", "System message of the chat; \"\": none");
  command.add_choice("--chat-template", options.chat_template,
                     {"chatml", "llama2", "llama3", "zephyr", "mistral"},
                     "Chat template, instead of the model's own", Show::More);
  command.add_flag("--special", options.special,
                   "Names of control tokens in the prompt are those tokens, and show in the output",
                   Show::More);
  command.add_flag("--no-bos", options.no_bos, "No BOS token before the prompt", Show::More);
}

void add_sampling_options(CommandNode& command, GenerateCommandOptions& options) {
  SamplerOptions& sampler = options.generate.sampler;
  command.add_integer("-s,--seed", options.seed, -1, INT64_MAX,
                      "Seed of the draws; -1: a random one, which is printed");
  command.add_number("--temp,--temperature", sampler.temperature, 0, 100,
                     "Temperature; 0: the most probable token, ties to the lower id");
  command.add_integer("--top-k,--top_k", sampler.top_k, 0, INT32_MAX,
                      "Keep the K most probable; 0: all");
  command.add_number("--top-p,--top_p", sampler.top_p, 0, 1, "Keep the probability mass P; 1: all");
  command.add_number("--min-p,--min_p", sampler.min_p, 0, 1,
                     "Keep what is at least this share of the best; 0: all");
  command.add_number("--repeat-penalty,--repetition-penalty,--repetition_penalty",
                     sampler.repeat_penalty, 0.01f, 100,
                     "Divides the logits of repeated tokens; 1: off", Show::More);
  command.add_integer("--repeat-last-n", sampler.repeat_last_n, -1, INT32_MAX,
                      "How far back penalties look; -1: all, 0: off", Show::More);
  command.add_number("--presence-penalty,--presence_penalty", sampler.presence_penalty, -100, 100,
                     "Subtracted from the logits of tokens seen", Show::More);
  command.add_number("--frequency-penalty,--frequency_penalty", sampler.frequency_penalty, -100,
                     100, "Subtracted as often as a token was seen", Show::More);
  command.add_repeatable("--logit-bias", options.logit_bias, "ID=B",
                         "Added to the logit of a token; repeatable", Show::More);
}

void add_output_options(CommandNode& command, GenerateCommandOptions& options) {
  GenerateOptions& generate = options.generate;
  command.add_integer("-n,--predict,--n-predict,--max-new-tokens,--max_new_tokens",
                      generate.n_predict, -1, kMaxTokens,
                      "Tokens to generate; -1: to the end of text or context, 0: the prompt only");
  command.add_repeatable("--stop", generate.stop, "TEXT", "End before this text; repeatable");
  command.add_flag("--ignore-eos", generate.ignore_eos, "Go on past the end of text", Show::More);
  command.add_flag("--echo", options.echo, "Print the prompt as well", Show::More);
  command.add_integer("--logprobs", generate.n_logprobs, 0, 1000,
                      "Report the K best tokens of each step (--json, --jsonl)", Show::More);
  command.add_flag("--jsonl", options.jsonl, "Print one JSON object a token");
}

}  // namespace

void add_generate_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CommandNode& command =
      root.add_command("generate", "Continue a text, or answer a question",
                       "  minfer generate \"Once upon a time\" -n 64\n"
                       "  minfer generate -m smollm2 --chat \"Why is the sky blue?\"\n"
                       "  minfer generate -m model.gguf --temp 0 --json -f prompt.txt\n"
                       "  minfer generate -m stories.bin --tokenizer tokenizer.bin -p \"\"",
                       [options, &context] { run_generate(*options, context); });
  command.add_text("-m,--model", options->model_path, "MODEL",
                   "Directory, .gguf, llama2.c .bin, or smollm2");
  command.add_text("--tokenizer", options->tokenizer_path, "FILE", "Tokenizer of a llama2.c model");
  add_prompt_options(command, *options);
  add_output_options(command, *options);
  add_sampling_options(command, *options);
  command.add_integer("-c,--ctx-size", options->ctx_size, 0, kMaxTokens,
                      "Context in tokens; 0: what prompt and -n need, within the trained one");
  command.add_integer("-b,--batch-size", options->batch_size, 0, 1 << 20,
                      "Tokens of the prompt in one pass", Show::More);
  add_kv_type_option(command, options->kv_type);
  add_device_options(command, options->device);
}

}  // namespace minfer
