#include <cmath>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using nlohmann::json;

class Eval : public MinferProcess {
 protected:
  static std::string some_text(size_t n_bytes) {
    std::string text;
    for (size_t i = 0; text.size() < n_bytes; ++i)
      text += cat("_w", i * i % 97, i % 11 ? "" : "\n");
    return text.substr(0, n_bytes);
  }
  ProcessResult perplexity(std::vector<std::string> args) const {
    const std::vector<std::string> first = {"eval", "perplexity", "-m", model_, "--text", text_};
    args.insert(args.begin(), first.begin(), first.end());
    return minfer(args);
  }
  json perplexity_json(std::vector<std::string> args) const {
    args.insert(args.end(), {"--json", "-q"});
    const ProcessResult result = perplexity(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
  ProcessResult score(const std::string& lines, std::vector<std::string> args = {}) const {
    const std::vector<std::string> first = {"eval", "score", "-q", "-m", model_, "--input", "-"};
    args.insert(args.begin(), first.begin(), first.end());
    return minfer(args, {.input = lines});
  }

  // With BOS and the dummy prefix of three bytes 4,204 tokens of the tiny model.
  std::string text_ = dir_.write("text", some_text(4200));
};

TEST_F(Eval, PerplexitySaysHowItWasMade) {
  const json object = perplexity_json({"--windows", "3"});
  EXPECT_GT(object["perplexity"], 1);
  EXPECT_NEAR(object["perplexity"], std::exp(object["mean_nll"].get<double>()), 1e-9);
  EXPECT_NEAR(object["stderr"].get<double>(),
              object["perplexity"].get<double>() * object["mean_nll_stderr"].get<double>(), 1e-9);
  EXPECT_EQ(object["convention"], "llamacpp");  // of a .gguf
  EXPECT_EQ(object["tokens_total"], 4204);
  EXPECT_EQ(object["windows"], 3);
  EXPECT_EQ(object["windows_in_text"], 8);
  EXPECT_EQ(object["ctx"], 512);
  EXPECT_EQ(object["tokens_scored"], 3 * 255);
  EXPECT_EQ(object["text_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(object["kv_type"], "f16");
  EXPECT_EQ(object["activations"], "float");
  EXPECT_GT(object["seconds"], 0);
  EXPECT_GT(object["tokens_per_s"], 0);
  const std::string recipe = "convention llamacpp  text raw sha256 " +
                             object["text_sha256"].get<std::string>().substr(0, 12) +
                             "  tokens 4204  windows 3 of 8 x 512  scored 765  bos each-window  "
                             "kv f16  activations float";
  EXPECT_EQ(object["recipe"], recipe);

  const ProcessResult text = perplexity({"--windows", "3"});
  EXPECT_TRUE(text.out.starts_with("perplexity ")) << text.out;
  EXPECT_TRUE(text.out.ends_with(recipe + "\n")) << text.out;
  EXPECT_NE(text.err.find("loaded in"), std::string::npos);
}

TEST_F(Eval, ConventionsHaveTheirOwnWindows) {
  const json gptq = perplexity_json({"--convention", "gptq", "--windows", "1"});
  EXPECT_EQ(gptq["ctx"], 1024);  // the trained context, not 2048
  EXPECT_EQ(gptq["tokens_scored"], 1023);
  const std::string recipe = gptq["recipe"];
  EXPECT_NE(recipe.find("text hf-join"), std::string::npos) << recipe;
  EXPECT_NE(recipe.find("x 1024 (trained context)"), std::string::npos) << recipe;
  const json raw = perplexity_json({"--convention", "gptq", "--windows", "1", "--raw-text"});
  EXPECT_EQ(raw["tokens_total"], 4204);
  EXPECT_LT(raw["tokens_total"], gptq["tokens_total"]);

  const json strided = perplexity_json(
      {"--convention", "hf-stride", "--ctx", "64", "--stride", "32", "--windows", "3"});
  EXPECT_EQ(strided["stride"], 32);
  EXPECT_EQ(strided["tokens_scored"], 63 + 2 * 32);

  const json pages = perplexity_json({"--convention", "lm-eval", "--ctx", "512"});
  EXPECT_EQ(pages["pages"], 1);
  const double sum = pages["mean_nll"].get<double>() * pages["tokens_scored"].get<double>();
  EXPECT_NEAR(std::log(pages["word_perplexity"].get<double>()), sum / pages["words"].get<double>(),
              1e-6);
  EXPECT_NEAR(std::log(pages["byte_perplexity"].get<double>()), sum / 4200, 1e-9);
  EXPECT_NEAR(pages["bits_per_byte"].get<double>(), sum / 4200 / std::log(2), 1e-9);
}

// Parts of a window, one, or four in a pass.
TEST_F(Eval, BatchSizeChangesNothing) {
  json expected;
  for (const char* batch_size : {"64", "20", "252"}) {
    json object = perplexity_json(
        {"--ctx", "64", "--windows", "7", "--batch-size", batch_size, "--against", model_});
    for (const char* time : {"seconds", "tokens_per_s"}) object.erase(time);
    if (expected.is_null()) expected = object;
    EXPECT_EQ(object, expected) << batch_size;
  }
}

TEST_F(Eval, AgainstItselfNothingDiffers) {
  const json against = perplexity_json({"--windows", "2", "--against", model_})["against"];
  EXPECT_EQ(against["model"], model_);
  EXPECT_EQ(against["nll_difference"], 0.0);
  EXPECT_EQ(against["nll_difference_stderr"], 0.0);
  EXPECT_EQ(against["kl_divergence"], 0.0);
  EXPECT_EQ(against["same_top"], 1.0);
  const std::string text = perplexity({"--windows", "2", "--against", model_}).out;
  EXPECT_NE(text.find("same top token 100.00 %"), std::string::npos) << text;
}

TEST_F(Eval, SeveralModelsAreEvaluatedInOnePass) {
  const json object = perplexity_json({"-m", model_, "--windows", "2", "--against", model_});
  ASSERT_EQ(object["results"].size(), 2u);
  for (const json& result : object["results"]) {
    EXPECT_EQ(result["model"], model_);
    EXPECT_EQ(result["against"]["kl_divergence"], 0.0);
  }
  const std::string table = perplexity({"-m", model_, "--windows", "2", "--against", model_}).out;
  EXPECT_NE(table.find("| model | perplexity | ± | NLL difference |"), std::string::npos) << table;
  size_t n_rows = 0, n_recipes = 0;
  for (size_t at = 0; (at = table.find("| " + model_ + " |", at)) != table.npos; ++at) ++n_rows;
  for (size_t at = 0; (at = table.find("convention ", at)) != table.npos; ++at) ++n_recipes;
  EXPECT_EQ(n_rows, 2u) << table;
  EXPECT_EQ(n_recipes, 1u) << table;
  const ProcessResult named =
      minfer({"eval", "perplexity", "--text", text_, "--windows", "1", "-q"},
             {.environment = {{"MINFER_MODEL", model_}}});
  EXPECT_EQ(named.exit_code, 0) << named.err;
}

TEST_F(Eval, FailuresHaveTheirStatus) {
  expect_failure(minfer({"eval"}), 2, "perplexity or score");
  expect_failure(perplexity({"--convention", "best"}), 2, "gptq|llamacpp|hf-stride|lm-eval");
  expect_failure(perplexity({"--stride", "32"}), 2, "--stride goes with --convention hf-stride");
  expect_failure(perplexity({"-q", "--ctx", "1025"}), 2, "1024");
  expect_failure(perplexity({"-q", "--convention", "hf-stride", "--ctx", "64", "--stride", "65"}),
                 2, "stride of 65");
  expect_failure(perplexity({"-q", "--convention", "lm-eval", "--raw-text"}), 2, "lm-eval");
  const std::string small = dir_.write("small.gguf", tiny_gguf({.context = 128}));
  expect_failure(perplexity({"-q", "--against", small, "--ctx", "256"}), 2, "128");
  expect_failure(perplexity({"-q", "--text", dir_.path() / "none"}), 3, "none");
  expect_failure(perplexity({"-q", "--text", dir_.path()}), 3, "directory");
  expect_failure(perplexity({"-q", "--text", dir_.write("short", some_text(1000))}), 3,
                 "1004 tokens, expected 1024 or more");
  expect_failure(perplexity({"-q", "--against", dir_.path() / "none"}), 3, "none");
  const std::string hot = dir_.write("hot.gguf", tiny_gguf({.overflowing = true}));
  expect_failure(minfer({"eval", "perplexity", "-q", "-m", hot, "--text", text_}), 8,
                 "window 0: position 0: not a finite number after layer 0");
}

TEST_F(Eval, Wikitext2IsTheFileOfThatName) {
  expect_failure(perplexity({"--text", "wikitext2"}), 3, "scripts/get_wikitext2.sh");
  std::filesystem::create_directories(dir_.path() / "minfer/data");
  dir_.write("minfer/data/wiki.test.raw", some_text(4200));
  expect_failure(perplexity({"--text", "wikitext2"}), 3, "expected 173c87a5");
}

TEST_F(Eval, ScoreGivesOneLineForEach) {
  const ProcessResult result = score(R"({"context": "ab", "continuation": " cd"})"
                                     "\n"
                                     R"({"context": "ab ", "continuation": "cd", "more": [1]})"
                                     "\n"
                                     R"({"context": "", "continuation": "ab"})"
                                     "\n");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[0], objects[1]);
  EXPECT_EQ(objects[0]["n_tokens"], 5);  // the space is a character of three bytes
  EXPECT_LT(objects[0]["logprob"], 0);
  EXPECT_TRUE(objects[0]["is_greedy"].is_boolean());
  EXPECT_EQ(objects[2]["n_tokens"], 5);
}

std::vector<json> objects_of(const std::string& text) {
  std::istringstream lines(text);
  std::vector<json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  return objects;
}

TEST_F(Eval, ALineThatCannotBeScoredEndsNoOther) {
  const std::string good = R"({"context": "a", "continuation": "b"})"
                           "\n";
  const std::pair<std::string, std::string> bad[] = {
      {"{}", "no text \"context\""},
      {R"({"context": "a", "continuation": 3})", "no text \"continuation\""},
      {"[]", "no JSON object"},
      {"{\"context\": ", "malformed JSON"},
      {R"({"context": "a", "continuation": ""})", "has no token of its own"},
      {json{{"context", ""}, {"continuation", std::string(1100, 'x')}}.dump(),
       "the continuation has 1103 tokens"}};
  std::string input = "\n" + good;
  for (const auto& [line, words] : bad) input += line + "\r\n \t\r\n" + good;
  const ProcessResult result = score(input);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "minfer: error: -: 6 of 13 lines could not be scored\n");
  const std::vector<json> objects = objects_of(result.out);
  ASSERT_EQ(objects.size(), 13u);
  for (size_t i = 0; i < objects.size(); ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(objects[i], objects[0]);
      EXPECT_EQ(objects[i]["n_tokens"], 1);
      continue;
    }
    const std::string error = objects[i].at("error");
    EXPECT_TRUE(error.starts_with(cat("line ", 3 * (i / 2) + 3, ": "))) << error;
    EXPECT_NE(error.find(bad[i / 2].second), std::string::npos) << error;
  }
}

TEST_F(Eval, ScoreOfNothingIsNothing) {
  expect_failure(minfer({"eval", "score", "-m", model_}), 2, "--input");
  for (const char* blank : {"", "\n", " \r\n\t\n"}) {
    const ProcessResult result = score(blank);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

// Python reads a text so, and with it the data sets that these conventions come from.
TEST_F(Eval, LineEndsOfATextDoNotMatterWhereTheConventionIsHuggingFaces) {
  const auto tokens_of = [&](const std::string& file, const std::vector<std::string>& convention) {
    std::vector<std::string> args = {"--windows", "1", "--ctx", "64", "--text", file};
    args.insert(args.end(), convention.begin(), convention.end());
    const json object = perplexity_json(args);
    return std::pair(object["tokens_total"].get<int64_t>(), object["mean_nll"].get<double>());
  };
  const std::string lf = some_text(2000);
  std::string with_crlf, with_cr = lf;
  for (const char c : lf) with_crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  std::ranges::replace(with_cr, '\n', '\r');
  const std::string lf_file = dir_.write("lf", lf);
  for (const std::string& file : {dir_.write("crlf", with_crlf), dir_.write("cr", with_cr)}) {
    for (const std::vector<std::string>& convention :
         {std::vector<std::string>{"--convention", "gptq"},
          {"--convention", "hf-stride", "--stride", "32"},
          {"--convention", "lm-eval"}}) {
      EXPECT_EQ(tokens_of(file, convention), tokens_of(lf_file, convention)) << convention[1];
    }
    EXPECT_NE(tokens_of(file, {"--convention", "llamacpp"}), tokens_of(lf_file, {}));
    EXPECT_NE(tokens_of(file, {"--convention", "gptq", "--raw-text"}),
              tokens_of(lf_file, {"--convention", "gptq", "--raw-text"}));
  }
}

}  // namespace
}  // namespace minfer::test
