#include <regex>
#include <set>

#include "kernels/base/utf8.h"
#include "loaders/checksum.h"
#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using Generate = MinferProcess;
using nlohmann::json;

TEST_F(Generate, PrintsTheTextAndOneNewline) {
  const ProcessResult result = generate({"x"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(is_utf8(result.out));
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_TRUE(std::regex_search(result.err, std::regex("loaded in [0-9.]+ s, [0-9.]+ GB/s\n")));
  EXPECT_EQ(result.err.find("seed "), std::string::npos);  // nothing is drawn
  EXPECT_NE(generate({"--temp", "1", "x"}).err.find("seed "), std::string::npos);
  EXPECT_EQ(generate({"-q", "x"}).err, "");
}

// Ranks on the CPU, each with its share of the threads, write what one writes.
TEST_F(Generate, RanksWriteTheSameText) {
  const std::vector<std::string> on_cpu = {"-q", "--device", "cpu", "-n", "12", "x"};
  const std::string want = generate(on_cpu).out;
  for (const char* n_ranks : {"2", "3", "4"}) {
    std::vector<std::string> args = on_cpu;
    args.insert(args.begin(), {"--tp", n_ranks});
    const ProcessResult result = generate(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, want) << n_ranks;
  }
}

TEST_F(Generate, DraftsLeaveTheTextAsItIs) {
  std::vector<std::string> args = {"--json", "--device", "cpu", "-n", "60", "x y x y x y x y x y"};
  const json want = json::parse(generate(args).out);
  args.insert(args.begin(), {"--draft", "lookup"});
  const json found = json::parse(generate(args).out);
  EXPECT_EQ(found["tokens"], want["tokens"]);
  EXPECT_EQ(want["drafted_tokens"], 0);
  EXPECT_GT(found["drafted_tokens"], 0);
  EXPECT_LE(found["accepted_tokens"], found["drafted_tokens"]);
  const ProcessResult result =
      generate({"--draft", "lookup", "--prompts", dir_.write("prompts", "{\"prompt\": \"x\"}")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--draft goes with one prompt"), std::string::npos) << result.err;
}

TEST_F(Generate, TakesThePromptFromEverywhere) {
  const std::string want = generate({"-q", "a prompt"}).out;
  EXPECT_EQ(generate({"-q", "-p", "a prompt"}).out, want);
  EXPECT_EQ(generate({"-q"}, {.input = "a prompt\n"}).out, want);
  EXPECT_EQ(generate({"-q", "-f", "-"}, {.input = "a prompt"}).out, want);
  EXPECT_EQ(generate({"-q", "-f", dir_.write("prompt.txt", "a prompt\n")}).out, want);
  EXPECT_EQ(generate({"-q"}, {.environment = {{"MINFER_PROMPT", "a prompt"}}}).out, want);
  // Not eaten by the parser: words that are commands, brackets, dashes, an empty text.
  for (const char* prompt : {"bench", "[a,b]", "--", "-x", "", "%{}"}) {
    const ProcessResult result = generate({"-q", "--json", "-p", prompt, "--echo"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(json::parse(result.out)["prompt"], prompt);
  }
}

// As in chat, in place of theirs.
TEST_F(Generate, SystemMessageOfTheCommandLineStandsBeforeTheMessages) {
  const auto text_of = [&](const json& messages, const std::string& system) {
    std::vector<std::string> args = {"-q", "--chat-template", "chatml", "--messages",
                                     dir_.write("talk.json", messages.dump())};
    if (!system.empty()) args.insert(args.end(), {"--system", system});
    const ProcessResult result = generate(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const json user = {{"role", "user"}, {"content", "hi"}};
  const auto system = [](const char* text) { return json{{"role", "system"}, {"content", text}}; };
  const std::string want = text_of(json::array({system("one two three"), user}), "");
  EXPECT_NE(want, text_of(json::array({user}), ""));
  EXPECT_EQ(want, text_of(json::array({user}), "one two three"));
  EXPECT_EQ(want, text_of(json::array({system("other"), user}), "one two three"));
  // An empty one: none, not even theirs.
  const auto without = [&](const json& messages) {
    return generate({"-q", "--chat-template", "chatml", "--messages",
                     dir_.write("talk.json", messages.dump()), "--system", ""})
        .out;
  };
  EXPECT_EQ(without(json::array({system("other"), user})), text_of(json::array({user}), ""));
}

TEST_F(Generate, SaysThatStdinIsPutBehindThePrompt) {
  const ProcessResult result = generate({"a"}, {.input = "b c\n"});
  EXPECT_EQ(result.out, generate({"-q", "a\nb c"}).out);
  EXPECT_NE(result.err.find("3 bytes of stdin are put behind the prompt"), std::string::npos)
      << result.err;
}

TEST_F(Generate, JsonHasEveryField) {
  const json object = json::parse(generate({"--json", "--logprobs", "3", "-s", "7", "x"}).out);
  EXPECT_EQ(json::parse(generate({"--json", "--temp", "1", "-s", "7", "x"}).out)["seed"], 7);
  EXPECT_EQ(object["tokens"].size(), 8u);
  EXPECT_EQ(object["generated_tokens"], 8);
  EXPECT_EQ(object["prompt_tokens"], 5);  // BOS, the three bytes of the dummy prefix, x
  EXPECT_EQ(object["stop_reason"], "length");
  EXPECT_EQ(object["seed"], nullptr);  // nothing is drawn
  EXPECT_EQ(object["activations"], "float");
  ASSERT_EQ(object["logprobs"].size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const json& step = object["logprobs"][i];
    ASSERT_EQ(step["top"].size(), 3u);
    EXPECT_EQ(step["top"][0]["id"], object["tokens"][i]);  // greedy
    EXPECT_EQ(step["top"][0]["logprob"], step["logprob"]);
  }
  const json& timings = object["timings"];
  for (const char* field : {"prefill_s", "prefill_tokens_per_s", "decode_s", "decode_tokens_per_s",
                            "weight_gb_per_s"}) {
    EXPECT_TRUE(timings[field].is_number()) << field;
  }
  const double first_token = timings["first_token_s"], load = timings["load_s"];
  EXPECT_GT(timings["start_s"], 0);
  EXPECT_GE(timings["start_to_first_token_s"], double(timings["start_s"]) + load + first_token);
}

TEST_F(Generate, JsonLinesAreOneObjectATokenAndGiveTheText) {
  const std::string lines = generate({"--jsonl", "x"}).out;
  json whole = json::parse(generate({"--json", "x"}).out);
  std::string joined;
  std::istringstream stream(lines);
  json object;
  for (std::string line; std::getline(stream, line);) {
    object = json::parse(line);
    if (!object.contains("done")) joined += object["text"].get<std::string>();
  }
  EXPECT_EQ(joined, whole["text"].get<std::string>());
  // The last one has what --json has, but text and tokens.
  EXPECT_EQ(object["done"], true);
  object.erase("done");
  for (const char* key : {"text", "tokens"}) whole.erase(key);
  for (json* figures : {&object, &whole}) figures->erase("timings");
  EXPECT_EQ(object, whole);
}

TEST_F(Generate, TakesTokenIdsAsThePrompt) {
  const std::string ids = minfer({"tokenize", "-m", model_, "--ids", "x"}).out;
  const json by_text = json::parse(generate({"--json", "x"}).out);
  EXPECT_EQ(json::parse(generate({"--json", "--prompt-ids", ids}).out)["tokens"],
            by_text["tokens"]);
  EXPECT_EQ(json::parse(generate({"--json", "--prompt-ids", "5,6"}).out)["prompt_tokens"], 2);
  expect_failure(generate({"-q", "--prompt-ids", "5 259"}), 2,
                 "--prompt-ids: 259 is not an integer in [0, 258]");
  expect_failure(generate({"-q", "--prompt-ids", " "}), 2, "no ids");
  expect_failure(generate({"--prompt-ids", "5", "x"}), 2, "--prompt-ids");
}

// llama2.c's files have no tokenizer: ids come out as they went in.
TEST_F(Generate, AnswersInIdsWhereThereIsNoTokenizer) {
  const std::filesystem::path stories = data_dir() / "tinyllamas/stories260K";
  MINFER_NEEDS(stories);
  const auto run = [&](std::vector<std::string> args) {
    args.insert(args.begin(),
                {"generate", "-q", "--temp", "0", "-n", "8", "--prompt-ids", "1 403"});
    return minfer(args).out;
  };
  const std::string bare = stories / "stories260K.bin";
  const json object = json::parse(run({"-m", bare, "--json"}));
  const json whole = json::parse(run({"-m", stories / "stories260K.gguf", "--json"}));
  EXPECT_EQ(object["tokens"], whole["tokens"]);
  std::string ids;
  for (const json& id : object["tokens"]) ids += id.dump() + " ";
  EXPECT_EQ(run({"-m", bare}), ids + "\n");
  expect_failure(minfer({"generate", "-q", "-m", bare, "-p", "x"}), 3, "has no tokenizer");
}

TEST_F(Generate, CountsOfTokens) {
  EXPECT_EQ(generate({"-q", "-n", "0", "x"}).out, "\n");
  const json all = json::parse(generate({"--json", "-n", "-1", "-c", "20", "x"}).out);
  EXPECT_EQ(all["stop_reason"], "context");
  EXPECT_EQ(all["prompt_tokens"].get<int>() + all["generated_tokens"].get<int>(), 21);
  EXPECT_EQ(json::parse(generate({"--json", "--no-bos", "x"}).out)["prompt_tokens"], 4);
}

TEST_F(Generate, StopStringIsNotPrinted) {
  const std::string text = json::parse(generate({"--json", "-n", "64", "x"}).out)["text"];
  size_t at = text.size() / 2;
  while (utf8_char_bytes(std::string_view(text).substr(at)) == 0) --at;
  const std::string stop = text.substr(at, utf8_char_bytes(std::string_view(text).substr(at)));
  const json stopped = json::parse(
      generate({"--json", "-n", "64", "--stop", "never there", "--stop", stop, "x"}).out);
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["stop_reason"], "stop");
}

TEST_F(Generate, SeedRepeatsAndDiffers) {
  const auto with_seed = [&](const char* seed) {
    return minfer({"generate", "-q", "-m", model_, "-n", "32", "--ignore-eos", "-s", seed, "x"})
        .out;
  };
  EXPECT_EQ(with_seed("1"), with_seed("1"));
  EXPECT_NE(with_seed("1"), with_seed("2"));
}

TEST_F(Generate, LogitBiasForcesAToken) {
  const json object = json::parse(generate({"--json", "--logit-bias", "68=1000", "x"}).out);
  EXPECT_EQ(object["text"], "AAAAAAAA");  // 3 + 'A'
}

TEST_F(Generate, EnvironmentConfigFileAndCommandLineComeInThisOrder) {
  const std::string config = dir_.write("c.toml", "predict = 3\n[generate]\nignore-eos = true\n");
  const auto generated = [&](std::vector<std::string> args, const ProcessOptions& options) {
    args.insert(args.begin(), {"generate", "-m", model_, "--temp", "0", "--json", "x"});
    const ProcessResult result = minfer(args, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["generated_tokens"].get<int>();
  };
  const ProcessOptions environment = {
      .environment = {{"MINFER_PREDICT", "2"}, {"MINFER_IGNORE_EOS", "1"}}};
  EXPECT_EQ(generated({}, environment), 2);
  EXPECT_EQ(generated({"--config", config}, environment), 3);
  EXPECT_EQ(generated({"--config", config, "-n", "4"}, environment), 4);
  EXPECT_EQ(generated({}, {.environment = {{"MINFER_CONFIG", config}}}), 3);
  expect_failure(generate({"--config", dir_.write("bad.toml", "tmp = 0\n"), "x"}), 2, "tmp");
}

TEST_F(Generate, LogGoesToAFileAsWell) {
  const std::string log = dir_.path() / "log.txt";
  EXPECT_EQ(generate({"-q", "--log-level", "info", "--log-file", log, "x"}).exit_code, 0);
  EXPECT_NE(read_file(log).find("loaded in"), std::string::npos);
}

// A full disk is told in one line, and the text comes nevertheless.
TEST_F(Generate, TellsOnceThatTheLogIsNotWritten) {
  const ProcessResult result =
      generate({"-v", "--temp", "0", "-n", "4", "--log-file", "/dev/full", "Once"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, generate({"-v", "--temp", "0", "-n", "4", "Once"}).out);
  const size_t at = result.err.find("minfer: error: --log-file: ");
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("--log-file", at + 27), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("LOG ERROR"), std::string::npos) << result.err;
}

// The same bytes for any locale and any number of threads.
TEST_F(Generate, GreedyTextHasOneHash) {
  std::set<std::string> hashes;
  for (int run = 0; run < 100; ++run) {
    const ProcessResult result =
        minfer({"generate", "-m", model_, "-q", "--temp", "0", "-n", "256", "--ignore-eos", "-t",
                run % 2 == 0 ? "1" : "2", "Once upon a time"},
               {.environment = {{"LC_ALL", run % 3 == 0   ? "C"
                                           : run % 3 == 1 ? "C.UTF-8"
                                                          : "de_DE"}}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    hashes.insert(sha256_hex(result.out));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(GenerateStories, MatchesThePublishedText) {
  const std::filesystem::path stories = data_dir() / "tinyllamas/stories260K";
  MINFER_NEEDS(stories);
  const json expected = json::parse(read_file(data_dir() / "expected/greedy-text.json"));
  const std::string want = expected["cases"][0]["expected_text"];
  const auto text = [&](const std::string& file, const std::vector<std::string>& more) {
    std::vector<std::string> args = {MINFER_BINARY, "generate", "-q", "--temp", "0",           "-n",
                                     "200",         "-p",       "",   "-m",     stories / file};
    args.insert(args.end(), more.begin(), more.end());
    return run_process(args).out;
  };
  EXPECT_EQ(text("stories260K.gguf", {}), want + "\n");
  for (const char* file : {"stories260K.bin", "stories260K-v1.bin"}) {
    for (const char* tokenizer : {"tok512.bin", "tok512.model"}) {
      EXPECT_EQ(text(file, {"--tokenizer", stories / tokenizer}), want + "\n") << file;
    }
  }
}

TEST(GenerateSmolLm2, AnswersInItsChatTemplate) {
  MINFER_NEEDS(smollm2_path());
  const ProcessResult result =
      run_process({MINFER_BINARY, "generate", "-q", "-m", smollm2_path(), "--chat", "--temp", "0",
                   "What is the capital of France?"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("Paris"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("<|im_end|>"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace minfer::test
