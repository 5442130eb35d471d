#include <algorithm>
#include <random>

#include "engine/generate.h"
#include "tools/chat_options.h"
#include "tools/commands.h"
#include "tools/device.h"
#include "tools/generate_report.h"
#include "tools/loading.h"
#include "tools/model_path.h"
#include "tools/process.h"
#include "tools/progress.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

// An answer ends where the model ends it, and its context is made for this many tokens at most: the
// KV cache of all that a model was trained for can be larger than the model.
constexpr int64_t kMaxAnswerTokens = 8192;

struct GenerateCommandOptions {
  std::string model_path, tokenizer_path;
  TextOptions prompt;
  bool chat = false, no_chat = false;
  std::optional<std::string> system;
  ChatCommandOptions conversation;
  bool special = false, no_bos = false, echo = false, jsonl = false;

  int64_t ctx_size = 0;    // 0: what prompt and -n need, within the trained context
  int64_t batch_size = 0;  // 0: the backend's own
  std::string kv_type = "f16";
  int64_t seed = -1;                     // -1: a random one
  std::vector<std::string> logit_bias;   // "ID=B"
  std::optional<std::string> n_predict;  // -1: to the end
  GenerateOptions generate;
  DeviceOptions device;

  // Whether the prompt goes through a chat template.
  bool is_chat() const { return chat || conversation.messages; }
  int64_t tokens_to_predict() const {
    if (n_predict) return parse_integer("--predict", *n_predict, -1, kMaxTokens);
    return is_chat() ? -1 : generate.n_predict;
  }
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
  const ChatCommandOptions& conversation = options.conversation;
  conversation.check();
  options.tokens_to_predict();
  MINFER_REQUIRE(Usage, !(options.is_chat() && options.no_chat),
                 "--no-chat excludes --chat and --messages");
  const bool chat_option =
      options.system || !conversation.chat_template.empty() || !conversation.variables.empty();
  MINFER_REQUIRE(Usage, options.is_chat() || !chat_option,
                 "--system, --chat-template and --template-var go with --chat or --messages");
  MINFER_REQUIRE(Usage, !(options.system && conversation.messages),
                 "--messages has a system message of its own, --system cannot give it");
  MINFER_REQUIRE(Usage, !(context.common.json && options.jsonl),
                 "--json and --jsonl exclude each other");
  MINFER_REQUIRE(Usage, options.generate.n_logprobs == 0 || context.common.json || options.jsonl,
                 "--logprobs goes with --json or --jsonl");
  for (const std::string& stop : options.generate.stop) {
    MINFER_REQUIRE(Usage, !stop.empty(), "--stop: an empty string would stop at once");
  }
  kv_dtype_by_name(options.kv_type, options.device);
}

std::string read_prompt(const TextOptions& options) {
  std::optional<std::string> text = read_text_options(options);
  MINFER_REQUIRE(Usage, text,
                 "no prompt: give it as an argument, with -p, with -f FILE or by a pipe");
  // The newline that ends a file is the editor's or echo's and not the prompt's.
  const bool typed = options.positional || options.option;
  if (!typed && text->ends_with('\n')) text->pop_back();
  return *std::move(text);
}

// The conversation so far, with the prompt as one more turn of the user's if there is one.
std::string read_messages(const GenerateCommandOptions& options) {
  const TextOptions& prompt = options.prompt;
  std::string messages = read_text(*options.conversation.messages);
  if (!prompt.positional && !prompt.option && !prompt.file) return messages;
  MINFER_REQUIRE(Usage, !(prompt.file == "-" && options.conversation.messages == "-"),
                 "stdin cannot be both the messages and the prompt");
  return with_turn(messages, "user", read_prompt(prompt));
}

// The tokens of `text`: a prompt, or with --messages the conversation.
ChatPrompt make_prompt(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                       const std::string& text) {
  ChatPrompt prompt;
  if (options.is_chat()) {
    const ChatTemplate chosen = choose_chat_template(options.conversation.chat_template, tokenizer);
    const ChatOptions chat_options = options.conversation.chat_options(options.special);
    prompt = options.conversation.messages
                 ? make_chat_prompt(tokenizer, chosen, text, chat_options)
                 : make_turn_prompt(tokenizer, chosen, text, options.system, chat_options);
    const bool bos_first = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos();
    if (options.no_bos && bos_first) prompt.tokens.erase(prompt.tokens.begin());
  } else {
    if (!options.no_chat && !tokenizer.chat_template().empty()) {
      log_info(
          "the model has a chat template: --chat puts the prompt into it, --no-chat is quiet about "
          "it");
    }
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
  const bool answer = options.is_chat() && !options.n_predict;
  const int64_t n_predict = answer ? kMaxAnswerTokens : options.tokens_to_predict();
  const bool bounded = options.ctx_size == 0 && n_predict >= 0;
  return {.max_seq_len = bounded ? std::min(limit, n_prompt + n_predict) : limit,
          .prefill_chunk = options.batch_size,
          .kv_dtype = kv_dtype_by_name(options.kv_type, options.device)};
}

void run_generate(const GenerateCommandOptions& options, Context& context) {
  check(options, context);
  GenerateOptions generate_options = options.generate;
  generate_options.n_predict = options.tokens_to_predict();
  for (const std::string& bias : options.logit_bias) {
    generate_options.sampler.logit_bias.push_back(parse_logit_bias(bias));
  }
  const std::string path = find_model(options.model_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, path);
  StartTimes start{.seconds = now_seconds() - context.started};
  const std::string text =
      options.conversation.messages ? read_messages(options) : read_prompt(options.prompt);
  const double loading = now_seconds();
  ChatPrompt prompt;
  SessionOptions session_opts;
  const auto plan_session = [&](const Model& model) {
    prompt = make_prompt(options, *model.tokenizer, text);
    session_opts = session_options(options, model, narrow<int64_t>(prompt.tokens.size()));
    SessionMemory memory = session_memory(model.config, *backend, session_opts);
    memory.context_option = "--ctx-size";
    return memory;
  };
  const Model model = load_with_tokenizer(path, *backend, options.tokenizer_path,
                                          context.common.quiet, plan_session);
  log_debug("prompt ids" + listed(prompt.tokens));
  Session session(model, *backend, session_opts);
  log_info(load_line(model, session, session_opts, *backend));

  const uint64_t seed = options.seed >= 0 ? uint64_t(options.seed) : random_seed();
  generate_options.sampler.seed = seed;
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
    const double now = now_seconds();
    if (index > 0 && token.id >= 0) token_seconds.push_back(now - last);
    last = now;
    if (options.jsonl) context.out.line(token_json(token, index, model, logprobs));
    if (streamed) context.out.text(token.text);
    ++index;
  };
  start.loaded_seconds = start.seconds + now_seconds() - loading;
  const GenerateResult result = generate(session, prompt.tokens, generate_options, on_token);

  if (streamed) context.out.text("\n");
  if (context.common.json) {
    const std::optional<std::string> echo = options.echo ? std::optional(text) : std::nullopt;
    context.out.line(
        result_json(result, start, model, seed, options.device.activations, logprobs, echo));
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
  command.add_flag("--chat", options.chat, "The prompt is a user's turn in the chat template");
  command.add_text("--system", options.system, "TEXT", "System message of the chat; \"\": none");
  options.conversation.add_to(command);
  command.add_flag("--no-chat", options.no_chat,
                   "The prompt is plain text, though the model has a chat template", Show::More);
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
  command.add_text("-n,--predict,--n-predict,--max-new-tokens,--max_new_tokens", options.n_predict,
                   "N",
                   "Tokens to generate; -1: to the end of text or context, 0: the prompt only "
                   "[128; with --chat: to the end of the answer]");
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
