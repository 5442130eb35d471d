#include "engine/conversation.h"

#include <algorithm>
#include <utility>

namespace minfer {

Conversation::Conversation(Session& session, const ChatTemplate& chat_template, ChatOptions options)
    : session_(session), template_(chat_template), options_(std::move(options)) {
  MINFER_CHECK(session.pos() == 0, "a conversation in a session of ", session.pos(), " tokens");
  MINFER_REQUIRE(Input, session.model().tokenizer != nullptr, "the model has no tokenizer");
}

bool Conversation::has_system() const {
  return !messages_.empty() && messages_.front().role == "system";
}

void Conversation::set_system(const std::string& text) {
  ChatMessage message = chat_message("system", text);
  remove_system();
  messages_.insert(messages_.begin(), std::move(message));
}

void Conversation::remove_system() {
  if (has_system()) messages_.erase(messages_.begin());
}

size_t Conversation::end_of_question() const {
  size_t end = messages_.size();
  while (end > 0 && messages_[end - 1].role != "user") --end;
  return end;
}

GenerateResult Conversation::answer(const GenerateOptions& options, const OnToken& on_token) {
  const ChatPrompt prompt =
      make_chat_prompt(*session_.model().tokenizer, template_, messages_, options_);
  if (std::ssize(prompt.tokens) > context_size()) {
    throw ConversationTooLong(ErrorKind::Usage, cat("the conversation has ", prompt.tokens.size(),
                                                    " tokens, the context holds ", context_size()));
  }
  MINFER_REQUIRE(Usage, !prompt.tokens.empty(), "the chat template writes nothing");
  GenerateResult result = generate_from(prompt, options, on_token);
  const bool none = result.stop_reason == StopReason::Interrupted && result.tokens.empty();
  if (!none) messages_.push_back(chat_message("assistant", result.text));
  return result;
}

GenerateResult Conversation::ask(const std::string& text, const GenerateOptions& options,
                                 const OnToken& on_token) {
  messages_.push_back(chat_message("user", text));
  const size_t n_messages = messages_.size();
  try {
    GenerateResult result = answer(options, on_token);
    if (messages_.size() == n_messages) messages_.pop_back();
    return result;
  } catch (...) {
    messages_.pop_back();
    throw;
  }
}

GenerateResult Conversation::regenerate(const GenerateOptions& options, const OnToken& on_token) {
  const size_t end = end_of_question();
  MINFER_REQUIRE(Usage, end > 0, "there is no message of a user's to answer");
  std::vector<ChatMessage> before = messages_;
  messages_.resize(end);
  try {
    GenerateResult result = answer(options, on_token);
    if (messages_.size() == end) messages_ = std::move(before);
    return result;
  } catch (...) {
    messages_ = std::move(before);
    throw;
  }
}

bool Conversation::undo() {
  const size_t end = end_of_question();
  if (end > 0) messages_.resize(end - 1);
  return end > 0;
}

void Conversation::reset() { messages_.resize(has_system() ? 1 : 0); }

GenerateResult Conversation::generate_from(const ChatPrompt& prompt, const GenerateOptions& options,
                                           const OnToken& on_token) {
  const std::vector<TokenId>& tokens = prompt.tokens;
  // The last token is evaluated even if it is cached: its logits give the answer's first token.
  const auto reusable = std::ssize(tokens) - 1;
  const auto different = std::ranges::mismatch(cached_, std::span(tokens).first(size_t(reusable)));
  session_.truncate(different.in1 - cached_.begin());

  GenerateOptions with_end_ids = options;
  with_end_ids.end_ids.insert(with_end_ids.end_ids.end(), prompt.end_ids.begin(),
                              prompt.end_ids.end());
  cached_ = tokens;
  try {
    GenerateResult result = generate(session_, tokens, with_end_ids, on_token);
    cached_.insert(cached_.end(), result.tokens.begin(), result.tokens.end());
    cached_.resize(static_cast<size_t>(session_.pos()));
    return result;
  } catch (...) {
    session_.truncate(std::min(session_.pos(), std::ssize(tokens)));
    cached_.resize(static_cast<size_t>(session_.pos()));
    throw;
  }
}

}  // namespace minfer
