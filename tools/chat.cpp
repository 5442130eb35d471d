#include "tools/chat.h"

#include <csignal>
#include <cstdio>

#include "tools/chat_file.h"
#include "tools/generate_report.h"
#include "tools/option_hints.h"
#include "tools/process.h"

namespace minfer {

struct Chat::Command {
  const char* name;
  const char* argument;  // empty: it takes none
  const char* help;
  void (Chat::*run)(const std::string& argument);  // null: leaves
};

const std::vector<Chat::Command>& Chat::commands() {
  static const std::vector<Command> kCommands = {
      {"system", "TEXT", "Sets or replaces the system message; without TEXT shows it",
       &Chat::set_system},
      {"reset", "", "Takes back all messages but the system message", &Chat::reset},
      {"undo", "", "Takes back your last message and its answer", &Chat::undo},
      {"regenerate", "", "Answers your last message anew", &Chat::regenerate},
      {"save", "FILE.json", "Writes the conversation to FILE.json", &Chat::save},
      {"load", "FILE.json", "Goes on with the conversation in FILE.json", &Chat::load},
      {"stats", "", "Tokens evaluated, reused and generated, and their speed", &Chat::stats},
      {"help", "", "This list", &Chat::help},
      {"exit", "", "Leaves; Ctrl-D does too", nullptr}};
  return kCommands;
}

Chat::Chat(Conversation& conversation, const Model& model, ChatSettings settings, Context& context,
           std::optional<Progress>& reading)
    : conversation_(conversation),
      model_(model),
      settings_(std::move(settings)),
      context_(context),
      reading_(reading) {}

void Chat::run(LineReader& reader) {
  const auto print_object = [&] {
    if (settings_.output != ChatOutput::OneObject) return;
    context_.out.line(chat_json(conversation_, turns_, model_, settings_.activations));
  };
  try {
    converse(reader);
  } catch (const Interrupted&) {  // what was said is not lost
    print_object();
    throw;
  }
  print_object();
  if (n_failures_ > 0 && !is_interactive_) {
    throw Error(first_failure_, cat(n_failures_, " of the lines could not be answered"));
  }
}

void Chat::converse(LineReader& reader) {
  keep_running_on_interrupt();
  Tokenizer::cancel_by(nullptr);  // Ctrl-C ends an answer, and no more
  is_interactive_ = reader.is_interactive();
  if (is_interactive_) log_info("/help lists the commands, Ctrl-D leaves");
  bool leaving = false;  // at the next Ctrl-C
  while (true) {
    const ChatInput input = read_chat_input(reader);
    if (input.kind == ChatInput::Kind::Interrupt) {
      take_interrupt();
      if (leaving || !is_interactive_) throw Interrupted(SIGINT);
      leaving = true;
      log_info("Ctrl-C once more, or Ctrl-D, leaves");
      continue;
    }
    leaving = false;
    if (!take(input)) return;
  }
}

bool Chat::take(const ChatInput& input) {
  if (input.kind == ChatInput::Kind::EndOfInput) return false;
  try {
    if (input.kind == ChatInput::Kind::Command) return carry_out(input);
    answer([&](const GenerateOptions& options, const OnToken& on_token) {
      return conversation_.ask(input.text, options, on_token);
    });
  } catch (const ConversationTooLong& e) {
    fail(e.kind(), cat(e.what(), "; /save FILE.json keeps it, /undo and /reset make room"));
  } catch (const Error& e) {
    // Memory, a card, stdout that cannot be written or a bug: there is nothing to go on with.
    const bool goes_on = e.kind() == ErrorKind::Usage || e.kind() == ErrorKind::Input ||
                         e.kind() == ErrorKind::Numeric;
    if (!goes_on) throw;
    fail(e.kind(), e.what());
  }
  return true;
}

bool Chat::carry_out(const ChatInput& input) {
  for (const Command& command : commands()) {
    if (input.text != command.name) continue;
    const bool takes_argument = *command.argument != '\0';
    MINFER_REQUIRE(Usage, takes_argument || input.argument.empty(), "/", command.name,
                   " takes nothing behind it");
    if (command.run == nullptr) return false;
    (this->*command.run)(input.argument);
    return true;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(cat("/", command.name));
  const std::string given = "/" + input.text, meant = nearest(given, names);
  throw Error(
      ErrorKind::Usage,
      cat("no command ", shortened(given), meant.empty() ? "" : cat(", did you mean ", meant, "?"),
          " (/help lists them; a message that begins with / stands between \"\"\")"));
}

void Chat::fail(ErrorKind kind, const std::string& message) {
  if (reading_) reading_->clear();
  log_error(shortened(message, 2000));
  if (n_failures_++ == 0) first_failure_ = kind;
}

// What a command answers: also with --quiet.
void Chat::say(const std::string& text) const {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

template <typename F>
void Chat::answer(const F& generate) {
  GenerateOptions options = settings_.generate;
  std::optional<uint64_t> seed = settings_.seed;
  if (seed) options.sampler.seed = *seed += turns_.size();
  reading_.emplace("reading", context_.common.quiet);
  n_shown_ = 0;
  GenerateResult result = generate(options, [this](const GeneratedToken& token) { show(token); });
  reading_.reset();
  turns_.push_back({std::move(result), seed});
  finish(turns_.back().result);
  take_answers_interrupt();
}

// Lines of a file follow at once: there is no prompt at which to leave.
void Chat::take_answers_interrupt() {
  if (!take_interrupt()) return;
  const double now = now_seconds();
  if (!is_interactive_ && now - last_interrupt_ < 1) throw Interrupted(SIGINT);
  last_interrupt_ = now;
}

void Chat::show(const GeneratedToken& token) {
  if (reading_) reading_->clear();
  if (settings_.output == ChatOutput::Text) context_.out.text(token.text);
  if (settings_.output == ChatOutput::TokenObjects) {
    context_.out.line(token_json(token, n_shown_, model_, settings_.generate.n_logprobs > 0));
  }
  ++n_shown_;
}

void Chat::finish(const GenerateResult& result) {
  const bool unanswered = result.stop_reason == StopReason::Interrupted && result.tokens.empty();
  if (settings_.output == ChatOutput::TokenObjects)
    context_.out.line(turn_json_line(turns_.back()));
  if (settings_.output == ChatOutput::Text && !unanswered) context_.out.text("\n");
  if (unanswered) log_info("interrupted before the answer began: the message is taken back");
  if (result.stop_reason == StopReason::Context) {
    log_warning(cat("the answer ends here: the conversation has ",
                    result.prompt_tokens + std::ssize(result.tokens), " tokens, the context holds ",
                    conversation_.context_size(),
                    "; /save FILE.json keeps it, /undo and /reset make room"));
  }
  log_debug(finish_line(result, {}, model_, turns_.back().seed));
}

void Chat::set_system(const std::string& text) {
  constexpr const char* kEmpty = "\"\"";
  if (!text.empty()) return conversation_.set_system(text == kEmpty ? "" : text);
  const auto& messages = conversation_.messages();
  const bool has = !messages.empty() && messages.front().role == "system";
  say((has ? text_of(messages.front()).value_or(messages.front().json) : "no system message") +
      "\n");
}

void Chat::reset(const std::string&) { conversation_.reset(); }

void Chat::undo(const std::string&) {
  MINFER_REQUIRE(Usage, conversation_.undo(), "there is no message of yours to take back");
}

void Chat::regenerate(const std::string&) {
  answer([&](const GenerateOptions& options, const OnToken& on_token) {
    return conversation_.regenerate(options, on_token);
  });
}

void Chat::save(const std::string& path) {
  try {
    write_conversation(path, conversation_.messages());
    log_info(cat("saved ", conversation_.messages().size(), " messages"));
  } catch (const Error& e) {
    fail(e.kind(), e.what());
  }
}

void Chat::load(const std::string& path) {
  try {
    conversation_.set_messages(read_conversation(path));
    log_info(cat("loaded ", conversation_.messages().size(), " messages"));
  } catch (const Error& e) {
    fail(e.kind(), e.what());
  }
}

void Chat::stats(const std::string&) { say(stats_text(conversation_, turns_)); }

void Chat::help(const std::string&) {
  std::string text;
  for (const Command& command : commands()) {
    const std::string left = cat("/", command.name, " ", command.argument);
    text += left + std::string(20 - left.size(), ' ') + command.help + "\n";
  }
  say(text +
      "A line that ends with \\ goes on in the next one; \"\"\" begins and ends several lines.\n"
      "Ctrl-C ends an answer.\n");
}

}  // namespace minfer
