#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using ChatTemplateCli = MinferProcess;

constexpr const char* kTalk =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi </s>"}])";

ProcessResult tokenize(const std::string& model, std::vector<std::string> args,
                       const ProcessOptions& options = {}) {
  args.insert(args.begin(), {MINFER_BINARY, "tokenize", "-q", "-m", model});
  return run_process(args, options);
}

TEST_F(ChatTemplateCli, RendersByteForByte) {
  const std::string talk = dir_.write("talk.json", kTalk);
  const auto text = [&](std::vector<std::string> args, const ProcessOptions& options = {}) {
    args.push_back("--render");
    const ProcessResult result = tokenize(model_, args, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string want =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi </s><|im_end|>\n"
      "<|im_start|>assistant\n";
  EXPECT_EQ(text({"--messages", talk, "--chat-template", "chatml"}), want);
  EXPECT_EQ(text({"--messages", "-", "--chat-template", "chatml"}, {.input = kTalk}), want);
  const std::string own =
      dir_.write("own.jinja", "{{ messages|length }}{{ x }}{{ strftime_now('%Y') }}\n\n");
  EXPECT_EQ(text({"--messages", talk, "--chat-template", own, "--template-var", "x=[true]"},
                 {.environment = {{"MINFER_NOW", "2031-05-06"}}}),
            "2[True]2031\n");
}

TEST_F(ChatTemplateCli, EndsWithTheCodeThatFits) {
  const std::string talk = dir_.write("talk.json", kTalk);
  const auto fails = [&](const std::string& source, std::vector<std::string> more, int code,
                         const std::string& says) {
    std::vector<std::string> args = {"--messages", talk, "--chat-template",
                                     dir_.write("t.jinja", source)};
    args.insert(args.end(), more.begin(), more.end());
    const ProcessResult result = tokenize(model_, args);
    EXPECT_EQ(result.exit_code, code) << source;
    EXPECT_NE(result.err.find(says), std::string::npos) << result.err;
  };
  fails("{{ raise_exception('one user, please') }}", {}, 2, "one user, please");
  fails("\n{% include 'x' %}", {}, 3, "line 2: the tag \"include\"");
  fails("{{ messages.x.y }}", {}, 3, "line 1");
  fails("", {"--template-var", "x=abc"}, 2, "--template-var");
  fails("", {"--ids", "--render"}, 2, "exclude");
  EXPECT_EQ(tokenize(model_, {"--render", "x"}).exit_code, 2);
  EXPECT_EQ(tokenize(model_, {"--messages", talk}).exit_code, 3);  // no template
  EXPECT_EQ(generate({"--messages", talk, "--no-chat"}).exit_code, 2);
}

TEST_F(ChatTemplateCli, GeneratesFromMessages) {
  const std::string talk = dir_.write("talk.json", kTalk);
  const std::string echo = dir_.write("echo.jinja", "{{ messages[-1].content }}");
  const auto tokens = [&](std::vector<std::string> args) {
    args.insert(args.end(), {"--json", "-n", "4", "--chat-template", echo});
    const ProcessResult result = generate(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  // A prompt is one more turn.
  EXPECT_EQ(tokens({"--messages", talk, "x"})["tokens"], tokens({"--chat", "x"})["tokens"]);
  EXPECT_NE(tokens({"--messages", talk})["prompt_tokens"],
            tokens({"--chat", "x"})["prompt_tokens"]);
}

TEST(ChatTemplateSmolLm2, ThePlainPromptIsSpokenOf) {
  MINFER_NEEDS(smollm2_path());
  const auto err = [](std::vector<std::string> more) {
    std::vector<std::string> args = {MINFER_BINARY, "generate", "-m", smollm2_path(),
                                     "-n",          "0",        "x"};
    args.insert(args.end(), more.begin(), more.end());
    return run_process(args).err;
  };
  EXPECT_NE(err({}).find("has a chat template"), std::string::npos);
  EXPECT_EQ(err({"--no-chat"}).find("has a chat template"), std::string::npos);
  EXPECT_EQ(err({"--chat"}).find("has a chat template"), std::string::npos);
  // An empty system message takes the template's own away.
  const auto n_tokens = [](std::vector<std::string> more) {
    std::vector<std::string> args = {MINFER_BINARY, "generate", "-q",     "-m",     smollm2_path(),
                                     "-n",          "0",        "--json", "--chat", "x"};
    args.insert(args.end(), more.begin(), more.end());
    return nlohmann::json::parse(run_process(args).out)["prompt_tokens"].get<int>();
  };
  EXPECT_LT(n_tokens({"--system", ""}), n_tokens({}) - 10);
}

}  // namespace
}  // namespace minfer::test
