#include "models/chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "models/chat_template.h"

namespace minfer {

ChatTemplate::ChatTemplate(const std::string& source) : source_(source) {}

ChatTemplate ChatTemplate::built_in(const std::string& name) {
  MINFER_REQUIRE(Usage, name == "chatml", "no built-in template ", shortened(name));
  return ChatTemplate("<|im_start|>");
}

std::vector<TextPart> ChatTemplate::render(const Tokenizer&, const std::string& messages,
                                           const ChatOptions& options) const {
  std::vector<TextPart> parts;
  const auto list = nlohmann::json::parse(messages);
  const bool system_first = !list.empty() && list[0].at("role") == "system";
  const std::string fallback = system_first ? "" : default_system_message(source_);
  if (!fallback.empty()) {
    parts.push_back({"<|im_start|>system\n" + fallback + "<|im_end|>\n", true});
  }
  for (const auto& message : list) {
    parts.push_back({"<|im_start|>" + message.at("role").get<std::string>() + "\n", true});
    parts.push_back({message.at("content").get<std::string>(), options.parse_special});
    parts.push_back({"<|im_end|>\n", true});
  }
  if (options.add_generation_prompt) parts.push_back({"<|im_start|>assistant\n", true});
  return parts;
}

ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            const std::string& messages, const ChatOptions& options) {
  const std::vector<TextPart> parts = chat_template.render(tokenizer, messages, options);
  return {tokenizer.encode(parts, false), tokenizer.end_ids()};
}

}  // namespace minfer
