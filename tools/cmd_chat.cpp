#include "tools/chat.h"
#include "tools/chat_file.h"
#include "tools/chat_options.h"
#include "tools/commands.h"
#include "tools/generate_report.h"
#include "tools/generation_options.h"
#include "tools/loading.h"
#include "tools/model_path.h"

namespace minfer {
namespace {

// The context without -c: that of a long conversation, where memory for a trained context of
// 131072 tokens would not be there.
constexpr int64_t kDefaultContext = 8192;

struct TalkOptions : GenerationOptions {
  std::optional<std::string> system;
  ChatCommandOptions conversation;
  bool special = false;
};

SessionOptions session_options(const TalkOptions& options, const Model& model) {
  const int64_t trained = model.spec.trained_seq_len;
  return {
      .max_seq_len = options.ctx_size > 0 ? options.ctx_size : std::min(trained, kDefaultContext),
      .prefill_chunk = options.batch_size,
      .kv_dtype = kv_dtype_by_name(options.kv_type, options.device)};
}

void run_chat(const TalkOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, options.device.tp != "mpi",
                 "--tp mpi: chat runs in one process; generate --messages goes on with a "
                 "conversation");
  options.conversation.check();
  check_generation_options(options, context.common.json);
  MINFER_REQUIRE(Usage, options.generate.n_logprobs == 0 || options.jsonl,
                 "--logprobs goes with --jsonl");
  MINFER_REQUIRE(Usage, options.conversation.messages != "-",
                 "--messages -: stdin is where the lines come from; name a file");
  ChatSettings settings{.generate = parsed_generate_options(options, -1),
                        .seed = chosen_seed(options),
                        .output = options.jsonl         ? ChatOutput::TokenObjects
                                  : context.common.json ? ChatOutput::OneObject
                                                        : ChatOutput::Text,
                        .activations = options.device.activations};
  settings.generate.show_special = options.special;
  const std::string path = find_model(options.model_path);
  OpenedModel opened = open_with_tokenizer(path, options.tokenizer_path);
  const std::unique_ptr<Backend> backend = make_backend_for(options.device, opened);
  const ChatTemplate chat_template =
      choose_chat_template(options.conversation.chat_template, *opened.model.tokenizer);
  SessionOptions session_opts = session_options(options, opened.model);
  use_drafts(options, *backend, settings.generate, session_opts);
  SessionMemory memory = session_memory(opened, *backend, session_opts);
  memory.context_option = "--ctx-size";
  const Model model = load_with_progress(std::move(opened), *backend, memory, context.common.quiet);
  std::optional<Progress> reading;
  session_opts.progress = [&reading](int64_t done, int64_t total) {
    if (reading) reading->update(done, total);
  };
  Session session(model, *backend, session_opts);
  log_info(load_line(session.executor(), session_opts));

  Conversation conversation(session, chat_template,
                            options.conversation.chat_options(options.special));
  if (options.conversation.messages) {
    conversation.set_messages(read_conversation(*options.conversation.messages));
  }
  if (options.system) conversation.set_system(*options.system);
  Chat(conversation, model, std::move(settings), context, reading).run(*make_line_reader());
}

}  // namespace

void add_chat_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<TalkOptions>();
  CommandNode& command =
      root.add_command("chat", "Talk with a model",
                       "  minfer chat\n"
                       "  minfer chat -m model.gguf --system \"Answer in one sentence.\"\n"
                       "  minfer chat --messages notes.json\n"
                       "  minfer chat --temp 0 <questions.txt >answers.txt",
                       [options, &context] { run_chat(*options, context); });
  add_model_options(command, *options);
  command.add_text("--system", options->system, "TEXT", "System message; \"\": none");
  options->conversation.add_to(command);
  command.add_flag("--special", options->special,
                   "Names of control tokens in messages are those tokens, and show in the output",
                   Show::More);
  add_output_options(command, *options, "to the end of the answer");
  add_sampling_options(command, *options);
  add_context_options(command, *options, "the trained one, at most 8192");
  command.need({"--logprobs"}, {"--jsonl"});
}

}  // namespace minfer
