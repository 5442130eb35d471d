#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "models/chat/chat_messages.h"
#include "models/chat/chat_template.h"

namespace minfer {

// The conversation is longer than the context.
struct ConversationTooLong : Error {
  using Error::Error;
};

// A conversation with a model: messages in, tokens out. Every answer is what one prompt of all
// messages would give, but only tokens that the KV cache does not hold yet are evaluated: each
// prompt is rendered and tokenized whole, and the cache keeps the prefix that it has in common with
// what was evaluated before.
class Conversation {
 public:
  // The session is empty, and used by the conversation alone; it and the template outlive it.
  Conversation(Session& session, const ChatTemplate& chat_template, ChatOptions options = {});

  const std::vector<ChatMessage>& messages() const { return messages_; }
  void set_messages(std::vector<ChatMessage> messages) { messages_ = std::move(messages); }
  // The first message: put in front or replaced. An empty one means none, not even one that the
  // template has of its own. Throws Usage where it is not UTF-8.
  void set_system(const std::string& text);
  void remove_system();

  // Answers the messages as they are and adds the answer, unless the end was asked for before its
  // first token. Throws ConversationTooLong (Usage) where it outgrows the context, what the
  // template throws, and as generate() does.
  GenerateResult answer(const GenerateOptions& options, const OnToken& on_token);
  // Adds the user's message and the answer to it. Without an answer, and after an error, the
  // conversation is as before.
  GenerateResult ask(const std::string& text, const GenerateOptions& options,
                     const OnToken& on_token);
  // Answers the last message of the user's anew, in place of what follows it, which stays where
  // there is no answer. Throws Usage where there is no such message.
  GenerateResult regenerate(const GenerateOptions& options, const OnToken& on_token);

  // Takes back the last message of the user's and what follows it; false where there is none.
  bool undo();
  // Takes back all but the system message.
  void reset();

  int64_t cached_tokens() const { return session_.pos(); }
  int64_t context_size() const { return session_.max_seq_len(); }

 private:
  bool has_system() const;
  // One past the last message of the user's; 0: there is none.
  size_t end_of_question() const;
  GenerateResult generate_from(const ChatPrompt& prompt, const GenerateOptions& options,
                               const OnToken& on_token);

  Session& session_;
  const ChatTemplate& template_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
  std::vector<TokenId> cached_;  // what the session's cache holds
};

}  // namespace minfer
