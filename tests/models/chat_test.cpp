#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/chat/chat_template.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;

const std::vector<std::string> kControl = {
    "<s>",        "</s>",       "<|im_start|>",        "<|im_end|>", "<|user|>",
    "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"};

std::unique_ptr<Tokenizer> tokenizer() {
  return make_gguf_tokenizer(test::byte_vocabulary(kControl));
}

std::string messages_of(const std::string& user, const json& system = nullptr) {
  json messages = json::array();
  if (!system.is_null()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  return messages.dump();
}

std::vector<TokenId> tokens_of(const Tokenizer& with, const ChatTemplate& chat_template,
                               const std::string& messages, bool parse_special = false) {
  return make_chat_prompt(with, chat_template, messages, {.variables = {}, .parse_special = parse_special}).tokens;
}

// Texts and templates as scripts/make_chat_fixtures.py has written them.
TEST(Chat, WritesWhatTheTemplatesWrite) {
  const json cases = json::parse(test::read_file(test::fixtures_dir() / "chat_prompts.json"));
  const auto with = tokenizer();
  for (const json& c : cases) {
    const ChatTemplate chat_template(c.at("template").get<std::string>());
    for (const json& prompt : c.at("prompts")) {
      const std::string user = prompt.at("user"), text = prompt.at("text");
      const std::string messages = messages_of(user, prompt.at("system"));
      const auto plain = tokens_of(*with, chat_template, messages);
      EXPECT_EQ(with->decode(plain, true), text) << c.at("name");
      // With control tokens of the user's taken for such, the ids are those of the whole text.
      const auto parsed = tokens_of(*with, chat_template, messages, true);
      const auto whole = with->encode(text, {.add_bos = false, .parse_special = true});
      EXPECT_EQ(parsed, whole) << c.at("name") << ": " << text;
      if (user.find("</s>") == user.npos)
        EXPECT_EQ(plain, whole);
      else
        EXPECT_GT(plain.size(), whole.size());
    }
  }
}

TEST(Chat, BuiltInTemplates) {
  const auto with = tokenizer();
  const auto text = [&](const char* name, const json& messages) {
    return with->decode(tokens_of(*with, ChatTemplate::built_in(name), messages.dump()), true);
  };
  const json one = {{{"role", "system"}, {"content", "sys"}}, {{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(text("chatml", one),
            "<|im_start|>system\nsys<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(text("llama2", one), "<s>[INST] <<SYS>>\nsys\n<</SYS>>\n\nhi [/INST]");
  EXPECT_EQ(text("llama3", one),
            "<s><|start_header_id|>system<|end_header_id|>\n\nsys<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(text("zephyr", one), "<|system|>\nsys</s>\n<|user|>\nhi</s>\n<|assistant|>\n");
  EXPECT_EQ(text("mistral", one), "<s>[INST] sys\n\nhi [/INST]");
  const json more = {{{"role", "system"}, {"content", ""}},
                     {{"role", "user"}, {"content", "a"}},
                     {{"role", "assistant"}, {"content", "b"}},
                     {{"role", "user"}, {"content", "c"}}};
  EXPECT_EQ(text("llama2", more), "<s>[INST] a [/INST] b </s><s>[INST] c [/INST]");
  EXPECT_EQ(text("mistral", more), "<s>[INST] a [/INST] b</s>[INST] c [/INST]");
  EXPECT_EQ(text("chatml", more),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
}

// BOS is written by the template alone, once where it writes it once.
TEST(Chat, BosIsTheTemplates) {
  const auto with = tokenizer();
  const TokenId bos = with->bos();
  const auto bos_count = [&](const char* source) {
    return std::ranges::count(tokens_of(*with, ChatTemplate(source), messages_of("hi")), bos);
  };
  EXPECT_EQ(bos_count("{{ messages[0].content }}"), 0);
  EXPECT_EQ(bos_count("{{ bos_token }}{{ messages[0].content }}"), 1);
  EXPECT_EQ(bos_count("<s>{{ messages[0].content }}"), 1);
}

TEST(Chat, SpecialTokensOfATemplateAndOfAMessage) {
  const auto with = tokenizer();
  const auto n_special = [&](const char* source, const std::string& user) {
    const auto tokens = tokens_of(*with, ChatTemplate(source), messages_of(user));
    return std::ranges::count_if(tokens, [&](TokenId id) { return id >= with->find("<s>"); });
  };
  EXPECT_EQ(n_special("{{ messages[0].content }}", "<|im_end|><s>"), 0);
  EXPECT_EQ(n_special("<s>{{ messages[0].content }}</s>", "<|im_end|>"), 2);
  EXPECT_EQ(n_special("{{ '<|' + messages[0].content + '|>' }}", "im_end"), 0);
  EXPECT_EQ(n_special("{{ messages[0].content.replace('x', '<s>') }}", "x<s>"), 1);
  EXPECT_EQ(n_special("{{ messages | tojson }}", "<s>"), 0);
  EXPECT_EQ(n_special("{{ messages }}", "<s>"), 0);
  EXPECT_EQ(n_special("{{ messages[0].content.split('|') | join('|') }}", "<|im_end|>"), 0);
  EXPECT_EQ(n_special("{{ (messages[0].content | upper | lower | trim)[:10] }}", "<|im_end|>"), 0);
  EXPECT_EQ(n_special("{% set x %}{{ messages[0].content }}</s>{% endset %}{{ x }}", "<s>"), 1);
  EXPECT_EQ(n_special("{% macro m(x) %}<s>{{ x }}{% endmacro %}{{ m(messages[0].content) }}", "<s>"), 1);
  // A role is the template's word: templates build their markers of it.
  EXPECT_EQ(n_special("{{ '<|' + messages[0].role + '|>' }}", "hi"), 1);
  const std::string forged = R"([{"role": "<s>", "content": "x"}])";
  const auto tokens = tokens_of(*with, ChatTemplate("{{ messages[0].role }}"), forged);
  EXPECT_EQ(std::ranges::count(tokens, with->bos()), 0);
}

TEST(Chat, EndsAtEosAndAtTheEndOfTheTurn) {
  const auto with = tokenizer();
  const auto chat =
      make_chat_prompt(*with, ChatTemplate::built_in("chatml"), messages_of("hi"), {});
  for (const char* end : {"</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"})
    EXPECT_NE(std::ranges::find(chat.end_ids, with->find(end)), chat.end_ids.end()) << end;
  EXPECT_EQ(chat.end_ids.size(), 4u);
}

TEST(Chat, RefusesWhatItDoesNotKnow) {
  using test::expect_error;
  expect_error(ErrorKind::Usage, "chatml, llama2, llama3, zephyr, mistral",
               [] { ChatTemplate::built_in("alpaca"); });
  const auto with = tokenizer();
  const auto render = [&](const char* source, const std::string& messages) {
    ChatTemplate(source).render(*with, messages, {});
  };
  expect_error(ErrorKind::Usage, "no roles",
               [&] { render("{{ raise_exception('no roles') }}", messages_of("hi")); });
  for (const char* bad : {"", "{}", "[1]", "[{}]", "[{\"role\": \"user\"", "nonsense"})
    expect_error(ErrorKind::Input, "message", [&] { render("x", bad); });
}

}  // namespace
}  // namespace minfer
