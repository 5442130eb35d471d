#include <map>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using CommandLineUse = MinferProcess;

TEST_F(CommandLineUse, NearestOptionAndCommandAreNamed) {
  expect_failure(generate({"--tmp", "0", "x"}), 2,
                 "unknown option --tmp; did you mean --temp? (minfer generate --help)");
  expect_failure(generate({"--n-predct", "4", "x"}), 2, "did you mean --n-predict?");
  expect_failure(generate({"--ignore_eos", "x"}), 2, "did you mean --ignore-eos?");
  expect_failure(generate({"--predic=4", "x"}), 2, "did you mean --predict?");
  expect_failure(minfer({"quantize", "in", "--asymetric"}), 2, "did you mean --asymmetric?");
  expect_failure(minfer({"bench", "limits", "--jsn"}), 2,
                 "did you mean --json? (minfer bench limits --help)");
  expect_failure(minfer({"generat", "x"}), 2, "did you mean generate? (minfer --help)");
  expect_failure(minfer({"bench", "limit"}), 2, "did you mean limits? (minfer bench --help)");
  expect_failure(minfer({"perplexity"}), 2, "did you mean eval perplexity?");
  expect_failure(minfer({"run", "x"}), 2, "did you mean generate?");
  expect_failure(minfer({model_}), 2, "did you mean generate -m");
  expect_failure(minfer({"qqqqq"}), 2, "there are generate, chat, tokenize, inspect");
  expect_failure(generate({"--zzzzzz", "x"}), 2,
                 "unknown option --zzzzzz (minfer generate --help)");
  expect_failure(minfer({"--temp", "0", "generate", "x"}), 2,
                 "minfer generate, behind the command");
}

TEST_F(CommandLineUse, WhatIsMissingOrTooMuchIsSaid) {
  expect_failure(generate({"x", "--temp"}), 2, "--temp: needs a value (minfer generate --help)");
  expect_failure(generate({"two", "words"}), 2, "unexpected argument words");
  expect_failure(minfer({"inspect", "a", "b"}), 2, "unexpected argument b");
  expect_failure(generate({"-n=4", "x"}), 2, "unknown option -n=4");
  expect_failure(generate({"++"}), 2, "++: has to be the value of an option");
  for (const char* name : {"generate", "tokenize", "inspect", "bench"}) {
    expect_failure(minfer({name, "-m", ""}), 2, "--model: is empty");
  }
  expect_failure(minfer({"quantize", ""}), 2, "is empty, expected a model");
  expect_failure(generate({"-f", ""}), 2, "--file: is empty, expected a file");
}

TEST_F(CommandLineUse, NamesOfLlamaCpp) {
  const std::string want = generate({"-q", "--kv-type", "f32", "x"}).out;
  EXPECT_EQ(generate({"-q", "-ctk", "f32", "-ctv", "f32", "x"}).out, want);
  EXPECT_EQ(generate({"-q", "-t1", "--kv-type=f32", "x"}).out, want);
  expect_failure(generate({"-ngl", "99", "x"}), 2, "-ngl: is llama.cpp's; a model runs wholly on");
  expect_failure(generate({"-fa", "x"}), 2, "-fa: is llama.cpp's");
  // Behind a flag there is no value, behind other options there is.
  expect_failure(generate({"-cnv", "-ngl", "9", "x"}), 2, "-ngl: is llama.cpp's");
  expect_failure(generate({"--cache-type-k", "-ngl", "x"}), 2, "-ngl is none of f32|f16|int8");
  expect_failure(generate({"-fa", "on", "x"}), 2, "-fa: is llama.cpp's");
  expect_failure(generate({"--n-gpu-layers", "9", "x"}), 2, "--n-gpu-layers: is llama.cpp's");
  expect_failure(generate({"-sys", "be brief", "x"}), 2, "--system");  // understood: wants --chat
  expect_failure(minfer({"bench", "-sys", "a"}), 2, "llama.cpp's name of --system");
  expect_failure(generate({"-ctk", "q8_0", "x"}), 2, "q8_0 is none of f32|f16|int8");
  // No value of -n, but an option that there is not.
  expect_failure(generate({"-nxy", "x"}), 2, "unknown option -nxy");
  EXPECT_EQ(generate({"-q", "-p-ngl"}).exit_code, 0);
}

TEST_F(CommandLineUse, HelpInEveryPlace) {
  const std::string generate_help = minfer({"generate", "--help"}).out;
  EXPECT_TRUE(generate_help.starts_with("Continue a text")) << generate_help;
  EXPECT_EQ(minfer({"help", "generate"}).out, generate_help);
  EXPECT_EQ(minfer({"generate", "help"}).out, generate_help);
  EXPECT_EQ(minfer({"--help", "generate"}).out, generate_help);
  EXPECT_EQ(minfer({"generate", "--nonsense", "-h"}).out, generate_help);
  EXPECT_EQ(minfer({"help"}).out, minfer({"--help"}).out);
  EXPECT_EQ(minfer({"bench", "help"}).out, minfer({"bench", "--help"}).out);
  EXPECT_EQ(minfer({"eval", "help", "perplexity"}).out, minfer({"eval", "perplexity", "-h"}).out);
  EXPECT_EQ(minfer({"help", "generate", "--nonsense"}).out, generate_help);
  EXPECT_EQ(minfer({"help", "bench", "limits"}).out, minfer({"bench", "limits", "--help"}).out);
  EXPECT_EQ(minfer({"help", "generate", "--help-all"}).out, minfer({"generate", "--help-all"}).out);
  expect_failure(minfer({"help", "generat"}), 2, "did you mean generate?");
  const ProcessResult prompt = generate({"-q", "-p", "help"});
  EXPECT_EQ(prompt.exit_code, 0);
  EXPECT_FALSE(prompt.out.starts_with("Continue"));
}

TEST_F(CommandLineUse, AVariableIsNamed) {
  const auto with = [&](const char* name, const char* value) {
    return minfer({"generate", "-m", model_, "-n", "1", "x"}, {.environment = {{name, value}}});
  };
  expect_failure(with("MINFER_TEMP", "hot"), 2, "MINFER_TEMP: hot is not a number in [0, 100]");
  expect_failure(with("MINFER_KV_TYPE", "f8"), 2, "MINFER_KV_TYPE: f8 is none of f32|f16|int8");
  expect_failure(with("MINFER_IGNORE_EOS", "maybe"), 2, "MINFER_IGNORE_EOS: maybe is none of");
  expect_failure(with("MINFER_CONFIG", "/none.toml"), 3, "MINFER_CONFIG: /none.toml");
  EXPECT_EQ(with("MINFER_TEMP", "").exit_code, 0);
  // The command line comes first: what it overrides is not looked at.
  EXPECT_EQ(with("MINFER_PREDICT", "many").exit_code, 0);
}

// What is set for other calls spoils none: it yields to what comes before it.
TEST_F(CommandLineUse, VariablesYieldToTheCommandLine) {
  using Variables = std::map<std::string, std::string>;
  const auto generate_with = [&](const Variables& variables, std::vector<std::string> args) {
    std::vector<std::string> all = {"generate", "-m", model_, "-n", "2", "--temp", "0"};
    all.insert(all.end(), args.begin(), args.end());
    return minfer(all, {.environment = variables});
  };
  const std::string plain = generate_with({}, {"x"}).out;
  ASSERT_FALSE(plain.empty());
  for (const auto& [name, value] : Variables{{"SYSTEM", "Answer."},
                                             {"CHAT_TEMPLATE", "chatml"},
                                             {"TEMPLATE_VAR", "a=1"},
                                             {"PARALLEL", "4"},
                                             {"LOGPROBS", "2"},
                                             {"PROMPT", "y"},
                                             {"FILE", "/none.txt"},
                                             {"PROMPTS", "/none.jsonl"},
                                             {"PROMPT_IDS", "1"}}) {
    const ProcessResult result = generate_with({{"MINFER_" + name, value}}, {"x"});
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
    EXPECT_EQ(result.out, plain) << name;
  }
  EXPECT_EQ(generate_with({{"MINFER_CHAT", "1"}}, {"--no-chat", "x"}).out, plain);
  EXPECT_TRUE(
      generate_with({{"MINFER_JSON", "1"}}, {"--jsonl", "x"}).out.starts_with("{\"index\":0,"));
  EXPECT_EQ(generate_with({{"MINFER_JSONL", "0"}, {"MINFER_JSON", "1"}}, {"x"}).exit_code, 0);
  EXPECT_EQ(minfer({"tokenize", "-m", model_, "--ids", "x"},
                   {.environment = {{"MINFER_JSON", "1"}, {"MINFER_FILE", "/none.txt"}}})
                .out,
            minfer({"tokenize", "-m", model_, "--ids", "x"}).out);
  // Values that mean nothing exclude nothing.
  const std::string prompts = dir_.write("p.jsonl", R"({"prompt": "x"})"
                                                    "\n");
  EXPECT_EQ(minfer({"generate", "-m", model_, "-n", "1", "--draft", "none"},
                   {.environment = {{"MINFER_PROMPTS", prompts}}})
                .exit_code,
            0);
  const auto bench = [&](const Variables& variables, std::vector<std::string> args) {
    std::vector<std::string> all = {"bench", "-m", model_, "-p", "0", "-n", "4", "-r", "1"};
    all.insert(all.end(), args.begin(), args.end());
    return minfer(all, {.environment = variables}).out;
  };
  EXPECT_NE(bench({{"MINFER_PARALLEL", "2"}}, {"--draft-tokens", "0"}).find("tg4 x 2"),
            std::string::npos);
  EXPECT_NE(bench({{"MINFER_DRAFT_TOKENS", "1"}}, {"--parallel", "1"}).find("1 drafted"),
            std::string::npos);
  EXPECT_EQ(bench({{"MINFER_JSON", "1"}}, {"-o", "csv"}).find('{'), std::string::npos);
  EXPECT_EQ(minfer({"quantize", model_, "--dry-run"},
                   {.environment = {{"MINFER_CALIBRATION", "/none.txt"}}})
                .exit_code,
            0);
  const std::string text = dir_.write("text.txt", std::string(400, 'x'));
  EXPECT_EQ(minfer({"eval", "perplexity", "-m", model_, "--text", text, "--ctx", "32",
                    "--convention", "gptq"},
                   {.environment = {{"MINFER_STRIDE", "8"}}})
                .exit_code,
            0);
  // What yields itself drops nothing.
  const std::string two = dir_.write("two.toml", "prompts = '/none.jsonl'\nrender = true\n");
  EXPECT_EQ(minfer({"generate", "-m", model_, "-n", "1", "--config", two, "--jsonl"},
                   {.environment = {{"MINFER_PROMPT", "x"}}})
                .exit_code,
            0);
  EXPECT_TRUE(minfer({"tokenize", "-m", model_, "--config", two, "x"},
                     {.environment = {{"MINFER_JSON", "1"}}})
                  .out.starts_with("{"));
  // The file comes before the environment. Two of one place are a mistake, as on the command line.
  const std::string file = dir_.write("c.toml", "jsonl = true\n");
  EXPECT_EQ(generate_with({{"MINFER_JSON", "1"}}, {"--config", file, "x"}).exit_code, 0);
  expect_failure(generate_with({{"MINFER_JSON", "1"}, {"MINFER_JSONL", "1"}}, {"x"}), 2,
                 "--json and --jsonl exclude each other");
  expect_failure(generate_with({}, {"--system", "a", "x"}), 2, "--system, --chat-template");
  // What goes with something that is there stays.
  expect_failure(generate_with({{"MINFER_CHAT_TEMPLATE", "/none.jinja"}}, {"--chat", "x"}), 2,
                 "none.jinja");
}

TEST_F(CommandLineUse, NamesOfOptionsOutsideOfTheCommandLine) {
  const std::string file = dir_.write("c.toml", "ctx_size = 7\nmax_new_tokens = 1\n");
  const ProcessResult result =
      minfer({"generate", "-m", model_, "--config", file, "--json", "x"},
             {.environment = {{"MINFER_TEMPERATURE", "0"}, {"MINFER_TOP_K", "1"}}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto object = nlohmann::json::parse(result.out);
  EXPECT_EQ(object["generated_tokens"], 1);
  expect_failure(
      minfer({"generate", "-m", model_, "x"}, {.environment = {{"MINFER_TEMPERATURE", "hot"}}}), 2,
      "MINFER_TEMPERATURE: hot");
}

TEST_F(CommandLineUse, ErrorsOfAConfigurationFileHaveItsLine) {
  const auto with = [&](const std::string& text) {
    return generate({"--config", dir_.write("c.toml", text), "x"});
  };
  expect_failure(with("echo = true\n\ntop-k = \"many\"\n"), 2,
                 "c.toml:3: top-k: many is not an integer");
  expect_failure(with("[generate\n"), 3, "c.toml:1: ");
  expect_failure(with("[generate]\ntop-q = 1\n"), 2,
                 "c.toml:2: unknown option top-q; did you mean top-");
  expect_failure(with("[genrate]\ntemp = 0\n"), 2, "c.toml:2: minfer has no command genrate");
  expect_failure(with("temp = 1979-05-27\n"), 3, "c.toml:1: temp: expected text, a number");
  expect_failure(with("help = true\n"), 2, "unknown option help");
  expect_failure(with("temp = 0\ntemp = 1\n"), 3, "c.toml:2");
  expect_failure(with("stop = [[\"a\"]]\n"), 3, "c.toml:1: stop: expected");
  expect_failure(with("\xff\xfe"), 3, "c.toml:1");
}

TEST_F(CommandLineUse, AConfigurationFileServesEveryCommand) {
  const std::string config =
      dir_.write("c.toml", "model = '" + model_ +
                               "'\ntemp = 0.0\nquiet = true\n[generate]\npredict = 2\n"
                               "stop = [\"never\", \"there\"]\n[bench]\nn-prompt = [4, 8]\n"
                               "n-gen = 0\nrepetitions = 1\n[bench.limits]\nthreads = 1\n");
  EXPECT_EQ(minfer({"tokenize", "--config", config, "--count", "x"}).out, "5\n");
  const auto object =
      nlohmann::json::parse(minfer({"generate", "--config", config, "--json", "x"}).out);
  EXPECT_EQ(object["generated_tokens"], 2);
  const auto rows = nlohmann::json::parse(minfer({"bench", "--config", config, "-o", "json"}).out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["test"], "pp8");
}

// What looks like something else to a parser of arguments is a text all the same.
TEST_F(CommandLineUse, TextsAreTakenAsTheyAre) {
  for (const std::string text : {"[INST] a, b [/INST]", "- list", "bench", "a=b", "\"q\"", "{}"}) {
    const ProcessResult result = generate({"--json", "--echo", "-n", "1", text});
    ASSERT_EQ(result.exit_code, 0) << text << ": " << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out)["prompt"], text);
  }
  for (const std::string text : {"++", "--", "-ngl", "-n", "--temp=0", "[a,b]", "help"}) {
    const ProcessResult result = generate({"--json", "--echo", "-n", "1", "-p", text});
    ASSERT_EQ(result.exit_code, 0) << text << ": " << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out)["prompt"], text);
  }
  const ProcessResult help = generate({"--json", "--echo", "-n", "1", "--", "help"});
  ASSERT_EQ(help.exit_code, 0) << help.err;
  EXPECT_EQ(nlohmann::json::parse(help.out)["prompt"], "help");
}

// "Continue", then what a pipe brings behind one newline.
TEST_F(CommandLineUse, PipedTextStandsBehindThePrompt) {
  const auto prompt = [&](const std::vector<std::string>& args, const std::string& piped) {
    std::vector<std::string> all = {"--json", "--echo", "-n", "1"};
    all.insert(all.end(), args.begin(), args.end());
    const ProcessResult result = generate(all, {.input = piped});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["prompt"].get<std::string>();
  };
  EXPECT_EQ(prompt({"Sum up:"}, "one\ntwo\n"), "Sum up:\none\ntwo");
  EXPECT_EQ(prompt({"-p", "Sum up:"}, "one"), "Sum up:\none");
  EXPECT_EQ(prompt({"alone"}, ""), "alone");
  EXPECT_EQ(prompt({"ends\n"}, ""), "ends\n");
  EXPECT_EQ(prompt({"-f", dir_.write("p.txt", "file\n")}, "not read"), "file");
}

}  // namespace
}  // namespace minfer::test
