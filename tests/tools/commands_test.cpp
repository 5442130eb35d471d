#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using Commands = MinferProcess;
using nlohmann::json;

TEST_F(Commands, HelpHasExamplesFirst) {
  for (const char* name : {"generate", "tokenize", "inspect", "eval", "bench", "completions"}) {
    const ProcessResult help = minfer({name, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_LT(help.out.find("Examples:"), help.out.find("Options:")) << name;
    EXPECT_EQ(help.out.find("--log-file"), std::string::npos);
    EXPECT_NE(minfer({name, "--help-all"}).out.find("--log-file"), std::string::npos);
  }
  EXPECT_NE(minfer({"--help-all"}).out.find("--repeat-penalty"), std::string::npos);
}

TEST_F(Commands, VersionNamesCompilerAndPath) {
  const std::string text = minfer({"--version"}).out;
  EXPECT_TRUE(text.starts_with("minfer ")) << text;
  EXPECT_NE(text.find("compiler: "), std::string::npos);
  EXPECT_NE(
      minfer({"--version"}, {.environment = {{"MINFER_CPU_ISA", "base"}}}).out.find("cpu base"),
      std::string::npos);
}

TEST_F(Commands, TokenizeInEveryForm) {
  const auto tokenize = [&](std::vector<std::string> args, const ProcessOptions& options = {}) {
    args.insert(args.begin(), {"tokenize", "-m", model_});
    const ProcessResult result = minfer(args, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  // The dummy prefix is one character of three bytes.
  EXPECT_EQ(tokenize({"--ids", "A\n"}), "1 229 153 132 68 13\n");
  EXPECT_EQ(tokenize({"A", "--no-bos"}), "229\t<0xE2>\n153\t<0x96>\n132\t<0x81>\n68\t<0x41>\n");
  EXPECT_EQ(tokenize({"--count", "-f", dir_.write("t.txt", "A\n")}), "6\n");
  EXPECT_EQ(tokenize({"--count"}, {.input = "A\n"}), "6\n");
  EXPECT_EQ(tokenize({"--decode", "1 68 69"}), "AB\n");
  EXPECT_EQ(tokenize({"--decode", "229"}), "\xef\xbf\xbd\n");
  const json object = json::parse(tokenize({"--json", "A"}));
  EXPECT_EQ(object["count"], 5);
  EXPECT_EQ(object["ids"][4], 68);
  EXPECT_EQ(object["pieces"][4], "<0x41>");
}

TEST_F(Commands, InspectSaysWhatIsThere) {
  const ProcessResult text = minfer({"inspect", model_, "--check", "--tensors"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("blk.1.ffn_up.weight"), std::string::npos);
  const json object = json::parse(minfer({"inspect", "--json", "--ctx", "100", model_}).out);
  EXPECT_EQ(object["architecture"], "llama");
  EXPECT_EQ(object["n_tensors"], 20);
  EXPECT_EQ(object["bpw"], 32.0);
  EXPECT_EQ(object["types"]["F32"]["n_tensors"], 20);
  EXPECT_EQ(object["memory"]["kv_bytes"], 100 * 2 * 2 * 2 * 32);
  EXPECT_EQ(object["config"]["n_layers"], 2);
  EXPECT_EQ(object["tokenizer"]["n_tokens"], 259);
  EXPECT_EQ(object["tokenizer"]["bos"], json({{"id", 1}, {"piece", "<s>"}, {"file", "tiny.gguf"}}));
  EXPECT_EQ(object["tokenizer"]["eos"][0]["id"], 2);
  EXPECT_EQ(object["tokenizer"]["chat_template"], "no");
  EXPECT_NE(text.out.find("  bos          1 <s> (tiny.gguf)\n"), std::string::npos) << text.out;
}

// What all ranks have of a model is the model: a tied embedding counts once.
TEST_F(Commands, BenchOnRanksNamesTheWholeModel) {
  const auto row = [&](const char* n_ranks) {
    const ProcessResult result =
        minfer({"bench", "--synthetic", "smollm2-135m:int4", "-p", "1", "-n", "0", "-r", "1",
                "--device", "cpu", "--tp", n_ranks, "-q", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["results"][0];
  };
  const json one = row("1"), two = row("2");
  EXPECT_EQ(one["model_n_params"], 134515008);
  for (const char* field : {"model", "model_size", "model_n_params"}) {
    EXPECT_EQ(two[field], one[field]) << field;
  }
  EXPECT_EQ(two["backend"].get<std::string>().substr(0, 4), "2 x ");
}

TEST_F(Commands, TpThatIsNoNumberOfRanksIsRefused) {
  expect_failure(generate({"-q", "--device", "cpu", "--tp", "0", "x"}), 2, "--tp: 0");
  expect_failure(generate({"-q", "--device", "cpu", "--tp", "two", "x"}), 2, "--tp: two");
  // Without MPI in the build, or without mpirun.
  expect_failure(generate({"-q", "--device", "cpu", "--tp", "mpi", "x"}), 2, "--tp mpi: ");
  expect_failure(minfer({"bench", "limits", "--tp", "mpi", "-q"}), 2, "runs in one process");
}

TEST_F(Commands, BenchMeasuresAndPredictsAllReduces) {
  const ProcessResult result =
      minfer({"bench", "allreduce", "--device", "cpu", "--tp", "3", "-r", "2", "--max-bytes",
              "65536", "--simulate", "4,64", "--alpha", "2", "--beta", "300", "-q", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object["ranks"], 3);
  EXPECT_EQ(object["results"].size(), 7);  // 1 KB to 64 KB
  for (const json& row : object["results"]) EXPECT_GT(row["us"], 0);
  EXPECT_EQ(object["fits"][0]["algorithm"], "ring");
  // A ring of 4: six steps of 2 us and a quarter of the bytes at 300 GB/s.
  const json& first = object["simulated"][0];
  EXPECT_EQ(first["algorithm"], "ring");
  EXPECT_NEAR(first["predicted_us"].get<double>(), 6 * (2 + 256 / 300e3), 1e-6);
  EXPECT_NEAR(first["simulated_us"].get<double>(), first["predicted_us"].get<double>(), 0.1);
  expect_failure(minfer({"bench", "allreduce", "--device", "cpu", "-q"}), 2, "--tp N");
  const ProcessResult alone = minfer({"bench", "allreduce", "--simulate", "4096", "-q"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_NE(alone.out.find("ring slower than two-level"), std::string::npos) << alone.out;
}

TEST_F(Commands, BenchMeasuresEachTest) {
  const ProcessResult result = minfer(
      {"bench", "-m", model_, "-q", "-p", "4,8", "-n", "3", "-d", "0,5", "-r", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_GT(object["limits"]["read_bytes_per_s"], 0);
  EXPECT_TRUE(object["machine"]["cpu"].is_string());
  std::vector<std::string> tests;
  for (const json& row : object["results"]) {
    tests.push_back(row["test"]);
    EXPECT_EQ(row["samples_ts"].size(), 2u);
    EXPECT_GT(row["avg_ts"], 0);
  }
  EXPECT_EQ(tests,
            (std::vector<std::string>{"pp4", "pp8", "tg3", "pp4 @ d5", "pp8 @ d5", "tg3 @ d5"}));
}

// 6 tokens by passes that take 1 + 50 % of 4, one after the other: 3, 3; with none taken 6 passes.
TEST_F(Commands, BenchMeasuresDrafts) {
  const auto results = [&](const char* percent) {
    const ProcessResult result =
        minfer({"bench", "-m", model_, "-q", "-p", "0", "-n", "6", "-d", "5", "-r", "2",
                "--draft-tokens", "0,4", "--draft-accepted", percent, "--device", "cpu", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["results"];
  };
  const json half = results("50"), none = results("0");
  ASSERT_EQ(half.size(), 2u);
  EXPECT_EQ(half[0]["test"], "tg6 @ d5");
  EXPECT_TRUE(half[0]["pass_s"].is_null());
  EXPECT_EQ(half[1]["test"], "tg6 + 4 drafted (50 % taken) @ d5");
  const auto passes = [](const json& row) {
    return row["avg_ns"].get<double>() * 1e-9 / row["pass_s"].get<double>();
  };
  EXPECT_NEAR(passes(half[1]), 2, 1e-6);
  EXPECT_NEAR(passes(none[1]), 6, 1e-6);
  EXPECT_NEAR(half[1]["bytes_per_token"].get<double>(),
              none[1]["bytes_per_token"].get<double>() / 3, 1);
  EXPECT_NEAR(half[1]["flops_per_token"].get<double>(),
              none[1]["flops_per_token"].get<double>() / 3, 1);
  const ProcessResult refused =
      minfer({"bench", "-m", model_, "--draft-tokens", "4", "--parallel", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--draft-tokens and --parallel"), std::string::npos) << refused.err;
}

// The shape `tiny` has a context of 512; a model read from a file keeps to its own.
TEST_F(Commands, BenchGoesBeyondTheContextOfAShape) {
  const ProcessResult result = minfer({"bench", "--synthetic", "tiny:f16", "-q", "-p", "0", "-n",
                                       "2", "-d", "700", "-r", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["results"][0]["test"], "tg2 @ d700");
  const ProcessResult refused = minfer({"bench", "-m", model_, "-n", "2", "-d", "100000"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("of context, the model was trained on"), std::string::npos)
      << refused.err;
}

TEST_F(Commands, BenchTakesSeveralModels) {
  const ProcessResult result =
      minfer({"bench", "-m", model_, "--synthetic", "tiny:f16", "-m", model_, "--synthetic",
              "tiny:int8", "-q", "-p", "8", "-n", "2", "-r", "1", "-o", "json"},
             {.environment = {{"MINFER_MODEL", "/not/looked/at"}}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> models;
  for (const json& row : json::parse(result.out)) {
    models.push_back(row["model"]);
    const bool prefill = row["n_prompt"] > 0;
    EXPECT_GT(row["flops_per_token"], 0);
    if (!prefill) {
      EXPECT_EQ(row["limit"], "read");
    }
    EXPECT_EQ(row["limit_share"], row[row["limit"] == "read" ? "read_share" : "arithmetic_share"]);
  }
  ASSERT_EQ(models.size(), 8u);
  EXPECT_EQ(models[0], models[2]);
  EXPECT_NE(models[4], models[6]);
  // A usual model is none beside one that is named.
  const ProcessResult alone = minfer(
      {"bench", "--synthetic", "tiny:f16", "-q", "-p", "8", "-n", "0", "-r", "1", "-o", "json"},
      {.environment = {{"MINFER_MODEL", model_}}});
  EXPECT_EQ(json::parse(alone.out).size(), 1u) << alone.err;
}

TEST_F(Commands, BenchTimesChosenKernels) {
  const ProcessResult result = minfer({"bench", "kernels", "--device", "cpu", "-q", "--filter",
                                       "^attention_decode.*int8|^rms_norm", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_GT(object["limits"]["fma_flops_per_s"], 0);
  std::vector<std::string> kernels;
  for (const json& row : object["results"]) {
    kernels.push_back(row["kernel"]);
    EXPECT_GT(row["us"], 0);
    EXPECT_GT(row["gb_per_s"], 0);
    EXPECT_GT(row["limit_share"], 0);
    EXPECT_TRUE(row["of_cublas"].is_null());
  }
  EXPECT_EQ(kernels, (std::vector<std::string>{"rms_norm", "attention_decode"}));
}

TEST_F(Commands, CompletionsAreSoundShell) {
  const std::string bash = dir_.write("completion.bash", minfer({"completions", "bash"}).out);
  EXPECT_EQ(run_process({"/bin/bash", "-n", bash}).exit_code, 0);
  // What Tab gives behind "minfer", a command and the start of a word.
  const auto completed = [&](const std::string& command, const std::string& word) {
    return run_process({"/bin/bash", "-c",
                        "source " + bash + "; COMP_WORDS=(minfer " + command + " " + word +
                            "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _minfer; "
                            "echo \"${COMPREPLY[@]}\""})
        .out;
  };
  EXPECT_EQ(completed("generate", "--kv-"), "--kv-type\n");
  EXPECT_EQ(completed("bench", "lim"), "limits\n");
  EXPECT_EQ(completed("completions", "zs"), "zsh\n");
  EXPECT_EQ(completed("eval", "per"), "perplexity\n");
  EXPECT_EQ(completed("eval perplexity", "--conv"), "--convention\n");
  EXPECT_EQ(completed("eval perplexity --convention", "hf"), "hf-stride\n");
  EXPECT_NE(minfer({"completions", "zsh"}).out.find("#compdef minfer"), std::string::npos);
  EXPECT_NE(minfer({"completions", "fish"}).out.find("-l kv-type"), std::string::npos);
  const std::string manual = minfer({"man"}).out;
  EXPECT_NE(manual.find(".SH EXIT STATUS"), std::string::npos);
  EXPECT_NE(manual.find(".SS minfer eval perplexity"), std::string::npos);
}

}  // namespace
}  // namespace minfer::test
