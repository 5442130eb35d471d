#include <regex>
#include <set>

#include "tests/support/test_data.h"
#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

using nlohmann::json;

std::string demo_model() { return (fixtures_dir() / "../../models/demo").lexically_normal(); }

// minfer as one process, and as several that mpirun starts.
class Mpi : public MinferProcess {
 protected:
  ProcessResult mpirun(const std::vector<std::string>& args, ProcessOptions options = {}) const {
    std::vector<std::string> all = {MINFER_MPIRUN};
    all.insert(all.end(), args.begin(), args.end());
    options.environment.try_emplace("XDG_CACHE_HOME", dir_.path());
    options.environment.try_emplace("TMPDIR", dir_.path());
    return run_process(all, options);
  }
  ProcessResult on_ranks(int n, std::vector<std::string> args,
                         const ProcessOptions& options = {}) const {
    args = command(args);
    args.insert(args.begin(), {"-n", cat(n)});
    args.insert(args.end(), {"--device", "cpu", "--tp", "mpi"});
    return mpirun(args, options);
  }
};

std::vector<std::string> greedy(const std::string& model, const std::string& prompt = "") {
  std::vector<std::string> args = {"generate", "-m", model, "-q",          "--temp",
                                   "0",        "-n", "40",  "--ignore-eos"};
  if (!prompt.empty()) args.insert(args.end(), {"-p", prompt});
  return args;
}

TEST_F(Mpi, WritesTheTextOfOneProcess) {
  for (const std::string& model : {model_, demo_model()}) {
    std::vector<std::string> args = greedy(model, "The old man went to the sea");
    const ProcessResult one = minfer(args);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    for (const int n : {1, 2, 4}) {
      SCOPED_TRACE(cat(n, " ranks of ", model));
      std::vector<std::string> threads = args;
      threads.insert(threads.end(), {"--device", "cpu", "--tp", cat(n)});
      EXPECT_EQ(minfer(threads).out, one.out);
      const ProcessResult result = on_ranks(n, args);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, one.out);
      EXPECT_EQ(result.err, "");
    }
  }
}

// Logits have the same bits, as the sums have.
TEST_F(Mpi, HasTheBitsOfThreads) {
  for (const int n : {2, 4}) {
    std::vector<std::string> args = greedy(demo_model(), "The old man");
    args.insert(args.end(), {"--json", "--logprobs", "5"});
    const ProcessResult processes = on_ranks(n, args);
    args.insert(args.end(), {"--device", "cpu", "--tp", cat(n)});
    const ProcessResult threads = minfer(args);
    ASSERT_EQ(processes.exit_code, 0) << processes.err;
    EXPECT_EQ(json::parse(processes.out)["logprobs"], json::parse(threads.out)["logprobs"]) << n;
  }
}

TEST_F(Mpi, OnlyRank0IsHeard) {
  std::vector<std::string> args = greedy(model_, "x");
  std::erase(args, "-q");
  const ProcessResult one = minfer(args), four = on_ranks(4, args);
  ASSERT_EQ(four.exit_code, 0) << four.err;
  EXPECT_EQ(std::ranges::count(four.err, '\n'), std::ranges::count(one.err, '\n')) << four.err;
  EXPECT_NE(four.err.find("| 4 x cpu"), std::string::npos) << four.err;
}

TEST_F(Mpi, TheTextComesFromRank0) {
  const std::string want = minfer(greedy(model_, "a prompt")).out;
  EXPECT_EQ(on_ranks(2, greedy(model_), {.input = "a prompt\n"}).out, want);
  std::vector<std::string> args = greedy(model_);
  args.insert(args.end(), {"-f", "-"});
  EXPECT_EQ(on_ranks(3, args, {.input = "a prompt"}).out, want);
  args.back() = dir_.write("prompt.txt", "a prompt\n");
  EXPECT_EQ(on_ranks(2, args).out, want);
  // mpirun's stdin is not put behind a prompt.
  EXPECT_EQ(on_ranks(2, greedy(model_, "a prompt"), {.input = "and more"}).out, want);
}

TEST_F(Mpi, TheSeedComesFromRank0) {
  std::vector<std::string> args = {"generate", "-m", model_,         "-q",     "--temp", "1",
                                   "-n",       "20", "--ignore-eos", "--json", "-p",     "x"};
  const ProcessResult drawn = on_ranks(2, args);
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  const json object = json::parse(drawn.out);
  args.insert(args.end(), {"-s", object["seed"].dump()});
  EXPECT_EQ(json::parse(minfer(args).out)["tokens"], object["tokens"]);
}

TEST_F(Mpi, ManyPromptsAndScores) {
  const std::string prompts =
      dir_.write("prompts.jsonl",
                 "{\"prompt\": \"a\", \"id\": 1}\n{\"prompt\": \"bc\", \"id\": 2, \"n\": 3}\n");
  const auto texts = [](const ProcessResult& result) {
    std::set<std::string> found;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) found.insert(json::parse(line)["text"]);
    return found;
  };
  std::vector<std::string> args = greedy(model_);
  args.insert(args.end(), {"--prompts", prompts});
  const ProcessResult many = on_ranks(2, args);
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_EQ(texts(many), texts(minfer(args)));

  const std::string lines = "{\"context\": \"a\", \"continuation\": \" b\"}\n";
  const std::vector<std::string> score = {"eval", "score", "-m", model_, "-q", "--input", "-"};
  const ProcessResult result = on_ranks(2, score, {.input = lines});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NEAR(json::parse(result.out)["logprob"].get<double>(),
              json::parse(minfer(score, {.input = lines}).out)["logprob"].get<double>(), 1e-4);
}

TEST_F(Mpi, Perplexity) {
  const std::vector<std::string> args = {
      "eval",     "perplexity", "-m",        demo_model(),
      "-q",       "--json",     "--kv-type", "f32",
      "--device", "cpu",        "--text",    (fixtures_dir() / "../../README.md").string()};
  const double one = json::parse(minfer(args).out)["perplexity"];
  for (const int n : {2, 4}) {
    const ProcessResult result = on_ranks(n, args);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(json::parse(result.out)["perplexity"].get<double>() / one, 1, 1e-6) << n;
  }
}

TEST_F(Mpi, Bench) {
  const auto row = [&](const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["results"][0];
  };
  const std::vector<std::string> args = {"bench", "-m", model_, "-p", "0",     "-n",
                                         "4",     "-r", "1",    "-q", "--json"};
  std::vector<std::string> threads = args;
  threads.insert(threads.end(), {"--device", "cpu", "--tp", "2"});
  const json of_threads = row(minfer(threads)), of_processes = row(on_ranks(2, args));
  for (const char* field : {"model", "model_size", "backend", "bytes_per_token"}) {
    EXPECT_EQ(of_processes[field], of_threads[field]) << field;
  }
  const ProcessResult reduces =
      on_ranks(2, {"bench", "allreduce", "-r", "1", "--max-bytes", "4096", "-q", "--json"});
  ASSERT_EQ(reduces.exit_code, 0) << reduces.err;
  EXPECT_EQ(json::parse(reduces.out)["ranks"], 2);
}

// An error of all ranks is told once.
TEST_F(Mpi, ErrorsAreToldOnce) {
  expect_failure(on_ranks(3, {"generate", "-m", "nope", "-q", "x"}), 3, "nope: cannot open");
  expect_failure(on_ranks(3, {"generate", "--tempo", "1"}), 2, "unknown option --tempo");
  expect_failure(on_ranks(2, {"chat", "-m", model_, "-q"}), 2, "chat runs in one process");
  expect_failure(on_ranks(2, {"bench", "limits", "-q"}), 2, "runs in one process");
  expect_failure(on_ranks(5, {"generate", "-m", model_, "-q", "x"}), 2, "1 to 4 ranks");
  expect_failure(minfer({"generate", "-m", model_, "--tp", "mpi", "x"}), 2, "mpirun -n 2");
}

TEST_F(Mpi, AnErrorOfOneRankNamesIt) {
  // In its directory the model of rank 1 is another one, and then is not there.
  const TempDir other, empty;
  other.write("tiny.gguf", tiny_gguf({.context = 512}));
  const auto run = [&](const std::string& directory) {
    const std::vector<std::string> run_minfer = {MINFER_BINARY, "generate", "-m",  "tiny.gguf",
                                                 "-q",          "--temp",   "0",   "--device",
                                                 "cpu",         "--tp",     "mpi", "x"};
    std::vector<std::string> args = {"--wdir", dir_.path(), "-n", "1"};
    args.insert(args.end(), run_minfer.begin(), run_minfer.end());
    args.insert(args.end(), {":", "--wdir", directory, "-n", "1"});
    args.insert(args.end(), run_minfer.begin(), run_minfer.end());
    return mpirun(args);
  };
  expect_failure(run(other.path()), 7, "rank 1 (");
  EXPECT_NE(run(other.path()).err.find("): the model is "), std::string::npos);
  expect_failure(run(empty.path()), 3, "rank 1 (");
}

TEST_F(Mpi, OptionsThatDifferAreRefused) {
  std::vector<std::string> args = {"-n", "1"};
  for (const char* n : {"8", "9"}) {
    if (args.size() > 2) args.insert(args.end(), {":", "-n", "1"});
    args.insert(args.end(), {MINFER_BINARY, "generate", "-m", model_, "-q", "--device", "cpu",
                             "--tp", "mpi", "-n", n, "x"});
  }
  expect_failure(mpirun(args), 7, "--predict 9 ");
}

}  // namespace
}  // namespace minfer::test
