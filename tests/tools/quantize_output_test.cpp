#include <sys/stat.h>

#include "tests/tools/quantize_process.h"

namespace minfer::test {
namespace {

using QuantizeOutput = Quantize;
using Json = nlohmann::json;

TEST_F(QuantizeOutput, FormFollowsTheName) {
  const std::string gguf = dir_.path() / "a.gguf", file = dir_.path() / "b.safetensors";
  ASSERT_EQ(quantize({model_, gguf, "-q"}).exit_code, 0);
  EXPECT_TRUE(read_file(gguf).starts_with("GGUF"));
  EXPECT_NE(minfer({"inspect", gguf}).out.find("F16"), std::string::npos);
  ASSERT_EQ(quantize({in_, file, "-q"}).exit_code, 0);
  EXPECT_TRUE(fs::is_regular_file(file));
  ASSERT_EQ(quantize({model_, gguf, "--gguf", "q4_0", "--force", "-q"}).exit_code, 0);
  ASSERT_EQ(quantize({in_, file, "--type", "int8", "--force", "-q"}).exit_code, 0);
  expect_clean({"a.gguf", "b.safetensors"});
}

TEST_F(QuantizeOutput, NameThatDoesNotFitIsTwo) {
  for (const char* type : {"Q4_K_M", "q8_0", "IQ2_XXS", "TQ1_0", "F16", "bf16", "int4", "COPY"}) {
    expect_failure(quantize({in_, type}), 2, "is a type");
  }
  expect_failure(quantize({model_, dir_.path() / "a.gguf", "--single-file"}), 2, "--single-file");
  expect_failure(quantize({model_, dir_.path() / "a.safetensors", "--gguf", "f16"}), 2, "--gguf");
  expect_failure(quantize({model_, dir_.path() / "a.gguf/"}), 2, "a directory");
  expect_failure(quantize({model_, dir_.path() / "a.gguf", "--type", "int8"}), 2, "--type");
  expect_clean({});
  EXPECT_EQ(quantize({in_, dir_.path() / "q4", "-q"}).exit_code, 0);  // where it is a path
  expect_clean({"q4"});
}

TEST_F(QuantizeOutput, ForceReplacesNothingButAnEarlierOutput) {
  fs::create_directory(out_);
  dir_.write("out/mine", "precious");
  dir_.write("file", "precious");
  const std::string other = dir_.write("other.gguf", "precious");
  expect_failure(quantize({in_, out_, "--force"}), 4, "no earlier output of minfer");
  expect_failure(quantize({in_, dir_.path() / "file", "--force"}), 4, "it is a file");
  expect_failure(quantize({model_, other, "--force"}), 4, "not a GGUF file");
  fs::create_directory_symlink(out_, dir_.path() / "link");
  expect_failure(quantize({in_, dir_.path() / "link", "--force"}), 4, "symbolic link");
  EXPECT_EQ(read_file(out_ + "/mine"), "precious");
  EXPECT_EQ(read_file(other), "precious");
  expect_clean({"out", "file", "other.gguf", "link"});
}

TEST_F(QuantizeOutput, ForceLeavesWhatOthersHavePutBeside) {
  ASSERT_EQ(quantize({in_, out_, "-q"}).exit_code, 0);
  dir_.write("out/notes.txt", "precious");
  expect_failure(quantize({in_, out_, "--force"}), 4, "notes.txt, which minfer has not written");
  fs::remove(out_ + "/notes.txt");
  fs::create_directory(out_ + "/.git");
  expect_failure(quantize({in_, out_, "--force"}), 4, ".git");
  expect_clean({"out"});
}

TEST_F(QuantizeOutput, FourBitsAreNotQuantizedAgainUnasked) {
  const std::string gguf = dir_.path() / "a.gguf";
  ASSERT_EQ(quantize({model_, gguf, "--gguf", "q4_0", "-q"}).exit_code, 0);
  expect_failure(quantize({gguf, out_}), 2, "--allow-requantize");
  expect_failure(quantize({gguf, out_, "--dry-run"}), 2, "--allow-requantize");
  expect_failure(quantize({gguf, out_ + ".gguf", "--gguf", "q8_0"}), 2, "--allow-requantize");
  EXPECT_EQ(quantize({gguf, out_, "-q", "--allow-requantize"}).exit_code, 0);
  EXPECT_EQ(quantize({gguf, out_ + ".gguf", "-q"}).exit_code, 0);  // F16 loses nothing
  ASSERT_EQ(quantize({model_, gguf, "--gguf", "q8_0", "-q", "--force"}).exit_code, 0);
  EXPECT_EQ(quantize({gguf, out_ + "8", "-q"}).exit_code, 0);
}

TEST_F(QuantizeOutput, ReportThatCannotBePrintedIsAWarning) {
  const ProcessResult full = quantize({in_, out_, "--json"}, {.stdout_path = "/dev/full"});
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_NE(full.err.find("minfer: warning: the report is not printed: stdout: No space left"),
            std::string::npos)
      << full.err;
  Process closed(command({"quantize", in_, out_, "--force"}));
  closed.close_out();
  const ProcessResult result = closed.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("stdout is closed"), std::string::npos) << result.err;
  EXPECT_EQ(minfer({"inspect", out_, "--check", "-q"}).exit_code, 0);
  expect_failure(quantize({in_, out_, "--dry-run"}, {.stdout_path = "/dev/full"}), 4, "No space");
}

TEST_F(QuantizeOutput, LinkedSideFilesStayWithTheModel) {
  const std::string secret = dir_.write("secret", "precious");
  fs::create_symlink(secret, in_ + "/README.md");
  fs::create_symlink("tokenizer.model", in_ + "/copy.model");
  const ProcessResult result = quantize({in_, out_});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("README.md: is a link out of the model's directory"), std::string::npos)
      << result.err;
  EXPECT_FALSE(fs::exists(out_ + "/README.md"));
  EXPECT_EQ(read_file(out_ + "/copy.model"), "not read by quantize");
}

TEST_F(QuantizeOutput, NamesThatAreNotUtf8) {
  const std::string strange = dir_.path() / "m\xff\x80";
  fs::copy(in_, strange, fs::copy_options::recursive);
  const ProcessResult result = quantize({strange, out_ + "\xfe", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report["source"], "m\\xff\\x80");
  EXPECT_EQ(report["output"], out_ + "\\xfe");
  EXPECT_EQ(minfer({"inspect", out_ + "\xfe", "--check", "--json"}).exit_code, 0);
  const std::string gguf = dir_.write("g\xff.gguf", tiny_gguf());
  ASSERT_EQ(quantize({gguf, out_ + "\xfe.gguf", "--json"}).exit_code, 0);
  for (const char* name : {"generate", "tokenize"}) {
    const ProcessResult run = minfer({name, "-m", out_ + "\xfe.gguf", "--json", "x"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Json::accept(run.out)) << run.out;
  }
  EXPECT_TRUE(Json::accept(minfer({"inspect", out_ + "\xfe.gguf", "--json"}).out));
}

}  // namespace
}  // namespace minfer::test
