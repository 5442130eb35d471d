#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using Failures = MinferProcess;

TEST_F(Failures, UsageIsTwo) {
  expect_failure(minfer({}), 2, "generate, chat, tokenize, inspect, eval, quantize, bench");
  expect_failure(minfer({"frobnicate"}), 2, "frobnicate");
  expect_failure(generate({"--no-such-option", "x"}), 2, "--no-such-option");
  expect_failure(generate({"-n", "12abc", "x"}), 2, "--predict: 12abc is not an integer in [-1,");
  expect_failure(generate({"-n", "-2", "x"}), 2, "--predict");
  expect_failure(generate({"-n", "", "x"}), 2, "--predict");
  expect_failure(generate({"--temp", "nan", "x"}), 2, "--temp: nan is not a number in [0, 100]");
  expect_failure(generate({"--top-p", "1.5", "x"}), 2, "--top-p");
  expect_failure(generate({"--kv-type", "f64", "x"}), 2, "f32|f16|int8");
  expect_failure(generate({"--device", "cuda", "--kv-type", "f32", "x"}), 2, "--kv-type f32 runs");
  expect_failure(minfer({"bench", "-m", model_, "--device", "cuda", "--kv-type", "f32", "-q"}), 2,
                 "--kv-type f32 runs");
  expect_failure(generate({"--tp", "8", "x"}), 2, "--tp 8: this model can be cut for 1 to 4 ranks");
  expect_failure(generate({"--activations", "fp8", "x"}), 2, "float|int8|int8-asym");
  expect_failure(generate({"--device", "cuda", "--activations", "int8-asym", "x"}), 2,
                 "--device cpu");
  expect_failure(generate({"--device", "cuda", "--activations", "int8", "--gemm", "cublas", "x"}),
                 2, "cuBLAS takes float");
  expect_failure(generate({"--device", "tpu", "x"}), 2, "tpu");
  expect_failure(generate({"--device", "cpu", "--gemm", "cublas", "x"}), 2, "--device cuda");
  expect_failure(minfer({"bench", "kernels", "--filter", "(", "-q"}), 2, "regular expression");
  const auto step = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"bench", "step", "--device", "cuda", "-q"};
    args.insert(args.end(), more.begin(), more.end());
    return minfer(args);
  };
  expect_failure(step({"-m", model_, "--device", "cpu"}), 2, "runs on a card");
  expect_failure(step({"-m", model_, "--tp", "2"}), 2, "one card");
  expect_failure(step({"-m", model_, "-d", "0,8"}), 2, "one depth");
  expect_failure(step({"-m", model_, "-n", "2,4"}), 2, "one number of tokens");
  expect_failure(step({"-m", model_, "-n", "0"}), 2, "decodes nothing");
  expect_failure(step({"-m", model_, "--synthetic", "tiny:f16"}), 2, "one model");
  expect_failure(minfer({"bench", "kernels", "--device", "cpu", "--filter", "warp_drive", "-q"}), 2,
                 "warp_drive");
  expect_failure(generate({"--logit-bias", "5", "x"}), 2, "--logit-bias");
  expect_failure(generate({"--stop=", "x"}), 2, "--stop");
  expect_failure(generate({"--system", "s", "x"}), 2, "--chat");
  expect_failure(generate({"--chat", "--chat-template", "none", "x"}), 2, "chatml");
  expect_failure(generate({"--logprobs", "2", "x"}), 2, "--json");
  expect_failure(generate({"--json", "--jsonl", "x"}), 2, "--jsonl");
  expect_failure(generate({"-p", "a", "b"}), 2, "more than once");
  expect_failure(generate({}), 2, "no prompt");
  expect_failure(minfer({"completions", "tcsh"}), 2, "bash|zsh|fish");
  expect_failure(minfer({"tokenize", "-m", model_, "--decode", "1 x"}), 2, "--decode");
  expect_failure(minfer({"tokenize", "-m", model_, "--decode", "259"}), 2, "258");
}

TEST_F(Failures, PromptPastTheContextIsTwoWithBothNumbers) {
  const std::string prompt(2000, 'x');
  const ProcessResult result = generate({"-q", prompt});
  expect_failure(result, 2, "2004");
  EXPECT_NE(result.err.find("1024"), std::string::npos);
  expect_failure(generate({"-q", "-c", "2048", "x"}), 2, "1024");
}

TEST_F(Failures, NoModelIsTwoAndNamesTheScript) {
  expect_failure(minfer({"generate", "-m", "smollm2", "x"}), 2, "scripts/get_model.sh smollm2");
  expect_failure(minfer({"generate", "-m", "gemma3-270m", "x"}), 2,
                 "scripts/get_model.sh gemma3-270m");
}

TEST_F(Failures, InputIsThree) {
  const std::string missing = dir_.path() / "missing.gguf";
  for (const char* name : {"generate", "tokenize"}) {
    expect_failure(minfer({name, "-m", missing, "x"}), 3, "missing.gguf");
  }
  expect_failure(minfer({"inspect", missing}), 3, "missing.gguf");
  expect_failure(minfer({"bench", "-m", missing, "-q"}), 3, "missing.gguf");
  const std::string empty = dir_.path() / "empty";
  ASSERT_EQ(::mkdir(empty.c_str(), 0700), 0);
  expect_failure(minfer({"generate", "-m", empty, "x"}), 3, "config.json");
  expect_failure(generate({"-f", missing}), 3, "missing.gguf");
  expect_failure(generate({"-f", dir_.path()}), 3, "directory");
  expect_failure(generate({"--config", missing, "x"}), 3, "missing.gguf");

  const std::string fifo = dir_.path() / "fifo.gguf";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_failure(minfer({"inspect", fifo}), 3, "fifo.gguf");

  const std::string whole = tiny_gguf();
  const std::string cut = dir_.write("cut.gguf", std::string_view(whole).substr(0, 1000));
  expect_failure(minfer({"inspect", cut}), 3, "cut.gguf");
  const std::string hostile = dir_.write("line\nbreak.gguf", "no model at all");
  expect_failure(minfer({"inspect", hostile}), 3, "line\\x0abreak.gguf");
}

TEST_F(Failures, UnsupportedArchitectureIsNamed) {
  const std::string path = dir_.write("other.gguf", tiny_gguf({.architecture = "mamba"}));
  expect_failure(minfer({"generate", "-m", path, "x"}), 3, "mamba");
  const ProcessResult inspected = minfer({"inspect", path, "-q"});
  EXPECT_EQ(inspected.exit_code, 3);
  EXPECT_NE(inspected.out.find("not supported"), std::string::npos) << inspected.out;
}

TEST_F(Failures, NonFiniteWeightIsThree) {
  const std::string path = dir_.write("poisoned.gguf", tiny_gguf({.poisoned = true}));
  expect_failure(minfer({"inspect", path, "--check", "-q"}), 3, "blk.1.ffn_up.weight");
}

TEST_F(Failures, SystemIsFour) {
  const ProcessResult full = generate({"-q", "x"}, {.stdout_path = "/dev/full"});
  expect_failure(full, 4, "No space left");
  expect_failure(minfer({"--help"}, {.stdout_path = "/dev/full"}), 4, "No space left");
  expect_failure(generate({"--log-file", "/proc/none/log", "x"}), 4, "--log-file");
  if (::geteuid() == 0) return;  // root may read everything
  ASSERT_EQ(::chmod(model_.c_str(), 0), 0);
  expect_failure(generate({"x"}), 4, "Permission denied");
}

TEST_F(Failures, CudaIsSix) {
  expect_failure(generate({"--device", "cuda", "x"}), 6, "cuda");
  expect_failure(generate({"--device", "cuda:0,1", "x"}), 6, "cuda:0,1");
  expect_failure(minfer({"bench", "limits", "--device", "cuda", "-q"}), 6, "cuda");
  expect_failure(minfer({"bench", "kernels", "--device", "cuda", "-q"}), 6, "cuda");
  expect_failure(minfer({"bench", "step", "-m", model_, "--device", "cuda", "-q"}), 6, "cuda");
}

using Ends = MinferProcess;

// Endless on the scale of a test, so that a signal comes in the middle.
TempDir& long_model_dir() {
  static TempDir dir;
  return dir;
}
std::vector<std::string> endless(const std::string& format) {
  static const std::string path =
      long_model_dir().write("long.gguf", tiny_gguf({.context = 100000}));
  std::vector<std::string> args = {"generate", "-m", path, "-n", "-1", "--ignore-eos", "-q", "x"};
  if (!format.empty()) args.push_back(format);
  return args;
}

TEST_F(Ends, SignalEndsWithTheTextSoFar) {
  for (const auto& [signal, code] :
       {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 129}}) {
    Process process(command(endless("")));
    process.read_out(200);
    process.send(signal);
    const ProcessResult result = process.wait();
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.err, "");
    ASSERT_GE(result.out.size(), 200u);
    EXPECT_EQ(result.out.back(), '\n');
  }
}

TEST_F(Ends, SignalLeavesWholeJson) {
  Process process(command(endless("--jsonl")));
  process.read_out(200);
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  const size_t last = result.out.rfind('\n', result.out.size() - 2);
  EXPECT_TRUE(nlohmann::json::accept(result.out.substr(last + 1)));
}

TEST_F(Ends, ReaderThatGoesAwayIs141) {
  Process process(command(endless("")));
  process.read_out(100);
  process.close_out();
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 141);
  EXPECT_EQ(result.err, "");
}

TEST_F(Ends, ClosedStandardFilesDoNoHarm) {
  const std::string want = generate({"-q", "x"}).out;
  EXPECT_EQ(generate({"-q", "x"}, {.close_stdin = true}).out, want);
  EXPECT_EQ(generate({"x"}, {.close_stderr = true}).out, want);
  EXPECT_EQ(generate({"-q", "x"}, {.close_stdout = true}).exit_code, 0);
  EXPECT_EQ(
      generate({"x"}, {.close_stdin = true, .close_stdout = true, .close_stderr = true}).exit_code,
      0);
}

}  // namespace
}  // namespace minfer::test
