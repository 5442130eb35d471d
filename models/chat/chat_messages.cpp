#include "models/chat/chat_messages.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/utf8.h"
#include "loaders/strict_json.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

ChatMessage message_of(const Json& value, size_t index) {
  MINFER_REQUIRE(Input, value.is_object(), "message ", index, " is no object");
  const auto role = value.find("role");
  MINFER_REQUIRE(Input, role != value.end() && role->is_string(), "message ", index,
                 " has no \"role\" that is a text");
  return {role->get<std::string>(), value.dump()};
}

}  // namespace

ChatMessage chat_message(const std::string& role, std::string_view content) {
  MINFER_REQUIRE(Usage, is_utf8(content), "the message is not UTF-8");
  return {role, Json{{"role", role}, {"content", content}}.dump()};
}

std::optional<std::string> text_of(const ChatMessage& message) {
  const Json value = Json::parse(message.json);
  const auto content = value.find("content");
  if (content == value.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

std::vector<ChatMessage> parse_chat_messages(std::string_view json) {
  parse_strict_json(json);  // for its limits; its objects do not keep the order of their keys
  const Json list = Json::parse(json);
  MINFER_REQUIRE(Input, list.is_array(),
                 "expected a list of messages, [{\"role\": ..., \"content\": ...}, ...]");
  std::vector<ChatMessage> messages;
  for (const Json& value : list) messages.push_back(message_of(value, messages.size()));
  return messages;
}

std::string chat_messages_json(std::span<const ChatMessage> messages) {
  std::string text = "[";
  for (const ChatMessage& message : messages) {
    text += (text.size() > 1 ? ",\n  " : "\n  ") + message.json;
  }
  return text + "\n]\n";
}

ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            std::span<const ChatMessage> messages, const ChatOptions& options) {
  const auto prompt_of = [&](std::span<const ChatMessage> list) {
    return make_chat_prompt(tokenizer, chat_template, chat_messages_json(list), options);
  };
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (!has_system || text_of(messages.front()) != "") return prompt_of(messages);
  ChatPrompt without = prompt_of(messages.subspan(1));
  try {
    ChatPrompt emptied = prompt_of(messages);
    return emptied.tokens.size() < without.tokens.size() ? emptied : without;
  } catch (const Error&) {
    return without;  // the template takes no system message, and so has none of its own
  }
}

}  // namespace minfer
