#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using nlohmann::json;

// Inputs that went wrong in the hands of users, with the values that are right.
class FoundInUse : public MinferProcess {
 protected:
  static std::string input(const std::string& name) {
    return (data_dir() / "found-in-use" / name).string();
  }
};

TEST_F(FoundInUse, AStoredOutputLayerIsUsedAndQuantized) {
  const std::string model = input("tie-true-with-other-head");
  MINFER_NEEDS(model);
  const ProcessResult result =
      minfer({"generate", "-m", model, "-p", "hello world", "-n", "4", "--temp", "0", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("lm_head.weight"), std::string::npos) << result.err;
  EXPECT_EQ(json::parse(result.out)["tokens"], json({3662, 886, 1976, 2166}));

  const std::string out = dir_.path() / "int8";
  ASSERT_EQ(minfer({"quantize", model, out, "--type", "int8", "-q"}).exit_code, 0);
  EXPECT_EQ(json::parse(read_file(out + "/config.json"))["tie_word_embeddings"], false);
  const ProcessResult again =
      minfer({"generate", "-m", out, "-p", "hello world", "-n", "1", "--temp", "0", "--json"});
  EXPECT_EQ(json::parse(again.out)["tokens"], json::array({3662})) << again.err;
}

TEST_F(FoundInUse, ATokenWithoutARowIsRefusedInAPromptAlone) {
  const std::string model = input("s-pad-tokenizer-json");
  MINFER_NEEDS(model);
  const std::vector<std::string> generate = {"generate", "-m",     model, "-n",
                                             "2",        "--temp", "0",   "-p"};
  const auto run = [&](std::vector<std::string> prompt) {
    prompt.insert(prompt.begin(), generate.begin(), generate.end());
    return minfer(prompt);
  };
  const ProcessResult sound = run({"Once upon"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_NE(sound.err.find("the tokenizer has 2049 tokens, the embedding 2048 rows"),
            std::string::npos)
      << sound.err;
  const ProcessResult refused = run({"[PAD]", "--special"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("token id 2048"), std::string::npos) << refused.err;
}

TEST_F(FoundInUse, LineEndsDoNotMatterToTheGptqConvention) {
  const std::string model = input("s-eos-config-only");
  MINFER_NEEDS(model);
  json perplexities;
  for (const char* text : {"lf.txt", "crlf.txt"}) {
    const ProcessResult result = minfer({"eval", "perplexity", "-q", "-m", model, "--text",
                                         input(text), "--convention", "gptq", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    perplexities.push_back(json::parse(result.out)["perplexity"]);
  }
  EXPECT_EQ(perplexities[0], perplexities[1]);
  EXPECT_NEAR(perplexities[0], 116, 0.5);
}

TEST_F(FoundInUse, LinesThatCannotBeScoredEndNoOther) {
  const std::string model = input("s-eos-config-only");
  MINFER_NEEDS(model);
  for (const auto& [file, n_lines] : {std::pair("score.jsonl", 4), std::pair("s3.jsonl", 2)}) {
    const ProcessResult result =
        minfer({"eval", "score", "-q", "-m", model, "--input", input(file)});
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(std::ranges::count(result.out, '\n'), n_lines);
    EXPECT_EQ(json::parse(result.out.substr(0, result.out.find('\n')))["n_tokens"], 5);
    EXPECT_NE(result.out.find("\n{\"error\":\"line 2: "), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace minfer::test
