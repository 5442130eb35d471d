#include "models/chat.h"

#include <nlohmann/json.hpp>

#include "models/chat_template.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using nlohmann::json;

const std::vector<std::string> kControl = {
    "<s>",        "</s>",       "<|im_start|>",        "<|im_end|>",
    "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"};

std::unique_ptr<Tokenizer> tokenizer_with(const std::string& chat_template) {
  Metadata metadata = test::byte_vocabulary(kControl);
  metadata.set("tokenizer.chat_template", chat_template);
  return make_gguf_tokenizer(metadata);
}

// Texts and templates as scripts/make_chat_fixtures.py has written them.
TEST(Chat, WritesWhatTheTemplatesWrite) {
  const json cases = json::parse(test::read_file(test::fixtures_dir() / "chat_prompts.json"));
  for (const json& c : cases) {
    const auto tokenizer = tokenizer_with(c.at("template"));
    const ChatFamily family = recognize_chat_family(tokenizer->chat_template());
    EXPECT_EQ(family, chat_family_by_name(c.at("family"))) << c.at("name");
    for (const json& prompt : c.at("prompts")) {
      std::optional<std::string> system;
      if (!prompt.at("system").is_null()) system = prompt.at("system").get<std::string>();
      const std::string user = prompt.at("user"), text = prompt.at("text");
      const auto chat = make_chat_prompt(*tokenizer, family, user, system);
      EXPECT_EQ(tokenizer->decode(chat.tokens, true), text) << c.at("name");
      // With control tokens of the user's taken for such, the ids are those of the whole text.
      const auto parsed = make_chat_prompt(*tokenizer, family, user, system, true);
      const auto whole = tokenizer->encode(text, {.parse_special = true});
      EXPECT_EQ(parsed.tokens, whole) << c.at("name") << ": " << text;
      if (user.find("</s>") == user.npos)
        EXPECT_EQ(chat.tokens, whole);
      else
        EXPECT_GT(chat.tokens.size(), whole.size());
    }
  }
}

TEST(Chat, AnEmptySystemMessageRemovesTheDefault) {
  const auto chatml = tokenizer_with(
      "{{'<|im_start|>system\\nBe good.<|im_end|>\\n<|im_start|>'}}{{message['role']}}");
  EXPECT_EQ(chatml->decode(make_chat_prompt(*chatml, ChatFamily::ChatMl, "hi", "").tokens, true),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  const auto llama3 = tokenizer_with("<|start_header_id|>Cutting Knowledge Date: now");
  EXPECT_EQ(llama3->decode(make_chat_prompt(*llama3, ChatFamily::Llama3, "hi", "").tokens, true),
            "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>"
            "assistant<|end_header_id|>\n\n");
}

TEST(Chat, WithoutATemplateOfTheModels) {
  const auto tokenizer = make_gguf_tokenizer(test::byte_vocabulary(kControl));
  const auto text = [&](ChatFamily family) {
    return tokenizer->decode(make_chat_prompt(*tokenizer, family, "hi", "sys").tokens, true);
  };
  EXPECT_EQ(text(ChatFamily::ChatMl),
            "<|im_start|>system\nsys<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(text(ChatFamily::Llama2), "<s>[INST] <<SYS>>\nsys\n<</SYS>>\n\nhi [/INST]");
  EXPECT_EQ(text(ChatFamily::Zephyr), "<|system|>\nsys</s>\n<|user|>\nhi</s>\n<|assistant|>\n");
  EXPECT_EQ(text(ChatFamily::Mistral), "<s>[INST] sys\n\nhi [/INST]");
}

TEST(Chat, EndsAtEosAndAtTheEndOfTheTurn) {
  const auto tokenizer = tokenizer_with("");
  const auto chat = make_chat_prompt(*tokenizer, ChatFamily::ChatMl, "hi", {});
  for (const char* end : {"</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"})
    EXPECT_NE(std::ranges::find(chat.end_ids, tokenizer->find(end)), chat.end_ids.end()) << end;
  EXPECT_EQ(chat.end_ids.size(), 4u);
}

TEST(Chat, RefusesWhatItDoesNotKnow) {
  using test::expect_error;
  expect_error(ErrorKind::Usage, "chatml, llama2, llama3, zephyr, mistral",
               [] { chat_family_by_name("alpaca"); });
  expect_error(ErrorKind::Input, "no chat template", [] { recognize_chat_family(""); });
  // Phi-3 and OLMo have zephyr's marker, but do not end the turn by EOS.
  for (const char* unknown :
       {"{% if x %}{{ '<|user|>\n' + message['content'] + '<|end|>' }}{% endif %}",
        "{{ '<|user|>\n' + message['content'] + '\n' }}{% else %}{{ eos_token }}", "### User:"})
    expect_error(ErrorKind::Input, "no known family", [&] { recognize_chat_family(unknown); });
}

TEST(ChatTemplate, Literals) {
  std::string all;
  for (const auto& [text, before] :
       template_literals("a{# 'no' #}b{{ x + 'c\\'\\n' }}{% set y = \"d}}\" %}{{ 'unclosed"))
    all += "[" + text + "|" + before + "]";
  EXPECT_EQ(all, "[a|][b|][c'\n|x+][d}}|sety=][unclosed|]");
  EXPECT_TRUE(template_literals("").empty());
  EXPECT_TRUE(template_literals("{{").empty());
}

}  // namespace
}  // namespace minfer
