#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "loaders/checksum.h"
#include "tests/support/flipped_bits.h"
#include "tests/support/test_data.h"
#include "tests/tools/quantize_process.h"

namespace minfer::test {
namespace {

using Json = nlohmann::json;

TEST_F(Quantize, WritesADirectoryWithItsChecksums) {
  const ProcessResult result = quantize({in_, out_, "--group", "32", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto files = files_in(out_);
  const std::set<std::string> expected = {"SHA256SUMS",        "config.json",
                                          "expected.json",     "minfer_quant_report.json",
                                          "model.safetensors", "tokenizer.model"};
  EXPECT_EQ(names_in(out_), expected);
  EXPECT_EQ(files.at("tokenizer.model"), "not read by quantize");
  std::string sums;
  for (const auto& [name, bytes] : files) {
    if (name != "SHA256SUMS") sums += sha256_hex(bytes) + "  " + name + '\n';
  }
  EXPECT_EQ(files.at("SHA256SUMS"), sums);

  const Json report = Json::parse(files.at("minfer_quant_report.json"));
  const Json printed = Json::parse(result.out);
  EXPECT_EQ(report["tensors"], printed["tensors"]);
  EXPECT_EQ(report["bytes_after"], printed["bytes_after"]);
  EXPECT_EQ(report["worst"].size(), 5u);
  EXPECT_FALSE(report.contains("seconds"));
  EXPECT_GT(printed["mb_per_s"].get<double>(), 0);
  int64_t after = 0;
  for (const Json& tensor : report["tensors"]) after += tensor["bytes_after"].get<int64_t>();
  EXPECT_EQ(report["bytes_after"], after);
  EXPECT_LT(size_t(after), files.at("model.safetensors").size());
  EXPECT_EQ(Json::parse(files.at("config.json"))["quantization_config"]["quant_method"],
            "compressed-tensors");
  expect_clean({"out"});
}

TEST_F(Quantize, FlippedBitsAreFoundByInspect) {
  ASSERT_EQ(quantize({in_, out_, "-q"}).exit_code, 0);
  const std::vector<std::string> inspect = {"inspect", out_, "--check", "-q"};
  const int64_t n_flips = for_flipped_bits(
      out_,
      [&](const std::string& name, int64_t bit) {
        SCOPED_TRACE(cat(name, ", bit ", bit));
        expect_failure(minfer(inspect), 3, "SHA256SUMS");
      },
      10);
  EXPECT_GE(n_flips, 6 * 10);
  EXPECT_EQ(minfer(inspect).exit_code, 0);
}

TEST_F(Quantize, SameBytesForAnyNumberOfThreads) {
  ASSERT_EQ(quantize({in_, out_, "-t", "1", "--group", "32"}).exit_code, 0);
  ASSERT_EQ(quantize({in_, out_ + "2", "-t", "2", "--group", "32"}).exit_code, 0);
  EXPECT_EQ(files_in(out_), files_in(out_ + "2"));
}

TEST_F(Quantize, DryRunPrintsTheSizesOfTheRun) {
  const Json dry = Json::parse(quantize({in_, out_, "--dry-run", "--json"}).out);
  EXPECT_TRUE(dry["dry_run"].get<bool>());
  expect_clean({});
  const Json run = Json::parse(quantize({in_, out_, "--json"}).out);
  EXPECT_EQ(dry["bytes_after"], run["bytes_after"]);
  EXPECT_EQ(dry["fallbacks"], run["fallbacks"]);
  fs::remove(fs::path(in_) / "model.safetensors");
  const Json config_alone = Json::parse(quantize({in_, "--dry-run", "--json"}).out);
  EXPECT_EQ(config_alone["bytes_after"], run["bytes_after"]);
  EXPECT_EQ(config_alone["bytes_before"], run["bytes_before"]);
}

TEST_F(Quantize, OutputIsNamedAfterTheInput) {
  EXPECT_EQ(quantize({in_ + "/", "-q"}).exit_code, 0);
  EXPECT_EQ(quantize({in_, "-q", "--type", "int8"}).exit_code, 0);
  EXPECT_EQ(quantize({model_, "-q", "--group", "128"}).exit_code, 0);
  expect_clean({"in-int4-g64", "in-int8-row", "tiny-int4-g128"});
}

TEST_F(Quantize, UsageIsTwo) {
  expect_failure(quantize({}), 2, "no model");
  expect_failure(quantize({in_, out_, "--group", "48"}), 2, "--group");
  expect_failure(quantize({in_, out_, "--tensor", "*"}), 2, "PATTERN=TYPE");
  expect_failure(quantize({in_, out_, "--tensor", "*=int5"}), 2, "int5");
  expect_failure(quantize({in_, out_, "--tensor", "none=int4"}), 2, "fits no tensor");
  expect_failure(quantize({in_, out_, "--type", "int8", "--asymmetric"}), 2, "symmetric");
  expect_failure(quantize({in_, in_}), 2, "is the input");
  expect_failure(quantize({in_, in_ + "/../in/", "--force"}), 2, "is the input");
  expect_failure(quantize({in_, in_ + "/out"}), 2, "inside the input");
  expect_failure(quantize({in_, dir_.path(), "--force"}), 2, "inside the output");
  expect_failure(quantize({model_, model_, "--force"}), 2, "is the input");
  fs::create_directory_symlink(in_, dir_.path() / "link");
  expect_failure(quantize({in_, dir_.path() / "link", "--force"}), 2, "is the input");
  expect_failure(quantize({in_, dir_.path() / "link/out"}), 2, "inside the input");
  expect_clean({"link"});
}

TEST_F(Quantize, InputIsThree) {
  expect_failure(quantize({dir_.path() / "none", out_}), 3, "none");
  expect_failure(quantize({in_, out_, "--group", "128", "--strict"}), 3, "whole groups");
  const fs::path gpt2 = fixtures_dir() / "models/gpt2-f32";
  expect_failure(quantize({gpt2, out_}), 3, "architecture gpt2");
  const std::string poisoned = dir_.write("bad.gguf", tiny_gguf({.poisoned = true}));
  expect_failure(quantize({poisoned, out_, "-q"}), 3, "blk.1.ffn_up.weight: row 0, column 5");
  expect_clean({"bad.gguf"});
}

TEST_F(Quantize, OutputThatIsThereStaysWithoutForce) {
  ASSERT_EQ(quantize({in_, out_, "-q"}).exit_code, 0);
  const auto before = files_in(out_);
  expect_failure(quantize({in_, out_, "--group", "32"}), 4, "--force");
  EXPECT_EQ(files_in(out_), before);
  const ProcessResult replaced = quantize({in_, out_, "--group", "32", "--force"});
  EXPECT_EQ(replaced.exit_code, 0);
  EXPECT_NE(replaced.err.find("an earlier output, 6 files, is replaced"), std::string::npos)
      << replaced.err;
  EXPECT_NE(files_in(out_), before);
  expect_clean({"out"});
}

TEST_F(Quantize, FullDiskIsFourAndLeavesNothing) {
  const ProcessResult weights = quantize_limited(8, out_);
  EXPECT_EQ(weights.exit_code, 4) << weights.err;
  EXPECT_NE(weights.err.find("model.safetensors: cannot write"), std::string::npos) << weights.err;
  expect_clean({});

  const fs::path mount = dir_.path() / "small";
  fs::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=64k") != 0) {
    fs::remove(mount);
    GTEST_SKIP() << "cannot mount a small tmpfs";
  }
  const ProcessResult full = quantize({in_, mount / "out"});
  EXPECT_EQ(names_in(mount).size(), 0u);
  ::umount(mount.c_str());
  expect_failure(full, 4, "bytes");
}

// Of words that a byte-level model can learn nothing of, but that repeat.
std::string calibration_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += cat("the ", i * i % 97, " cats saw ", i % 13, " dogs. ");
  return text;
}

TEST_F(Quantize, CalibratedModelRunsAndIsTheSameForAnyNumberOfThreads) {
  const std::string text = dir_.write("text", calibration_text());
  const auto calibrated = [&](const std::string& out, const std::string& threads) {
    const ProcessResult result = quantize({model_, out, "--group", "32", "--method", "gptq",
                                           "--calibration", text, "-t", threads, "-q"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return files_in(out);
  };
  const auto files = calibrated(out_, "1");
  EXPECT_EQ(files, calibrated(out_ + "2", "2"));
  ASSERT_EQ(quantize({model_, out_ + "-mse", "--group", "32", "-q"}).exit_code, 0);
  EXPECT_NE(files.at("model.safetensors"), read_file(out_ + "-mse/model.safetensors"));
  EXPECT_NE(files.at("minfer_quant_report.json").find(sha256_hex(calibration_text())),
            std::string::npos);
  const ProcessResult run = minfer({"generate", "-m", out_, "--tokenizer", model_, "--temp", "0",
                                    "-n", "4", "--ignore-eos", "-q", "the"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_clean({"text", "out", "out2", "out-mse"});
}

TEST_F(Quantize, CalibrationIsRefusedBeforeItRuns) {
  const std::string text = dir_.write("text", calibration_text());
  const std::vector<std::string> gptq = {model_, out_, "--method", "gptq", "-q"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), gptq.begin(), gptq.end());
    return quantize(more);
  };
  expect_failure(with({}), 2, "--calibration FILE");
  expect_failure(quantize({model_, out_, "--calibration", text}), 2, "--method gptq");
  expect_failure(with({"--calibration", dir_.write("short", "too short")}), 2, "one window takes");
  expect_failure(with({"--calibration", dir_.write("test", " = Robert Boulter = \n")}), 2,
                 "WikiText-2 test text");
  fs::create_directory(out_);  // found before the text turns out to be too short
  expect_failure(with({"--calibration", dir_.path() / "short"}), 4, "is not replaced");
  expect_clean({"text", "short", "test", "out"});
}

TEST_F(Quantize, UnwritablePlaceIsFour) {
  expect_failure(quantize({in_, dir_.path() / "none/out"}), 4, "cannot make a directory");
  expect_clean({});
}

// A model that takes long enough to be interrupted in the middle.
class QuantizeLong : public Quantize {
 protected:
  QuantizeLong() {
    fs::copy(in_ + "/config.json", dir_.path() / "config.json");
    Json config = Json::parse(read_file(in_ + "/config.json"));
    config["vocab_size"] = kVocab;
    dir_.write("in/config.json", config.dump());
    dir_.write("in/model.safetensors", with_large_tables(read_file(in_ + "/model.safetensors"),
                                                         config["hidden_size"].get<int64_t>()));
    fs::remove(dir_.path() / "config.json");
    for (const auto& [name, bytes] : files_in(in_)) before_[name] = sha256_hex(bytes);
  }

  // Starts a run and waits until it writes.
  std::unique_ptr<Process> start() const {
    auto process = std::make_unique<Process>(command({"quantize", in_, out_, "-q", "-t", "1"}));
    while (names_in(dir_.path()).size() <= 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return process;
  }

  void expect_input_untouched() const {
    for (const auto& [name, bytes] : files_in(in_)) EXPECT_EQ(sha256_hex(bytes), before_.at(name));
  }

 private:
  static constexpr int64_t kVocab = 30000;

  // The same file with embedding and output layer of kVocab rows.
  static std::string with_large_tables(const std::string& file, int64_t dim) {
    uint64_t length;
    std::memcpy(&length, file.data(), sizeof length);
    const Json header = Json::parse(file.substr(8, length));
    Json enlarged;
    std::string data;
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = tensor["data_offsets"][0].get<size_t>(),
                 end = tensor["data_offsets"][1].get<size_t>();
      std::string bytes = file.substr(8 + length + begin, end - begin);
      enlarged[name] = tensor;
      if (tensor["shape"].size() == 2 &&
          (name.starts_with("lm_head") || name.starts_with("model.embed"))) {
        const std::string some = bytes;
        while (bytes.size() < size_t(kVocab * dim * 2)) bytes += some;
        bytes.resize(size_t(kVocab * dim * 2));
        enlarged[name]["shape"] = {kVocab, dim};
      }
      enlarged[name]["data_offsets"] = {data.size(), data.size() + bytes.size()};
      data += bytes;
    }
    return safetensors_file(enlarged.dump(), data);
  }

  std::map<std::string, std::string> before_;  // SHA-256
};

TEST_F(QuantizeLong, SignalLeavesNothing) {
  for (const auto& [signal, code] :
       {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 129}}) {
    const auto process = start();
    process->send(signal);
    EXPECT_EQ(process->wait().exit_code, code);
    expect_clean({});
  }
  expect_input_untouched();
}

TEST_F(QuantizeLong, KilledRunIsCleanedUpByTheNext) {
  for (const int delay_ms : {0, 5, 20, 60}) {
    const auto process = start();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    process->send(SIGKILL);
    process->wait();
    expect_input_untouched();
    if (fs::exists(out_)) {  // all was written: it has to be sound
      EXPECT_TRUE(fs::exists(out_ + "/SHA256SUMS"));
      fs::remove_all(out_);
    }
  }
  ASSERT_EQ(quantize({in_, out_, "-q"}).exit_code, 0);
  expect_clean({"out"});
}

TEST_F(QuantizeLong, RunsAtTheSameTimeDoNotDisturbEachOther) {
  const auto first = start();
  const ProcessResult second = quantize({in_, out_, "-q"});
  const ProcessResult result = first->wait();
  EXPECT_EQ(std::min(result.exit_code, second.exit_code), 0);
  EXPECT_EQ(std::max(result.exit_code, second.exit_code), 4);  // the name was taken by the other
  expect_clean({"out"});
}

TEST_F(Quantize, WritesGgufForOthers) {
  const std::string gguf = dir_.path() / "out.gguf";
  const ProcessResult result = quantize({model_, gguf, "--gguf", "q8_0", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["scheme"], "GGUF q8_0");
  const ProcessResult inspected = minfer({"inspect", gguf, "--check", "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  const Json object = Json::parse(inspected.out);
  EXPECT_EQ(object["types"]["Q8_0"]["n_tensors"], 13);  // all matrices but w_down: 48 columns
  EXPECT_EQ(object["types"]["F16"]["n_tensors"], 2);
  EXPECT_EQ(minfer({"generate", "-m", gguf, "-n", "4", "-q", "x"}).exit_code, 0);

  expect_failure(quantize({model_, gguf, "--gguf", "q8_0"}), 4, "out.gguf");
  expect_failure(quantize({model_, gguf, "--gguf", "q8_0", "--asymmetric"}), 2, "--gguf");
  expect_failure(quantize({model_, gguf, "--gguf", "q2_k"}), 2, "f16|q8_0|q4_0");
  expect_clean({"out.gguf"});
}

TEST_F(Quantize, AGgufFilesTokenizerGoesAlong) {
  const ProcessResult result = quantize({model_, out_, "--type", "int8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("has no tokenizer"), std::string::npos) << result.err;
  EXPECT_EQ(names_in(out_).count("tokenizer.gguf"), 1u);
  for (const char* text : {"a b", "", "x \xc3\xa9\n"}) {
    EXPECT_EQ(minfer({"tokenize", "-m", out_, text}).out,
              minfer({"tokenize", "-m", model_, text}).out);
  }
  EXPECT_EQ(minfer({"generate", "-m", out_, "-n", "4", "-q", "x"}).exit_code, 0);
  EXPECT_EQ(minfer({"inspect", out_, "--check"}).exit_code, 0);
  dir_.write("out/tokenizer.gguf", "GGUF");
  expect_failure(minfer({"tokenize", "-m", out_, "x"}), 3, "tokenizer.gguf");
}

// What --force would refuse is not said to need it.
TEST_F(Quantize, OthersFilesStayWithAndWithoutForce) {
  fs::create_directory(out_);
  dir_.write("out/notes.txt", "mine");
  const ProcessResult forced = quantize({in_, out_, "--force"});
  expect_failure(forced, 4, "is not replaced");
  expect_failure(quantize({in_, out_}), 4, forced.err);
}

TEST_F(Quantize, SingleFileIsTheWholeModel) {
  const std::string demo = fixtures_dir().parent_path().parent_path() / "models/demo";
  const std::string file = dir_.path() / "demo.safetensors";
  ASSERT_EQ(quantize({demo, out_, "-q"}).exit_code, 0);
  const ProcessResult result = quantize({demo, file, "--single-file", "-q"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_clean({"out", "demo.safetensors"});
  const auto text_of = [&](const std::string& model) {
    return minfer({"generate", "-m", model, "--temp", "0", "-n", "16", "-q", "Once upon a time"})
        .out;
  };
  EXPECT_EQ(text_of(file), text_of(out_));
  EXPECT_GT(text_of(file).size(), 16u);
  const ProcessResult inspected = minfer({"inspect", file, "--check"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("safetensors, single file, compressed-tensors int4 g64"),
            std::string::npos)
      << inspected.out;
  EXPECT_EQ(minfer({"tokenize", "-m", file, "--count", "a b"}).out,
            minfer({"tokenize", "-m", demo, "--count", "a b"}).out);

  std::string bytes = read_file(file);
  bytes[bytes.find("\"hidden_size\"") + 1] ^= 1;
  dir_.write("demo.safetensors", bytes);
  expect_failure(minfer({"inspect", file, "--check", "-q"}), 3, "minfer.config: XXH3");
}

}  // namespace
}  // namespace minfer::test
