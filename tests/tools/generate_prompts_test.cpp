#include <csignal>
#include <map>
#include <sstream>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using GeneratePrompts = MinferProcess;
using nlohmann::json;

// The objects of stdout by their ids, as texts of JSON.
std::map<std::string, json> by_id(const ProcessResult& result) {
  std::map<std::string, json> objects;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    json object = json::parse(line);
    const std::string id = object["id"].dump();
    EXPECT_TRUE(objects.emplace(id, std::move(object)).second) << id;
  }
  return objects;
}

TEST_F(GeneratePrompts, EachTextIsThatOfItsPromptAloneForAnyNumberAtOnce) {
  std::string lines;
  for (int i = 0; i < 64; ++i) {
    lines += json({{"prompt", "prompt " + std::to_string(i * i)}, {"n", i % 9 + 1}}).dump() + "\n";
  }
  const std::string file = dir_.write("prompts.jsonl", lines);
  std::map<std::string, json> first;
  for (const char* n_parallel : {"1", "4", "16"}) {
    const ProcessResult result =
        generate({"--temp", "0.9", "-s", "4", "--prompts", file, "--parallel", n_parallel});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::map<std::string, json> objects = by_id(result);
    ASSERT_EQ(objects.size(), 64u);
    for (auto& [id, object] : objects) object.erase("timings");
    if (first.empty()) first = objects;
    EXPECT_EQ(objects, first) << n_parallel;
  }
  json alone = json::parse(
      generate({"--temp", "0.9", "-s", "4", "--json", "-n", "4", "-p", "prompt 9"}).out);
  json line = first["4"];
  line.erase("id");
  alone.erase("timings");
  EXPECT_EQ(line, alone);
}

TEST_F(GeneratePrompts, TakesWhatALineSays) {
  const std::string file = dir_.write(
      "prompts.jsonl",
      R"({"id": "ids", "prompt_ids": [1, 68, 69], "n": 3})"
      "\n\n"
      R"({"id": 7, "prompt": "x", "logprobs": 2, "n": 2})"
      "\n"
      R"({"id": null, "prompt": "x", "temperature": 1, "seed": 5, "top_k": 3, "top_p": 0.5,)"
      R"( "min_p": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 8, "presence_penalty": 0.1,)"
      R"( "frequency_penalty": 0.1, "stop": ["zzzz"], "ignore_eos": true, "n": 2,)"
      R"( "logit_bias": {"70": 100}})"
      "\n"
      R"({"id": "random", "prompt": "x", "temperature": 1, "seed": -1, "n": 1})"
      "\n"
      R"({"id": [1], "messages": [{"role": "user", "content": "Hi"}], "n": 1})");
  const ProcessResult result = minfer({"generate", "-m", model_, "--prompts", file, "--seed", "7",
                                       "--chat-template", "chatml", "--chat", "--temp", "0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, json> objects = by_id(result);
  ASSERT_EQ(objects.size(), 5u);
  EXPECT_TRUE(objects["\"random\""]["seed"].is_number_unsigned());
  EXPECT_NE(objects["\"random\""]["seed"], 7);
  EXPECT_EQ(objects["\"ids\""]["prompt_tokens"], 3);
  EXPECT_EQ(objects["\"ids\""]["tokens"].size(), 3u);
  EXPECT_EQ(objects["7"]["logprobs"].size(), 2u);
  EXPECT_EQ(objects["7"]["logprobs"][0]["top"].size(), 2u);
  EXPECT_EQ(objects["7"]["seed"], nullptr);
  EXPECT_EQ(objects["null"]["seed"], 5);
  EXPECT_EQ(objects["null"]["tokens"][0], 70);
  EXPECT_GT(objects["[1]"]["prompt_tokens"], 10);
}

TEST_F(GeneratePrompts, ABadLineEndsOnlyItself) {
  const std::string file = dir_.write("prompts.jsonl", R"({"prompt": "a"}
[1]
{"prompt": "a", "max_tokens": 3}
{"prompt": 3}
{"id": "both", "prompt": "a", "prompt_ids": [1]}
{"prompt_ids": [1, 100000]}
{"prompt_ids": [1.5]}
{"prompt": "a", "top_p": 2}
{"prompt": "a", "n": 1e30}
{"prompt": "a", "logit_bias": {"x": 1}}
{"prompt": "a", "stop": ""}
{"prompt": "a"
{"id": "last", "prompt": "b"})");
  const ProcessResult result = generate({"--prompts", file});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.err.find("prompts.jsonl: 11 of 13 lines could not be answered"),
            std::string::npos)
      << result.err;
  std::map<std::string, json> objects = by_id(result);
  ASSERT_EQ(objects.size(), 13u);
  EXPECT_EQ(objects["1"]["generated_tokens"], 8);
  EXPECT_EQ(objects["\"last\""]["generated_tokens"], 8);
  const std::map<std::string, std::string> errors = {
      {"2", "line 2: no JSON object"},
      {"3", "line 3: no field is called max_tokens; \"n\" is how many tokens to generate"},
      {"4", "line 4: \"prompt\" is no text"},
      {"\"both\"", "line 5: expected one of \"prompt\", \"prompt_ids\" and \"messages\", found 2"},
      {"6", "line 6: \"prompt_ids\" is not in 0 ... "},
      {"7", "line 7: \"prompt_ids\" is no whole number"},
      {"8", "line 8: \"top_p\" is not in 0 ... 1"},
      {"9", "line 9: \"n\" is no whole number"},
      {"10", "line 10: \"logit_bias\": x is no token id below "},
      {"11", "line 11: \"stop\": an empty text would stop at once"},
      {"12", "line 12: malformed JSON: "}};
  for (const auto& [id, error] : errors) {
    EXPECT_TRUE(objects[id]["error"].get<std::string>().starts_with(error)) << objects[id];
  }
}

TEST_F(GeneratePrompts, APromptThatDoesNotFitEndsOnlyItself) {
  const std::string file =
      dir_.write("prompts.jsonl", json({{"prompt", std::string(500, 'x')}}).dump() + "\n" +
                                      json({{"prompt", "y"}, {"n", -1}}).dump());
  const ProcessResult result = generate({"-c", "40", "--prompts", file});
  EXPECT_EQ(result.exit_code, 3);
  std::map<std::string, json> objects = by_id(result);
  EXPECT_EQ(objects["1"]["error"], "line 1: the prompt has 504 tokens, the context holds 40");
  EXPECT_EQ(objects["2"]["stop_reason"], "context");
}

TEST_F(GeneratePrompts, RefusesWhatDoesNotGoTogether) {
  const std::string file = dir_.write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
  const auto refuses = [&](std::vector<std::string> args, const std::string& words) {
    expect_failure(generate(std::move(args)), 2, words);
  };
  refuses({"--prompts", file, "x"}, "--prompts takes the place of any other prompt");
  refuses({"--prompts", file, "--prompt-ids", "1"}, "--prompts takes the place");
  refuses({"--prompts", file, "--messages", "-"}, "--prompts takes the place");
  refuses({"--prompts", file, "--jsonl"}, "--jsonl and --echo go with one prompt");
  refuses({"--prompts", file, "--echo"}, "--jsonl and --echo go with one prompt");
  refuses({"--parallel", "2", "x"}, "--parallel goes with --prompts");
  // Of a plain prompt alone; messages go through a template by themselves.
  const ProcessResult lines =
      generate({"--chat-template", "chatml", "--system", "s", "--prompts",
                dir_.write("mixed.jsonl",
                           "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 2, \"messages\": "
                           "[{\"role\": \"user\", \"content\": \"a\"}]}\n")});
  EXPECT_EQ(lines.exit_code, 3);
  std::map<std::string, json> objects = by_id(lines);
  EXPECT_NE(objects["1"].dump().find("with --chat"), std::string::npos) << objects["1"];
  EXPECT_TRUE(objects["2"].contains("text")) << objects["2"];
  refuses({"--prompts", file, "--parallel", "0"}, "--parallel");
  expect_failure(generate({"--prompts", "/nowhere"}), 3, "/nowhere");
  // Nothing asked, nothing said.
  const ProcessResult nothing = generate({"--prompts", dir_.write("none.jsonl", "\n \n")});
  EXPECT_EQ(nothing.exit_code, 0) << nothing.err;
  EXPECT_EQ(nothing.out, "");
}

// A chunk of the prompt may be smaller than the number of texts.
TEST_F(GeneratePrompts, TextsInTurns) {
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += json({{"prompt", std::to_string(i)}}).dump() + "\n";
  const std::string file = dir_.write("prompts.jsonl", lines);
  const ProcessResult whole = generate({"--prompts", file, "--parallel", "1"});
  const ProcessResult turns = generate({"--prompts", file, "--parallel", "9", "-b", "4"});
  ASSERT_EQ(turns.exit_code, 0) << turns.err;
  std::map<std::string, json> want = by_id(whole), got = by_id(turns);
  ASSERT_EQ(got.size(), 9u);
  for (auto& [id, object] : got) EXPECT_EQ(object["tokens"], want[id]["tokens"]) << id;
}

TEST_F(GeneratePrompts, ASignalLosesNoTextThatHasBegun) {
  const std::string model = dir_.write("long.gguf", tiny_gguf({.context = 100000}));
  const std::string file = dir_.write("prompts.jsonl",
                                      "{\"prompt\": \"a\", \"n\": 50}\n{\"prompt\": \"b\"}\n"
                                      "{\"prompt\": \"c\"}\n");
  Process process(command({"generate", "-m", model, "-n", "-1", "--ignore-eos", "-q", "--parallel",
                           "3", "--prompts", file}));
  process.read_out(10);  // of the first, which ends
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  size_t n_interrupted = 0;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (json::parse(line)["stop_reason"] == "interrupted") ++n_interrupted;
  }
  EXPECT_EQ(n_interrupted, 2u) << result.out.substr(0, 2000);
}

TEST_F(GeneratePrompts, ReadsStdin) {
  const ProcessResult result =
      generate({"--prompts", "-", "-q"}, {.input = "{\"prompt\": \"a\"}\n"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(by_id(result).size(), 1u);
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace minfer::test
