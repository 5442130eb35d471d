#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "models/chat/chat_messages.h"
#include "models/chat/chat_template.h"

namespace minfer {

// Says that a conversation is longer than the context.
struct ConversationTooLong : Error {
  using Error::Error;
};

// A conversation with a model. Each answer is generated from one prompt of all messages, which is
// rendered and tokenized whole. The KV cache keeps the longest prefix that the prompt has in common
// with the tokens evaluated before, and only the tokens after that prefix are evaluated.
class Conversation {
 public:
  // The session must be empty, and only the conversation may use it. The session and the template
  // must outlive the conversation.
  Conversation(Session& session, const ChatTemplate& chat_template, ChatOptions options = {});

  const std::vector<ChatMessage>& messages() const { return messages_; }
  void set_messages(std::vector<ChatMessage> messages) { messages_ = std::move(messages); }
  // Sets the system message: inserts it as the first message, or replaces it. An empty text means
  // no system message, not even the template's own. Throws Usage if the text is not UTF-8.
  void set_system(const std::string& text);
  void remove_system();

  // Generates an answer to the messages and appends it, unless generation was interrupted before
  // its first token. Throws ConversationTooLong (Usage) if the prompt is longer than the context,
  // and whatever the template and generate() throw.
  GenerateResult answer(const GenerateOptions& options, const OnToken& on_token);
  // Appends the user's message and the answer to it. If there is no answer, or after an error, the
  // messages are as before.
  GenerateResult ask(const std::string& text, const GenerateOptions& options,
                     const OnToken& on_token);
  // Generates a new answer to the last user message, which replaces everything after that message.
  // If there is no answer, or after an error, the messages are as before. Throws Usage if there is
  // no user message.
  GenerateResult regenerate(const GenerateOptions& options, const OnToken& on_token);

  // Removes the last user message and everything after it; returns false if there is none.
  bool undo();
  // Removes all messages except the system message.
  void reset();

  int64_t cached_tokens() const { return session_.pos(); }
  int64_t context_size() const { return session_.max_seq_len(); }

 private:
  bool has_system() const;
  // Returns the index after the last user message, or 0 if there is none.
  size_t end_of_question() const;
  GenerateResult generate_from(const ChatPrompt& prompt, const GenerateOptions& options,
                               const OnToken& on_token);

  Session& session_;
  const ChatTemplate& template_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
  std::vector<TokenId> cached_;  // the tokens that the session's cache holds
};

}  // namespace minfer
