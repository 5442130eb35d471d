#include <algorithm>

#include "models/chat/chat_messages.h"
#include "tools/commands.h"
#include "tools/generate_command.h"
#include "tools/generate_report.h"
#include "tools/id_tokenizer.h"
#include "tools/loading.h"
#include "tools/log.h"
#include "tools/model_path.h"
#include "tools/mpi_ranks.h"
#include "tools/process.h"
#include "tools/progress.h"

namespace minfer {
namespace {

// An answer ends where the model ends it, and its context is made for this many tokens at most: the
// KV cache of all that a model was trained for can be larger than the model.
constexpr int64_t kMaxAnswerTokens = 8192;

void check_prompts_options(const GenerateCommandOptions& options) {
  const TextOptions& prompt = options.prompt;
  if (!options.prompts) {
    MINFER_REQUIRE(Usage, !options.n_parallel, "--parallel goes with --prompts");
    return;
  }
  const bool has_prompt = prompt.positional || prompt.option || prompt.file || options.prompt_ids ||
                          options.conversation.messages;
  MINFER_REQUIRE(Usage, !has_prompt, "--prompts takes the place of any other prompt");
  MINFER_REQUIRE(Usage, options.draft == "none",
                 "--draft goes with one prompt: --prompts evaluates several texts at once");
  MINFER_REQUIRE(Usage, !options.jsonl && !options.echo,
                 "--prompts prints one JSON object a text: --jsonl and --echo go with one prompt");
}

// What the options say that cannot be, before a model is read.
void check(const GenerateCommandOptions& options, const Context& context) {
  const ChatCommandOptions& conversation = options.conversation;
  conversation.check();
  MINFER_REQUIRE(Usage, !(options.is_chat() && options.no_chat),
                 "--no-chat excludes --chat and --messages");
  // Of --prompts, the lines say what they are.
  MINFER_REQUIRE(Usage, options.is_chat() || options.prompts || !options.has_chat_options(),
                 "--system, --chat-template and --template-var go with --chat or --messages");
  const bool has_text = options.prompt.positional || options.prompt.option || options.prompt.file;
  MINFER_REQUIRE(Usage, !options.prompt_ids || (!has_text && !options.is_chat()),
                 "--prompt-ids takes the place of a prompt, of --chat and of --messages");
  check_prompts_options(options);
  check_generation_options(options, context.common.json || options.prompts);
}

std::string read_prompt(const TextOptions& options) {
  std::optional<std::string> text = read_text_options(options);
  MINFER_REQUIRE(Usage, text,
                 "no prompt: give it as an argument, with -p, with -f FILE or by a pipe");
  bool typed = options.positional || options.option;
  std::optional<size_t> n_typed;  // bytes in front of those of stdin
  // mpirun's stdin is no terminal for rank 0, even if it is one for the user: no one would end it.
  if (typed && mpi_process() == nullptr) {
    if (const std::optional<std::string> piped = piped_text()) {
      n_typed = text->size() + 1;
      *text += '\n' + *piped;
      typed = false;
    }
  }
  // The newline that ends a file is the editor's or echo's and not the prompt's.
  if (!typed && text->ends_with('\n')) text->pop_back();
  if (n_typed) log_info(cat(text->size() - *n_typed, " bytes of stdin are put behind the prompt"));
  return *std::move(text);
}

// The conversation so far, with the prompt as one more turn of the user's if there is one.
std::string read_conversation(const GenerateCommandOptions& options) {
  const TextOptions& prompt = options.prompt;
  const std::string text = read_text(*options.conversation.messages);
  if (!prompt.positional && !prompt.option && !prompt.file) return text;
  MINFER_REQUIRE(Usage, !(prompt.file == "-" && options.conversation.messages == "-"),
                 "stdin cannot be both the messages and the prompt");
  std::vector<ChatMessage> messages = parse_chat_messages(text);
  messages.push_back(chat_message("user", read_prompt(prompt)));
  return chat_messages_json(messages);
}

// The prompt as the one turn of a conversation, behind --system if that is there.
std::vector<ChatMessage> turn_of(const GenerateCommandOptions& options, const std::string& text) {
  std::vector<ChatMessage> messages;
  if (options.system) messages.push_back(chat_message("system", *options.system));
  messages.push_back(chat_message("user", text));
  return messages;
}

std::string listed(const std::vector<TokenId>& ids) {
  std::string list;
  for (TokenId id : ids) list += cat(' ', id);
  return list;
}

ChatPrompt without_bos(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                       ChatPrompt prompt) {
  const bool bos_first = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos();
  if (options.no_bos && bos_first) prompt.tokens.erase(prompt.tokens.begin());
  MINFER_REQUIRE(Usage, !prompt.tokens.empty(),
                 "the prompt is empty and the model begins with no token of its own");
  return prompt;
}

void run_generate(const GenerateCommandOptions& options, Context& context) {
  check(options, context);
  join_mpi_ranks(options.device, context);
  if (options.prompts) return run_generate_prompts(options, context);
  GenerateOptions generate_options =
      parsed_generate_options(options, options.is_chat() ? -1 : kDefaultPredict);
  const std::string path = find_model(options.model_path);
  // With token ids as the prompt a model needs no tokenizer: it answers in ids.
  OpenedModel opened = options.prompt_ids ? open_model(path, options.tokenizer_path)
                                          : open_with_tokenizer(path, options.tokenizer_path);
  if (!opened.model.tokenizer) {
    opened.model.tokenizer = make_id_tokenizer(opened.model.spec.vocab_size);
  }
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, opened);
  StartTimes start{.seconds = now_seconds() - context.started - opened.seconds};
  const std::string text = options.prompt_ids              ? *options.prompt_ids
                           : options.conversation.messages ? read_conversation(options)
                                                           : read_prompt(options.prompt);
  const double loading = now_seconds() - opened.seconds;
  ChatPrompt prompt;
  if (options.prompt_ids) {
    prompt.tokens = parse_token_ids("--prompt-ids", text, opened.model.spec.vocab_size);
    MINFER_REQUIRE(Usage, !prompt.tokens.empty(), "--prompt-ids: no ids");
  } else {
    const Tokenizer& tokenizer = *opened.model.tokenizer;
    prompt = options.conversation.messages ? prompt_of_messages(options, tokenizer, text)
                                           : prompt_of_text(options, tokenizer, text);
    tell_of_chat_template(options, tokenizer);
  }
  // The KV cache holds what this run can need and no more.
  SessionOptions session_opts = {
      .max_seq_len = needed_positions(options, opened.model.spec, std::ssize(prompt.tokens),
                                      generate_options.n_predict),
      .prefill_chunk = options.batch_size,
      .kv_dtype = kv_dtype_by_name(options.kv_type, options.device)};
  use_drafts(options, *backend, generate_options, session_opts);
  SessionMemory memory = session_memory(opened, *backend, session_opts);
  memory.context_option = "--ctx-size";
  const Model model = load_with_progress(std::move(opened), *backend, memory, context.common.quiet);
  log_debug("prompt ids" + listed(prompt.tokens));
  Progress reading("reading the prompt", context.common.quiet);
  session_opts.progress = reading.callback();
  Session session(model, *backend, session_opts);
  log_info(load_line(session.executor(), session_opts));

  const std::optional<uint64_t> seed = chosen_seed(options);
  generate_options.sampler.seed = seed.value_or(0);
  generate_options.end_ids = prompt.end_ids;
  generate_options.show_special = options.special;

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
  options.conversation.add_to(command);
  command.add_text(
      "--prompts", options.prompts, "FILE",
      "A prompt a line: a JSON object with \"prompt\", \"prompt_ids\" or \"messages\", "
      "and, as wished, \"id\", \"n\" and sampling options; an object a text comes out, "
      "in the order in which they end. -: stdin");
  command.add_integer("--parallel", options.n_parallel, 1, 4096, "Texts of --prompts at once [8]");
  command.add_flag("--no-chat", options.no_chat,
                   "The prompt is plain text, though the model has a chat template", Show::More);
  command.add_flag("--special", options.special,
                   "Names of control tokens in the prompt are those tokens, and show in the output",
                   Show::More);
  command.add_flag("--no-bos", options.no_bos, "No BOS token before the prompt", Show::More);
  command.exclude({"PROMPT"}, {"--prompt", "--file"});
  command.exclude({"--prompt"}, {"--file"});
  command.exclude({"--prompt-ids"}, {"PROMPT", "--prompt", "--file", "--chat", "--messages"});
  command.exclude({"--no-chat"}, {"--chat", "--messages"});
  command.need({"--system", "--chat-template", "--template-var"},
               {"--chat", "--messages", "--prompts"});
  command.need({"--parallel"}, {"--prompts"});
}

}  // namespace

void tell_of_chat_template(const GenerateCommandOptions& options, const Tokenizer& tokenizer) {
  if (options.is_chat() || options.no_chat || tokenizer.chat_template().empty()) return;
  log_info(
      "the model has a chat template: --chat puts the prompt into it, --no-chat is quiet about it");
}

ChatPrompt prompt_of_text(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                          const std::string& text) {
  if (options.chat) {
    const ChatTemplate chosen = choose_chat_template(options.conversation.chat_template, tokenizer);
    const ChatOptions chat_options = options.conversation.chat_options(options.special);
    return without_bos(options, tokenizer,
                       make_chat_prompt(tokenizer, chosen, turn_of(options, text), chat_options));
  }
  ChatPrompt prompt;
  prompt.tokens =
      tokenizer.encode(text, {.add_bos = !options.no_bos, .parse_special = options.special});
  return without_bos(options, tokenizer, std::move(prompt));
}

ChatPrompt prompt_of_messages(const GenerateCommandOptions& options, const Tokenizer& tokenizer,
                              const std::string& given) {
  const ChatTemplate chosen = choose_chat_template(options.conversation.chat_template, tokenizer);
  const ChatOptions chat_options = options.conversation.chat_options(options.special);
  if (!options.system) {
    return without_bos(options, tokenizer,
                       make_chat_prompt(tokenizer, chosen, given, chat_options));
  }
  std::vector<ChatMessage> messages = parse_chat_messages(given);
  if (!messages.empty() && messages.front().role == "system") messages.erase(messages.begin());
  messages.insert(messages.begin(), chat_message("system", *options.system));
  return without_bos(options, tokenizer,
                     make_chat_prompt(tokenizer, chosen, messages, chat_options));
}

int64_t needed_positions(const GenerateCommandOptions& options, const ModelSpec& spec,
                         int64_t n_prompt, int64_t n_predict) {
  const int64_t trained = spec.trained_seq_len;
  MINFER_REQUIRE(Usage, options.ctx_size <= trained, "--ctx-size ", options.ctx_size,
                 " is past the trained context of ", trained, " tokens");
  const int64_t limit = options.ctx_size > 0 ? options.ctx_size : trained;
  MINFER_REQUIRE(Usage, n_prompt <= limit, "the prompt has ", n_prompt,
                 " tokens, the context holds ", limit);
  if (options.is_chat() && !options.n_predict) n_predict = kMaxAnswerTokens;
  const bool bounded = options.ctx_size == 0 && n_predict >= 0;
  return bounded ? std::min(limit, n_prompt + n_predict) : limit;
}

void add_generate_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CommandNode& command =
      root.add_command("generate", "Continue a text, or answer a question",
                       "  minfer generate \"Once upon a time\" -n 64\n"
                       "  minfer generate -m smollm2 --chat \"Why is the sky blue?\"\n"
                       "  minfer generate -m model.gguf --temp 0 --json -f prompt.txt\n"
                       "  minfer generate -m stories.bin --tokenizer tokenizer.bin -p \"\"\n"
                       "  minfer generate -m smollm2 --chat --prompts questions.jsonl",
                       [options, &context] { run_generate(*options, context); });
  add_model_options(command, *options);
  add_prompt_options(command, *options);
  command.add_flag("--echo", options->echo, "Print the prompt as well", Show::More);
  add_output_options(command, *options, "128; with --chat: to the end of the answer");
  add_sampling_options(command, *options);
  add_context_options(command, *options, "what prompt and -n need, within the trained one");
  command.exclude({"--prompts"}, {"PROMPT", "--prompt", "--file", "--prompt-ids", "--messages",
                                  "--jsonl", "--echo", "--draft=lookup"});
  command.need({"--logprobs"}, {"--json", "--jsonl", "--prompts"});
}

}  // namespace minfer
