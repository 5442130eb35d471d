#include "tests/support/test_data.h"
#include "tests/tools/documented_fields.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using nlohmann::json;

class JsonDocument : public MinferProcess {
 protected:
  json output(const std::vector<std::string>& args) const {
    const ProcessResult result = minfer(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  void expect_documented(const std::string& heading, const std::vector<std::string>& args) const {
    SCOPED_TRACE(heading);
    test::expect_documented(output(args), documented(heading));
  }
  static void expect_documented(const json& object, const Documented& fields) {
    test::expect_documented(object, fields);
  }

  std::vector<std::string> with_model(std::vector<std::string> args) const {
    args.insert(args.end(), {"-m", model_, "--json", "-q"});
    return args;
  }
};

TEST_F(JsonDocument, Generate) {
  const std::string name = "minfer generate --json";
  expect_documented(name, with_model({"generate", "x", "-n", "2"}));
  expect_documented(name, with_model({"generate", "x", "-n", "2", "--logprobs", "2", "--echo"}));
  const Documented line = documented("minfer generate --jsonl");
  for (const char* k : {"0", "2"}) {
    std::istringstream lines(
        minfer({"generate", "-m", model_, "x", "-n", "3", "--jsonl", "--logprobs", k}).out);
    for (std::string text; std::getline(lines, text);) {
      json object = json::parse(text);
      if (!object.contains("done")) {
        expect_documented(object, line);
        continue;
      }
      object.erase("done");
      Documented figures = documented(name);
      for (const char* field : {"text", "tokens"}) {
        EXPECT_FALSE(object.contains(field));
        figures.always.erase(field);
      }
      expect_documented(object, figures);
    }
  }
}

TEST_F(JsonDocument, GeneratePrompts) {
  const std::string file = dir_.write("prompts.jsonl", R"({"prompt": "x", "n": 2}
{"prompt": 1})");
  std::istringstream lines(minfer({"generate", "-m", model_, "--prompts", file}).out);
  const Documented of_all = documented("minfer generate --prompts FILE");
  const Documented of_result = documented("minfer generate --json");
  int n_lines = 0;
  for (std::string text; std::getline(lines, text); ++n_lines) {
    json object = json::parse(text);
    ASSERT_TRUE(object.contains("id"));
    if (object.contains("error")) {
      expect_documented(object, of_all);
    } else {
      object.erase("id");
      expect_documented(object, of_result);
    }
  }
  EXPECT_EQ(n_lines, 2);
}

TEST_F(JsonDocument, Chat) {
  const std::vector<std::string> args = {"chat", "--chat-template", "chatml", "-n", "2"};
  const ProcessResult result = minfer(with_model(args), {.input = "one\ntwo\n"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  Documented fields = documented("minfer chat --json");
  fields.always = fields.all;
  expect_documented(json::parse(result.out), fields);
}

TEST_F(JsonDocument, TokenizeAndInspect) {
  expect_documented("minfer tokenize --json", with_model({"tokenize", "x"}));
  expect_documented("minfer tokenize --decode --json", with_model({"tokenize", "--decode", "68"}));
  expect_documented("minfer inspect --json", with_model({"inspect"}));
  expect_documented("minfer inspect --json", with_model({"inspect", "--tp", "2"}));
  expect_documented("minfer inspect --json", with_model({"inspect", "--check"}));
}

TEST_F(JsonDocument, Quantize) {
  const std::string demo = fixtures_dir() / "../../models/demo", out = dir_.path() / "out";
  const std::string name = "minfer quantize --json";
  expect_documented(name, {"quantize", demo, "--dry-run", "--json", "-q"});
  expect_documented(name, {"quantize", demo, out, "--json", "-q"});
  Documented report = documented(name);
  for (const char* field : {"dry_run", "output", "seconds", "mb_per_s"}) report.always.erase(field);
  expect_documented(json::parse(read_file(out + "/minfer_quant_report.json")), report);
}

TEST_F(JsonDocument, Eval) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word" + std::to_string(i) + (i % 9 == 0 ? "\n" : " ");
  const std::string text = dir_.write("text.txt", words), name = "minfer eval perplexity --json";
  using Options = std::vector<std::string>;
  for (const Options& convention : {Options{"gptq"}, Options{"llamacpp"}, Options{"lm-eval"},
                                    Options{"hf-stride", "--stride", "32"}}) {
    Options args = {"eval", "perplexity", "--text", text, "--ctx", "64", "--convention"};
    args.insert(args.end(), convention.begin(), convention.end());
    expect_documented(name, with_model(args));
  }
  expect_documented(
      name, with_model({"eval", "perplexity", "--text", text, "--ctx", "64", "--against", model_}));
  const std::string input = dir_.write("s.jsonl", R"({"context": "a", "continuation": " b"})"
                                                  "\n");
  const json line = output({"eval", "score", "-m", model_, "--input", input, "-q"});
  expect_documented(line, documented("minfer eval score"));
}

TEST_F(JsonDocument, Bench) {
  const Documented bench = documented("minfer bench --json");
  expect_documented(
      output(with_model({"bench", "-p", "4", "-n", "2", "-r", "1", "--device", "cpu"})), bench);
  Documented limits = bench, kernels = documented("minfer bench kernels --json");
  std::erase_if(limits.all, [](const auto& name) { return name.starts_with("results"); });
  std::erase_if(limits.always, [](const auto& name) { return name.starts_with("results"); });
  expect_documented(output({"bench", "limits", "--json", "-q", "--device", "cpu"}), limits);
  expect_documented("minfer bench allreduce --json",
                    {"bench", "allreduce", "--json", "-q", "--device", "cpu", "--tp", "2", "-r",
                     "1", "--max-bytes", "4096", "--simulate", "8,16"});
  kernels.all.insert(limits.all.begin(), limits.all.end());
  kernels.always.insert(limits.always.begin(), limits.always.end());
  expect_documented(
      output({"bench", "kernels", "--filter", "^rms_norm", "--json", "-q", "--device", "cpu"}),
      kernels);
}

}  // namespace
}  // namespace minfer::test
