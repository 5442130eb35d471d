#include "models/chat/chat_template.h"

#include "models/chat/built_in_templates.h"
#include "models/chat/parser.h"
#include "models/chat/run.h"

namespace minfer {
namespace {

using jinja::Kind;
using jinja::Value;

// A stretch of one origin is a part. Without special tokens of messages' own, theirs are plain.
std::vector<TextPart> parts_of(const jinja::Text& text, bool parse_special) {
  std::vector<TextPart> parts;
  bool own = text.starts_own;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    const bool special = own || parse_special;
    const std::string_view bytes = std::string_view(text.bytes).substr(begin, end - begin);
    if (!parts.empty() && parts.back().parse_special == special)
      parts.back().text += bytes;
    else if (!bytes.empty())
      parts.push_back({std::string(bytes), special});
    begin = end;
    own = !own;
  };
  for (const uint32_t flip : text.flips) add(flip);
  add(text.bytes.size());
  return parts;
}

void set_token(jinja::Run& run, const char* name, const Tokenizer& tokenizer, TokenId id) {
  if (id >= 0) run.set_variable(name, run.text(tokenizer.piece(id)));
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::TemplateTree tree;
};

ChatTemplate::ChatTemplate(const std::string& source) {
  constexpr size_t kMaxSourceBytes = 1 << 20;
  MINFER_REQUIRE(Input, source.size() <= kMaxSourceBytes, "the chat template has more than ",
                 kMaxSourceBytes >> 20, " MB");
  auto parsed = std::make_shared<Parsed>();
  parsed->tree.body = jinja::Parser(source).parse_all();
  jinja::resolve_scopes(parsed->tree);
  parsed_ = std::move(parsed);
}

ChatTemplate ChatTemplate::built_in(const std::string& name) {
  return ChatTemplate(built_in_template(name));
}

std::vector<TextPart> ChatTemplate::render(const Tokenizer& tokenizer, const std::string& messages,
                                           const ChatOptions& options) const {
  jinja::Meter meter;  // outlives all values
  jinja::Run run(parsed_->tree, meter);
  Value list = parse_json(meter, "the list of messages", messages, false, true);
  MINFER_REQUIRE(Input, list.is(Kind::List), "the messages are not a JSON list");
  for (const Value& message : list.as<jinja::List>().items) {
    MINFER_REQUIRE(Input, message.is(Kind::Dict), "a message is not a JSON object");
    MINFER_REQUIRE(Input, message.as<jinja::Dict>().find("role") != nullptr,
                   "a message has no \"role\"");
  }
  run.set_variable("messages", std::move(list));
  run.set_variable("tools", Value::none());
  run.set_variable("documents", Value::none());
  run.set_variable("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  set_token(run, "bos_token", tokenizer, tokenizer.bos());
  set_token(run, "eos_token", tokenizer, tokenizer.eos());
  for (const auto& [name, json] : options.variables) {
    const std::string what = cat("the template variable ", shortened(name));
    run.set_variable(name, parse_json(meter, what, json, false));
  }
  meter.exempt_input();
  return parts_of(run.render(), options.parse_special);
}

ChatPrompt make_chat_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                            const std::string& messages, const ChatOptions& options) {
  const std::vector<TextPart> parts = chat_template.render(tokenizer, messages, options);
  return {tokenizer.encode(parts, false), tokenizer.end_ids()};
}

}  // namespace minfer
