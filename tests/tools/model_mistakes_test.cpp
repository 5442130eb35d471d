#include <filesystem>

#include "tests/tools/minfer_process.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;
using ModelMistakes = MinferProcess;

TEST_F(ModelMistakes, ARepositoryIsNoPath) {
  const std::string hint = "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B";
  for (const char* name :
       {"meta-llama/Llama-3.2-1B", "https://huggingface.co/meta-llama/Llama-3.2-1B",
        "hf.co/meta-llama/Llama-3.2-1B:Q4_K_M", "hf://meta-llama/Llama-3.2-1B",
        "https://huggingface.co/meta-llama/Llama-3.2-1B/tree/main"}) {
    expect_failure(minfer({"generate", "-m", name, "x"}), 3, hint);
    expect_failure(minfer({"inspect", name}), 3, hint);
  }
  expect_failure(minfer({"quantize", "meta-llama/Llama-3.2-1B"}), 3, hint);
  for (const char* name : {"models/x.gguf", "./a/b", "../a", "/a/b", "a/b/c", "nothing"}) {
    const ProcessResult result = minfer({"inspect", name});
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_EQ(result.err.find("hf download"), std::string::npos) << result.err;
  }
}

TEST_F(ModelMistakes, WhatStandsForAFileIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 2469606195\n";
  const std::string page = "\xef\xbb\xbf\n <!DOCTYPE HTML>\n<html lang=\"en\"></html>";
  for (const char* name : {"model.gguf", "model.bin", "tokenizer.model"}) {
    const std::string path = dir_.write(name, pointer);
    expect_failure(minfer({"inspect", path}), 3,
                   "is a git-lfs pointer to a file of 2469606195 bytes");
    expect_failure(minfer({"tokenize", "-m", path, "x"}), 3, "git lfs pull");
    dir_.write(name, page);
    expect_failure(minfer({"inspect", path}), 3, "is a web page");
    expect_failure(minfer({"tokenize", "-m", path, "x"}), 3, "is a web page");
    dir_.write(name, "<html>");
    expect_failure(minfer({"generate", "-m", path, "x"}), 3, "is a web page");
  }
  const std::string model = dir_.path() / "model";
  fs::create_directory(model);
  dir_.write("model/config.json", "{\"model_type\": \"llama\"}");
  dir_.write("model/model.safetensors", pointer);
  expect_failure(minfer({"inspect", model}), 3, "model.safetensors: is a git-lfs pointer");
  dir_.write("model/config.json", page);
  expect_failure(minfer({"inspect", model}), 3, "config.json: is a web page");
}

TEST_F(ModelMistakes, OtherFormatsAreNamed) {
  using namespace std::string_literals;
  const std::pair<const char*, std::pair<std::string, const char*>> kinds[] = {
      {"a.bin", {"PK\x03\x04zip of torch", "PyTorch"}},
      {"a.pth", {"\x80\x02}q"s, "PyTorch"}},
      {"a.pt", {"\x80\x04\x95"s, "pickle"}},
      {"a.llamafile", {"MZqFpD='\n\n"s, "llamafile"}},
      {"b.llamafile", {"PK\x03\x04"s, "llamafile"}},
      {"a.onnx", {"\x08\x07\x12\x07pytorch"s, "is ONNX"}},
      {"a.h5", {"\x89HDF\r\n"s, "HDF5"}},
      {"a.npz", {"PK\x03\x04"s, "NumPy"}},
      {"a.ggml", {"tjgg\x03"s, "before GGUF"}},
      {"a.gguf.gz", {"\x1f\x8b\x08"s, "gzip"}},
      {"a.gguf.zst", {"\x28\xb5\x2f\xfd"s, "zstd"}},
      {"a.7z", {"7z\xbc\xaf\x27\x1c"s, "7z archive"}},
      {"empty.gguf", {""s, "is empty"}},
      {"config.json", {"{}"s, "give the directory"}},
      {"model.safetensors.index.json", {"{\"weight_map\": {}}"s, "give the directory"}},
      {"big-endian.gguf", {"FUGG\0\0\0\3"s, "big-endian"}},
  };
  for (const auto& [name, kind] : kinds) {
    const std::string path = dir_.write(name, kind.first);
    expect_failure(minfer({"inspect", path}), 3, kind.second);
    expect_failure(minfer({"generate", "-m", path, "x"}), 3, name);
  }
}

class ModelDirectory : public MinferProcess {
 protected:
  ModelDirectory() { fs::create_directory(model_dir_); }
  void add(const std::string& name, std::string_view bytes = "x") const {
    dir_.write("m/" + name, bytes);
  }
  std::string model_dir_ = dir_.path() / "m";
};

TEST_F(ModelDirectory, WithOneGgufIsThatFile) {
  add("tiny.gguf", tiny_gguf());
  add("README.md");
  add("config.json", "{}");  // as many repositories of GGUF files have
  add("mmproj-tiny.gguf");
  const ProcessResult result = minfer({"tokenize", "-m", model_dir_, "--count", "x"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "5\n");
  EXPECT_EQ(result.err, "model " + model_dir_ + "/tiny.gguf\n");
  EXPECT_EQ(minfer({"generate", "-q", "-m", model_dir_, "-n", "1", "x"}).exit_code, 0);
  add("other.gguf");
  expect_failure(minfer({"generate", "-m", model_dir_, "x"}), 3,
                 "holds several GGUF files, name one: other.gguf, tiny.gguf");
}

TEST_F(ModelDirectory, PartsOfOneGgufAreOne) {
  for (const char* part : {"1", "2", "3"}) {
    add("m-0000" + std::string(part) + "-of-00003.gguf", tiny_gguf());
  }
  const ProcessResult result = minfer({"inspect", model_dir_});
  EXPECT_NE(result.err.find("m-00001-of-00003.gguf"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("several"), std::string::npos) << result.err;
}

TEST_F(ModelDirectory, OfAnotherKindIsNamed) {
  const auto refused = [&](const std::vector<std::string>& files, const std::string& words) {
    fs::remove_all(model_dir_);
    fs::create_directory(model_dir_);
    for (const std::string& file : files) add(file, file == "config.json" ? "{}" : "x");
    expect_failure(minfer({"inspect", model_dir_}), 3, words);
    expect_failure(minfer({"quantize", model_dir_}), 3, words);
  };
  refused({"config.json", "pytorch_model.bin"}, "PyTorch weights (pytorch_model.bin)");
  refused({"config.json", "pytorch_model.bin.index.json"}, "PyTorch weights");
  refused({"consolidated.00.pth", "params.json"}, "PyTorch weights (consolidated.00.pth)");
  refused({"epoch=3.ckpt"}, "PyTorch weights");
  refused({"adapter_config.json", "adapter_model.safetensors"}, "is a LoRA adapter");
  refused({"adapter_config.json", "adapter_model.bin", "README.md"}, "is a LoRA adapter");
  refused({"config.json", "model.onnx"}, "weights of another kind (model.onnx)");
  refused({"config.json", "tf_model.h5"}, "weights of another kind (tf_model.h5)");
  refused({"config.json", "flax_model.msgpack"}, "weights of another kind");
}

// models--org--name, as huggingface_hub keeps it.
TEST_F(ModelDirectory, OfTheHubsCacheIsItsSnapshot) {
  fs::create_directories(model_dir_ + "/snapshots/abc");
  fs::create_directory(model_dir_ + "/blobs");
  add("snapshots/abc/tiny.gguf", tiny_gguf());
  EXPECT_EQ(minfer({"tokenize", "-q", "-m", model_dir_, "--count", "x"}).out, "5\n");
  fs::create_directory(model_dir_ + "/snapshots/def");
  expect_failure(minfer({"inspect", model_dir_}), 3, "several snapshots, name one: snapshots/abc");
}

}  // namespace
}  // namespace minfer::test
