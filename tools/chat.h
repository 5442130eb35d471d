#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/conversation.h"
#include "tools/chat_input.h"
#include "tools/chat_report.h"
#include "tools/commands.h"

namespace minfer {

// What stdout gets: the text of the answers, an object a token and one an answer, or one object of
// the whole conversation.
enum class ChatOutput { Text, TokenObjects, OneObject };

struct ChatSettings {
  GenerateOptions generate;
  std::optional<uint64_t> seed;  // of the first answer, if it draws; each further one has the next
  ChatOutput output = ChatOutput::Text;
  std::string activations;
};

// A conversation by lines: messages are answered on stdout, commands are carried out, and what is
// said about either goes to stderr. An answer that cannot be given and a command that fails are one
// line there, and the conversation goes on.
class Chat {
 public:
  // `reading`: the progress of the prompt; each answer has one of its own.
  Chat(Conversation& conversation, const Model& model, ChatSettings settings, Context& context,
       std::optional<Progress>& reading);

  // Until /exit, the end of the input or, at a prompt, Ctrl-C twice (Interrupted). Without a person
  // at the terminal, once at a prompt or twice within a second is enough, and an error of the first
  // failure's kind is thrown at the end.
  void run(LineReader& reader);

 private:
  struct Command;
  static const std::vector<Command>& commands();

  void converse(LineReader& reader);
  bool take(const ChatInput& input);  // false: leaves
  bool carry_out(const ChatInput& input);
  void fail(ErrorKind kind, const std::string& message);
  void say(const std::string& text) const;

  template <typename F>
  void answer(const F& generate);
  void show(const GeneratedToken& token);
  void finish(const GenerateResult& result);
  void take_answers_interrupt();

  void set_system(const std::string& text);
  void reset(const std::string&);
  void undo(const std::string&);
  void regenerate(const std::string&);
  void save(const std::string& path);
  void load(const std::string& path);
  void stats(const std::string&);
  void help(const std::string&);

  Conversation& conversation_;
  const Model& model_;
  ChatSettings settings_;
  Context& context_;
  std::optional<Progress>& reading_;
  std::vector<ChatTurn> turns_;
  bool is_interactive_ = false;
  double last_interrupt_ = -1e9;  // of an answer; in seconds
  int64_t n_shown_ = 0;           // tokens of the answer
  int64_t n_failures_ = 0;
  ErrorKind first_failure_ = ErrorKind::Internal;
};

}  // namespace minfer
