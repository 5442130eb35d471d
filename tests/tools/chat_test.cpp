#include <regex>

#include "tests/support/test_data.h"
#include "tests/tools/chat_fixture.h"

namespace minfer::test {
namespace {

using Chat = MinferChat;
using nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> roles(const json& messages) {
  std::vector<std::string> list;
  for (const json& message : messages) list.push_back(message["role"]);
  return list;
}

TEST_F(Chat, PrintsTheAnswersOneAfterTheOther) {
  const ProcessResult result = chat("one\n\n  \ntwo\r\nthree");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::regex_match(result.out, std::regex("([a-e]{8}\n){3}"))) << result.out;
  EXPECT_EQ(result.err.find("> "), std::string::npos) << result.err;
  const ProcessResult quiet = chat("one\ntwo\nthree\n", {"-n", "8", "-q"});
  EXPECT_EQ(quiet.out, result.out);
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(chat("").exit_code, 0);
  EXPECT_EQ(chat("").out, "");
}

TEST_F(Chat, JsonHasTheConversationAndItsCounts) {
  const ProcessResult result = chat("one\ntwo\n", {"-n", "8", "--json", "--system", "Be brief."});
  const json object = json::parse(result.out);
  EXPECT_EQ(roles(object["messages"]),
            (std::vector<std::string>{"system", "user", "assistant", "user", "assistant"}));
  ASSERT_EQ(object["turns"].size(), 2u);
  const json &one = object["turns"][0], two = object["turns"][1];
  EXPECT_EQ(one["text"], object["messages"][2]["content"]);
  EXPECT_EQ(one["reused_tokens"], 0);
  EXPECT_EQ(one["evaluated_tokens"], one["prompt_tokens"]);
  EXPECT_EQ(one["tokens"].size(), 8u);
  EXPECT_EQ(two["reused_tokens"], one["prompt_tokens"].get<int>() + 7);
  // The last letter of the answer, EOS and the turn, a byte a token and three for a blank, of which
  // the tokenizer puts one behind EOS.
  EXPECT_EQ(two["evaluated_tokens"], 1 + 1 + 3 + 13);
  EXPECT_EQ(two["stop_reason"], "length");
  EXPECT_EQ(two["seed"], nullptr);
  EXPECT_GT(two["timings"]["decode_s"], 0);
}

TEST_F(Chat, EachAnswerIsDrawnAnew) {
  const json turns = json::parse(
      chat("one\n/regenerate\n/regenerate\n", {"-n", "8", "--json", "--temp", "1", "--seed", "7"})
          .out)["turns"];
  ASSERT_EQ(turns.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(turns[i]["seed"], 7 + i);
  EXPECT_FALSE(turns[0]["text"] == turns[1]["text"] && turns[1]["text"] == turns[2]["text"]);
}

TEST_F(Chat, JsonLinesAreTokensAndTheEndOfEachAnswer) {
  std::vector<json> objects;
  for (const std::string& line : lines_of(chat("one\ntwo\n", {"-n", "3", "--jsonl"}).out)) {
    objects.push_back(json::parse(line));
  }
  ASSERT_EQ(objects.size(), 8u);
  for (const size_t begin : {size_t{0}, size_t{4}}) {
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(objects[begin + i]["index"], i);
    EXPECT_EQ(objects[begin + 3]["done"], true);
    EXPECT_EQ(objects[begin + 3]["generated_tokens"], 3);
    EXPECT_FALSE(objects[begin + 3].contains("text"));
  }
}

TEST_F(Chat, CommandsChangeTheConversation) {
  const std::string lines = "/system  Be brief. \none\ntwo\n/save " + path("a.json") +
                            "\n/undo\n/save " + path("b.json") + "\n/reset\n/save " +
                            path("c.json") + "\n/load " + path("a.json") + "\n/regenerate\n/save " +
                            path("d.json") + "\n/exit\nthree\n";
  const ProcessResult result = chat(lines);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto answers = lines_of(result.out);
  ASSERT_EQ(answers.size(), 3u);  // what follows /exit is not read
  EXPECT_EQ(answers[2], answers[1]);
  EXPECT_EQ(saved("a.json"), json::array({{{"role", "system"}, {"content", "Be brief."}},
                                          {{"role", "user"}, {"content", "one"}},
                                          {{"role", "assistant"}, {"content", answers[0]}},
                                          {{"role", "user"}, {"content", "two"}},
                                          {{"role", "assistant"}, {"content", answers[1]}}}));
  EXPECT_EQ(saved("b.json").size(), 3u);
  EXPECT_EQ(saved("c.json").size(), 1u);
  EXPECT_EQ(saved("d.json"), saved("a.json"));
  const ProcessResult later = chat("/undo\ntwo\n", {"-n", "8", "--messages", path("a.json")});
  EXPECT_EQ(later.out, answers[1] + "\n");
}

TEST_F(Chat, StatsCountWhatWasEvaluated) {
  const ProcessResult result = chat("one\ntwo\n/stats\n", {"-q", "-n", "8"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("last turn  18 tokens evaluated, "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" 8 generated; stop length"), std::string::npos) << result.err;
  EXPECT_NE(chat("/help\n", {"-q"}).err.find("/regenerate"), std::string::npos);
}

TEST_F(Chat, MessagesOfSeveralLines) {
  const ProcessResult result = chat(
      "one \\\ntwo\\\n three\n\"\"\"\n  if x:\n\n  /y\n\"\"\"\n\"\"\"a\"\"\"\n"
      "/system \"\"\"b\nc\"\"\"\n/save " +
      path("a.json") + "\n\"\"\"to the\nend");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json messages = saved("a.json");
  ASSERT_EQ(messages.size(), 7u);
  EXPECT_EQ(messages[0]["content"], "b\nc");
  EXPECT_EQ(messages[1]["content"], "one \ntwo\n three");
  EXPECT_EQ(messages[3]["content"], "  if x:\n\n  /y");
  EXPECT_EQ(messages[5]["content"], "a");
  EXPECT_EQ(lines_of(result.out).size(), 4u);
}

TEST_F(Chat, MistakesAreAnsweredAndTheConversationGoesOn) {
  const ProcessResult result =
      chat("/stat\n/undo\n/stats x\n/load\n\xff\none\n", {"-n", "8", "-q"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(lines_of(result.out).size(), 1u);
  const auto errors = lines_of(result.err);
  ASSERT_EQ(errors.size(), 6u) << result.err;
  EXPECT_NE(errors[0].find("no command /stat, did you mean /stats?"), std::string::npos);
  EXPECT_NE(errors[1].find("no message of yours to take back"), std::string::npos);
  EXPECT_NE(errors[2].find("/stats takes nothing behind it"), std::string::npos);
  EXPECT_NE(errors[3].find("which file?"), std::string::npos);
  EXPECT_NE(errors[4].find("not UTF-8"), std::string::npos);
  EXPECT_NE(errors[5].find("5 of the lines could not be answered"), std::string::npos);
}

TEST_F(Chat, LoadsAndReplacesConversationsAlone) {
  const std::string other = dir_.write("notes.txt", "not lost");
  const std::string old = dir_.write("old.json", R"([{"role": "user", "content": "x", "n": 1}])");
  ProcessResult result = chat("one\n/save " + other + "\n");
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_NE(result.err.find("holds no conversation: it is not replaced"), std::string::npos);
  EXPECT_EQ(read_file(other), "not lost");
  EXPECT_EQ(chat("/load " + old + "\n/save " + old + "\n").exit_code, 0);
  EXPECT_EQ(saved("old.json")[0]["n"], 1);
  result = chat("one\n/load " + other + "\n/load " + path("none.json") + "\n/save " +
                path("a.json") + "\n");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(saved("a.json").size(), 2u);
  EXPECT_EQ(chat("/save " + dir_.path().string() + "\n").exit_code, 4);
  EXPECT_EQ(chat("/save " + path("none/a.json") + "\n").exit_code, 4);
  EXPECT_EQ(chat("x\n/save ~/h.json\n", {"-n", "1"}, {.environment = {{"HOME", dir_.path()}}})
                .err.find("error"),
            std::string::npos);
  EXPECT_EQ(saved("h.json").size(), 2u);
}

TEST_F(Chat, OutgrowingTheContextIsOneLineAndCanBeSaved) {
  const ProcessResult result =
      chat("one\n" + std::string(200, 'x') + "\n/save " + path("a.json") + "\ntwo\n",
           {"-q", "-n", "8", "-c", "60"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(lines_of(result.out).size(), 2u);
  EXPECT_EQ(lines_of(result.err).size(), 2u) << result.err;
  EXPECT_TRUE(std::regex_search(
      result.err, std::regex("the conversation has 2[0-9]{2} tokens, the context holds 60; /save")))
      << result.err;
  EXPECT_EQ(saved("a.json").size(), 2u);
  const ProcessResult full = chat("one\n", {"-n", "-1", "--ignore-eos", "-c", "60"});
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_NE(full.err.find("warning: the answer ends here: the conversation has 61 tokens, the "
                          "context holds 60"),
            std::string::npos)
      << full.err;
}

TEST_F(Chat, AModelWithoutATemplateNeedsOne) {
  expect_failure(minfer({"chat", "-q", "-m", MinferProcess::model_}), 3, "--chat-template");
  const ProcessResult result =
      minfer({"chat", "-m", MinferProcess::model_, "-n", "4", "--chat-template", "chatml"},
             {.input = "one\n"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_failure(chat("", {"-q", "--logprobs", "3"}), 2, "--logprobs goes with");
  expect_failure(chat("", {"-q", "--json", "--jsonl"}), 2, "exclude each other");
  expect_failure(chat("", {"-q", "--messages", path("none.json")}), 3, "none.json");
}

TEST_F(Chat, SignalsEndAnAnswerOrTheProcess) {
  const auto endless = [&](const std::string& lines) {
    return Process(command(chat_args({"-n", "-1", "--ignore-eos", "-c", "40000"})),
                   {.input = lines, .environment = {{"XDG_CACHE_HOME", dir_.path()}}});
  };
  Process one = endless("one\n/save " + path("a.json") + "\n");
  one.read_out(20);
  one.send(SIGINT);
  const ProcessResult result = one.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(saved("a.json")[1]["content"].get<std::string>() + "\n", result.out);
  Process two = endless("one\n");
  two.read_out(20);
  two.send(SIGTERM);
  EXPECT_EQ(two.wait().exit_code, 143);
  Process three = endless("one\n");
  three.close_out();
  EXPECT_EQ(three.wait().exit_code, 141);
  const ProcessResult full = chat("one\ntwo\n", {"-n", "2", "-q"}, {.stdout_path = "/dev/full"});
  EXPECT_EQ(full.exit_code, 4);
  EXPECT_EQ(lines_of(full.err).size(), 1u) << full.err;
}

}  // namespace
}  // namespace minfer::test
