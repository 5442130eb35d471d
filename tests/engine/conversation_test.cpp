#include "engine/conversation.h"

#include <gtest/gtest.h>

#include "tests/support/chat_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

// Every answer of a conversation beside the one that a fresh session gives to one prompt of all
// messages before it.
class ConversationTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    options_.sampler.temperature = 0;
    options_.n_predict = 12;
    only_tokens("etaoin shrdlucmfwyp,.");
  }

  // The model says nothing else.
  void only_tokens(const std::string& bytes) {
    options_.sampler.logit_bias.clear();
    for (TokenId id = 0; id < 260; ++id) {
      const bool wanted = id < 256 && bytes.find(char(id)) != std::string::npos;
      if (!wanted) options_.sampler.logit_bias.emplace_back(id, kNever);
    }
  }

  SessionOptions session_options() const { return {.prefill_chunk = 16, .kv_dtype = GetParam()}; }

  GenerateResult ask(const std::string& text) {
    return checked([&] { return conversation_.ask(text, options_, nullptr); });
  }
  GenerateResult regenerate() {
    return checked([&] { return conversation_.regenerate(options_, nullptr); });
  }

  template <typename F>
  GenerateResult checked(F&& answer) {
    GenerateResult result = answer();
    EXPECT_EQ(conversation_.messages().back().role, "assistant");
    EXPECT_EQ(text_of(conversation_.messages().back()), result.text);
    std::vector<ChatMessage> before = conversation_.messages();
    before.pop_back();
    const ChatPrompt prompt =
        make_chat_prompt(*model_.tokenizer, template_, chat_messages_json(before), {});
    Session fresh(model_, *backend_, session_options());
    const GenerateResult whole = generate(fresh, prompt.tokens, options_, nullptr);
    EXPECT_EQ(result.tokens, whole.tokens);
    EXPECT_EQ(result.prompt_tokens, whole.prompt_tokens);
    return result;
  }

  int64_t n_tokens(const std::string& text) const {
    return std::ssize(model_.tokenizer->encode(text, {.add_bos = false, .parse_special = true}));
  }
  // What a turn adds to the prompt before it; `tail` has been generated, but not evaluated.
  int64_t own_tokens(const std::string& text, int64_t tail) const {
    return tail + n_tokens("<|im_end|>\n<|im_start|>user\n" + text +
                           "<|im_end|>\n<|im_start|>assistant\n");
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Model model_ = chat_model(*backend_, 512);
  ChatTemplate template_{model_.tokenizer->chat_template()};
  Session session_{model_, *backend_, session_options()};
  Conversation conversation_{session_, template_};
  GenerateOptions options_;
};

TEST_P(ConversationTest, EvaluatesOnlyWhatIsNew) {
  EXPECT_EQ(ask("What is the sea?").reused_tokens, 0);
  for (const std::string text : {"And the sky?", "\xe6\xb5\xb7\xe3\x81\xaf?", "x", ""}) {
    SCOPED_TRACE(text);
    const GenerateResult turn = ask(text);
    EXPECT_EQ(turn.evaluated_tokens(), own_tokens(text, 1));
    EXPECT_EQ(turn.reused_tokens + turn.evaluated_tokens(), turn.prompt_tokens);
  }
}

TEST_P(ConversationTest, AnswersThatTokenizeOtherwiseAreEvaluatedAgain) {
  only_tokens("ab");
  ask("Say ab.");
  ask("Again.");
  const std::string first = text_of(conversation_.messages()[1]).value();
  ASSERT_NE(first.find("ab"), first.npos);  // was generated as two tokens
  EXPECT_LT(ask("Once more.").reused_tokens, conversation_.cached_tokens());
}

TEST_P(ConversationTest, BytesThatAreNoTextAreEvaluatedAgain) {
  options_.sampler.logit_bias.clear();
  options_.ignore_eos = true;
  for (const char* text : {"one", "two", "three"}) ask(text);
}

TEST_P(ConversationTest, SampledAnswersAreTheSameToo) {
  options_.sampler.temperature = 1.5;
  options_.sampler.repeat_penalty = 1.3f;
  for (const char* text : {"one", "two", "three"}) {
    ++options_.sampler.seed;
    ask(text);
  }
}

TEST_P(ConversationTest, UndoTakesTheLastTurnBack) {
  EXPECT_FALSE(conversation_.undo());
  ask("one");
  const std::string after_one = chat_messages_json(conversation_.messages());
  const GenerateResult two = ask("two");
  EXPECT_TRUE(conversation_.undo());
  EXPECT_EQ(chat_messages_json(conversation_.messages()), after_one);
  const GenerateResult again = ask("two");
  EXPECT_EQ(again.tokens, two.tokens);
  EXPECT_EQ(again.evaluated_tokens(), 1);  // the last token of the prompt, for its logits
  EXPECT_EQ(ask("a third one").evaluated_tokens(), own_tokens("a third one", 1));
  EXPECT_TRUE(conversation_.undo() && conversation_.undo() && conversation_.undo());
  EXPECT_TRUE(conversation_.messages().empty());
}

TEST_P(ConversationTest, RegenerateAnswersAnew) {
  expect_error(ErrorKind::Usage, "there is no message of a user's to answer",
               [&] { regenerate(); });
  options_.sampler.temperature = 2;
  const GenerateResult first = ask("one");
  options_.sampler.seed = 5;
  const GenerateResult second = regenerate();
  EXPECT_NE(first.text, second.text);
  EXPECT_EQ(second.evaluated_tokens(), 1);
  EXPECT_EQ(conversation_.messages().size(), 2u);
}

TEST_P(ConversationTest, SystemMessageIsSetReplacedAndRemoved) {
  conversation_.set_system("Be brief.");
  ask("one");
  conversation_.set_system("Be long.");
  EXPECT_EQ(conversation_.messages().size(), 3u);
  const GenerateResult two = ask("two");
  EXPECT_EQ(two.reused_tokens, n_tokens("<|im_start|>system\nBe "));
  conversation_.reset();
  ASSERT_EQ(conversation_.messages().size(), 1u);
  EXPECT_EQ(text_of(conversation_.messages()[0]), "Be long.");
  ask("three");
  conversation_.remove_system();
  EXPECT_EQ(conversation_.messages()[0].role, "user");
  ask("four");
}

TEST_P(ConversationTest, AnEmptySystemMessageMeansNone) {
  const auto prompt_tokens = [&](const std::string& source, std::optional<std::string> system) {
    const ChatTemplate chat_template(source);
    Session session(model_, *backend_, session_options());
    Conversation conversation(session, chat_template);
    if (system) conversation.set_system(*system);
    return conversation.ask("one", options_, nullptr).prompt_tokens;
  };
  const std::string rest = kChatMl;
  const std::string own =  // a message of the template's own, where there is none
      "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
      "{% endif %}" +
      rest;
  const std::string refuses =
      "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" +
      rest;
  const int64_t turn = prompt_tokens(rest, std::nullopt);
  EXPECT_EQ(prompt_tokens(rest, ""), turn);
  EXPECT_EQ(prompt_tokens(refuses, ""), turn);
  EXPECT_EQ(prompt_tokens(own, std::nullopt),
            turn + n_tokens("<|im_start|>system\nBe kind.<|im_end|>\n"));
  EXPECT_EQ(prompt_tokens(own, ""), turn + n_tokens("<|im_start|>system\n<|im_end|>\n"));
  expect_error(ErrorKind::Usage, "no system", [&] { prompt_tokens(refuses, "Be kind."); });
}

TEST_P(ConversationTest, GoesOnFromItsMessages) {
  conversation_.set_system("Be \"brief\".\n\xc3\xa4");
  ask("one");
  const std::string saved = chat_messages_json(conversation_.messages());
  const GenerateResult two = ask("two");
  Session session(model_, *backend_, session_options());
  Conversation other(session, template_);
  other.set_messages(parse_chat_messages(saved));
  EXPECT_EQ(other.ask("two", options_, nullptr).tokens, two.tokens);
  EXPECT_EQ(chat_messages_json(other.messages()), chat_messages_json(conversation_.messages()));
  other.set_messages(parse_chat_messages(R"([{"role": "user", "content": "two", "n": 1}])"));
  conversation_.set_messages({chat_message("user", "two")});
  EXPECT_EQ(other.answer(options_, nullptr).tokens, regenerate().tokens);
}

TEST_P(ConversationTest, OutgrowingTheContextLeavesItAsItWas) {
  ask("one");
  const std::string before = chat_messages_json(conversation_.messages());
  const int64_t n = n_tokens("<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n") + 12;
  const std::string text(600, 'x');
  expect_error(
      ErrorKind::Usage,
      cat("the conversation has ", n - 1 + own_tokens(text, 1), " tokens, the context holds 512"),
      [&] { ask(text); });
  EXPECT_EQ(chat_messages_json(conversation_.messages()), before);
  EXPECT_EQ(ask("two").evaluated_tokens(), own_tokens("two", 1));

  options_.n_predict = -1;
  EXPECT_EQ(ask("three").stop_reason, StopReason::Context);
  expect_error(ErrorKind::Usage, "the context holds 512", [&] { ask("four"); });
  EXPECT_TRUE(conversation_.undo());
  options_.n_predict = 12;
  ask("three");
}

TEST_P(ConversationTest, AnInterruptedAnswerStaysAsFarAsItCame) {
  std::atomic<bool> interrupted = true;
  options_.interrupted = &interrupted;
  const GenerateResult none = conversation_.ask("one", options_, nullptr);
  EXPECT_EQ(none.stop_reason, StopReason::Interrupted);
  EXPECT_TRUE(conversation_.messages().empty());

  interrupted = false;
  int n = 0;
  const GenerateResult part =
      conversation_.ask("one", options_, [&](const GeneratedToken&) { interrupted = ++n == 3; });
  EXPECT_EQ(part.stop_reason, StopReason::Interrupted);
  EXPECT_EQ(part.tokens.size(), 3u);
  interrupted = true;
  EXPECT_EQ(conversation_.regenerate(options_, nullptr).tokens.size(), 0u);
  EXPECT_EQ(text_of(conversation_.messages().back()), part.text);
  interrupted = false;
  ask("two");
}

TEST_P(ConversationTest, AnErrorLeavesItAsItWas) {
  ask("one");
  const std::string before = chat_messages_json(conversation_.messages());
  int n_tokens = 0;
  const OnToken fails = [&n_tokens](const GeneratedToken& token) {
    if (++n_tokens % 3 == 0) throw Error(ErrorKind::System, cat("stdout: gone ", token.id));
  };
  expect_error(ErrorKind::System, "gone", [&] { conversation_.regenerate(options_, fails); });
  expect_error(ErrorKind::System, "gone", [&] { conversation_.ask("two", options_, fails); });
  expect_error(ErrorKind::Usage, "not UTF-8", [&] { ask("\xff"); });
  expect_error(ErrorKind::Usage, "not UTF-8", [&] { conversation_.set_system("\xc3"); });
  EXPECT_EQ(chat_messages_json(conversation_.messages()), before);
  const GenerateResult two = ask("two");
  EXPECT_EQ(two.evaluated_tokens(), 1);  // the turn that failed has evaluated the others
  EXPECT_EQ(conversation_.cached_tokens(), two.prompt_tokens + 11);
}

INSTANTIATE_TEST_SUITE_P(Caches, ConversationTest,
                         testing::Values(DType::F32, DType::F16, DType::U8),
                         [](const auto& info) { return cat(info.param); });

// Ten turns with a real model, whose answers end by themselves.
TEST(Conversation, TenTurnsWithSmolLm2AreOnePrompt) {
  MINFER_NEEDS(smollm2_path());
  const auto backend = make_cpu_backend();
  const Model model = load_model(smollm2_path().string(), *backend);
  const ChatTemplate chat_template(model.tokenizer->chat_template());
  const SessionOptions session_options{.max_seq_len = 2048};
  Session session(model, *backend, session_options), fresh(model, *backend, session_options);
  Conversation conversation(session, chat_template);
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.n_predict = 24;
  const auto count = [&](const std::string& text) {
    return std::ssize(model.tokenizer->encode(text, {.add_bos = false, .parse_special = true}));
  };
  GenerateResult last;
  for (const std::string text :
       {"What is the capital of France?", "And of Italy?", "How far are they apart?", "Say hi!",
        "Name three rivers.", "Which one is the longest?", "What is 7 * 8?", "Thank you.",
        "Write a line about the sea.", "Goodbye."}) {
    SCOPED_TRACE(text);
    const GenerateResult turn = conversation.ask(text, options, nullptr);
    std::vector<ChatMessage> before = conversation.messages();
    before.pop_back();
    const ChatPrompt prompt =
        make_chat_prompt(*model.tokenizer, chat_template, chat_messages_json(before), {});
    fresh.truncate(0);
    const GenerateResult whole = generate(fresh, prompt.tokens, options, nullptr);
    EXPECT_EQ(turn.text, whole.text);
    EXPECT_EQ(turn.tokens, whole.tokens);
    // Its own tokens: what ends the answer before, which was chosen and not evaluated, and the
    // turn.
    const bool ended = last.stop_reason == StopReason::Eos;
    const int64_t own =
        count("<|im_end|>\n<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n");
    if (last.prompt_tokens > 0) {
      EXPECT_EQ(turn.evaluated_tokens(), own + (ended ? 0 : 1));
      EXPECT_EQ(turn.reused_tokens, last.prompt_tokens + std::ssize(last.tokens) - (ended ? 0 : 1));
    }
    last = turn;
  }
  EXPECT_EQ(conversation.messages().size(), 20u);
}

TEST(ChatMessages, AreReadWholeOrRefused) {
  const std::string json = R"([{"role":"user","content":[{"type":"text","text":"a"}],"x":null}])";
  const std::vector<ChatMessage> messages = parse_chat_messages(json);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].role, "user");
  EXPECT_EQ(text_of(messages[0]), std::nullopt);
  EXPECT_EQ(chat_messages_json(messages), "[\n  " + json.substr(1, json.size() - 2) + "\n]\n");
  EXPECT_EQ(chat_messages_json({}), "[\n]\n");
  for (const char* bad : {"", "[", "{}", "3", "[3]", "[[]]", "[{}]", R"([{"role": 1}])",
                          R"([{"role": "user"}] x)", "[{\"role\": \"\xff\"}]"}) {
    SCOPED_TRACE(bad);
    expect_error(ErrorKind::Input, "", [&] { parse_chat_messages(bad); });
  }
  expect_error(ErrorKind::Input, "", [] { parse_chat_messages(std::string(100'000, '[')); });
}

}  // namespace
}  // namespace minfer::test
