// What the operating system refuses is no bug of minfer: never exit code 1.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tools/quantize_process.h"

namespace minfer::test {
namespace {

using SystemErrors = Quantize;

// Runs a line of shell in the test's directory; $0 is the binary.
ProcessResult shell(const std::string& line, const std::vector<std::string>& args = {}) {
  std::vector<std::string> command = {"/bin/bash", "-c", line, MINFER_BINARY};
  command.insert(command.end(), args.begin(), args.end());
  return run_process(command);
}

TEST_F(SystemErrors, LoopsAndLongNamesAreThree) {
  const std::string loop = dir_.path() / "loop", name(300, 'x'),
                    path = "/" + std::string(5000, 'x');
  fs::create_symlink(loop, loop);
  for (const std::string& bad : {loop, loop + "/model.gguf", name, path, in_ + "/config.json/x"}) {
    const std::vector<std::vector<std::string>> commands = {
        {"generate", "-m", bad, "x"},
        {"tokenize", "-m", bad, "x"},
        {"inspect", bad},
        {"inspect", bad, "--check"},
        {"quantize", bad, out_},
        {"quantize", bad},
        {"bench", "-m", bad, "-q"},
        {"eval", "perplexity", "-m", bad, "--text", model_},
        {"generate", "-m", model_, "-f", bad},
        {"eval", "score", "-m", model_, "--input", bad},
        {"tokenize", "-m", model_, "-f", bad}};
    for (const auto& args : commands) {
      const ProcessResult result = minfer(args);
      EXPECT_EQ(result.exit_code, 3) << args[0] << ' ' << args[1] << ' ' << result.err;
      EXPECT_TRUE(result.err.starts_with("minfer: error: ")) << result.err;
    }
  }
  for (const std::string& bad : {loop, loop + "/out", name, path}) {
    const ProcessResult result = quantize({in_, bad, "-q"});
    EXPECT_TRUE(result.exit_code == 3 || result.exit_code == 4) << result.exit_code << result.err;
  }
  expect_clean({"loop"});
}

TEST_F(SystemErrors, WorkingDirectoryThatHasGone) {
  const std::string gone = "mkdir $1/gone && cd $1/gone && rmdir $1/gone && ";
  const ProcessResult relative = shell(gone + "exec $0 quantize in out", {dir_.path()});
  EXPECT_EQ(relative.exit_code, 3) << relative.err;
  const ProcessResult output = shell(gone + "exec $0 quantize $2 out -q", {dir_.path(), in_});
  EXPECT_EQ(output.exit_code, 4) << output.err;
  const ProcessResult default_output = shell(gone + "exec $0 quantize $2 -q", {dir_.path(), in_});
  EXPECT_EQ(default_output.exit_code, 0) << default_output.err;
  const ProcessResult run = shell(gone + "exec $0 generate -m $2 -n 4 -q x", {dir_.path(), model_});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_clean({"in-int4-g64"});
}

#ifdef MINFER_FAULT_SHIM
// The work is done by as many as there are, and the result does not depend on their number.
TEST_F(SystemErrors, ThreadsThatCannotBeStarted) {
  const std::string want = generate({"-q", "x"}).out;
  ASSERT_EQ(quantize({in_, out_, "-q"}).exit_code, 0);
  for (const char* fault : {"thread:1:11+", "thread:2:11+", "thread:3:11", "thread:20:11+"}) {
    const ProcessOptions options = {
        .environment = {{"LD_PRELOAD", MINFER_FAULT_SHIM}, {"MINFER_FAULT", fault}}};
    const ProcessResult run = generate({"-t", "4", "-q", "x"}, options);
    EXPECT_EQ(run.exit_code, 0) << fault << run.err;
    EXPECT_EQ(run.out, want);
    const ProcessResult other = quantize({in_, out_ + "2", "-t", "4", "-q"}, options);
    EXPECT_EQ(other.exit_code, 0) << fault << other.err;
    EXPECT_EQ(files_in(out_ + "2"), files_in(out_));
    fs::remove_all(out_ + "2");
  }
}
#endif

TEST_F(SystemErrors, HangupThatIsIgnoredStaysIgnored) {
  const ProcessResult run = shell(
      "trap '' HUP; $0 generate -m $1 -n 300 --ignore-eos -q x & "
      "for i in $(seq 200); do kill -HUP $!; sleep 0.001; done; wait $!",
      {model_});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(SystemErrors, FigureThatIsNotFiniteIsEight) {
  const fs::path model = data_dir() / "found-in-use/hostile/numeric-ppl-inf";
  MINFER_NEEDS(model);
  std::string words;
  for (int i = 0; i < 200; ++i) words += "once upon a time there was a cat. ";
  const std::string text = dir_.write("text", words);
  for (const char* convention : {"gptq", "llamacpp", "lm-eval"}) {
    const ProcessResult result =
        minfer({"eval", "perplexity", "-m", model, "--text", text, "--convention", convention,
                "--ctx", "64", "-q", "--json"});
    expect_failure(result, 8, "not finite");
  }
}

}  // namespace
}  // namespace minfer::test
