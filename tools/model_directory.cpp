#include "tools/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "kernels/base/error.h"
#include "loaders/directory.h"
#include "loaders/file.h"
#include "tools/log.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

// Names in a directory, sorted; none where it cannot be listed, which the loader then says.
std::vector<std::string> names_in(const fs::path& directory) {
  try {
    return names_in_directory(directory);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::Memory) throw;
    return {};
  }
}

// "m-00002-of-00005.gguf": read with the first part.
bool is_later_part(const std::string& name) {
  const size_t of = name.rfind("-of-");
  return of != std::string::npos && of >= 6 && name[of - 6] == '-' &&
         name.substr(of - 5, 5).find_first_not_of("0123456789") == std::string::npos &&
         name.substr(of - 5, 5) != "00001";
}

std::vector<std::string> ggufs_among(const std::vector<std::string>& names) {
  std::vector<std::string> ggufs;
  for (const std::string& name : names) {
    if (name.ends_with(".gguf") && !is_later_part(name) && !name.starts_with("mmproj")) {
      ggufs.push_back(name);
    }
  }
  return ggufs;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    list += (i == 0 ? "" : ", ") + shortened(names[i]);
  }
  return names.size() > kMost ? cat(list, " and ", names.size() - kMost, " more") : list;
}

// The first name that ends in one of these; empty without one.
std::string first_ending(const std::vector<std::string>& names,
                         std::initializer_list<std::string_view> ends) {
  for (const std::string& name : names) {
    for (const std::string_view end : ends) {
      if (name.ends_with(end)) return name;
    }
  }
  return "";
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::ranges::find(names, name) != names.end();
}

std::string used(const fs::path& path) {
  log_info("model " + shortened(path.string(), 500));
  return path.string();
}

// "org/name", and what may stand around it in a link or an Ollama-like name.
std::string repository_of(std::string text) {
  for (const char* front : {"https://", "http://", "hf://", "huggingface.co/", "hf.co/"}) {
    if (text.starts_with(front)) text = text.substr(std::string_view(front).size());
  }
  for (const char* behind : {"/resolve/", "/blob/", "/tree/", ":"}) {
    text = text.substr(0, text.find(behind));
  }
  while (text.ends_with('/')) text.pop_back();
  const bool plain = text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789-_./") == std::string::npos;
  const bool two_names = std::ranges::count(text, '/') == 1 && text.front() != '/' &&
                         text.front() != '.' && text.find("..") == std::string::npos;
  const bool file = text.ends_with(".gguf") || text.ends_with(".bin") ||
                    text.ends_with(".safetensors") || text.ends_with(".json");
  return plain && two_names && !file ? text : "";
}

}  // namespace

std::string model_in_directory(const std::string& directory) {
  const std::vector<std::string> names = names_in(directory);
  if (!first_ending(names, {".safetensors", ".safetensors.index.json"}).empty() &&
      has(names, "config.json")) {
    return directory;
  }
  const fs::path path(directory);
  if (has(names, "snapshots") && has(names, "blobs")) {
    const std::vector<std::string> snapshots = names_in(path / "snapshots");
    MINFER_REQUIRE(Input, !snapshots.empty(), shortened(directory, 200), ": has no snapshot");
    MINFER_REQUIRE(Input, snapshots.size() == 1, shortened(directory, 200),
                   ": has several snapshots, name one: snapshots/", listed(snapshots));
    return used(model_in_directory((path / "snapshots" / snapshots.front()).string()));
  }
  const std::vector<std::string> ggufs = ggufs_among(names);
  if (ggufs.size() == 1) return used(path / ggufs.front());
  MINFER_REQUIRE(Input, ggufs.empty(), shortened(directory, 200),
                 ": holds several GGUF files, name one: ", listed(ggufs));
  MINFER_REQUIRE(Input, !has(names, "adapter_config.json"), shortened(directory, 200),
                 ": is a LoRA adapter, no model; merge it into its base model first (peft: "
                 "merge_and_unload, save_pretrained)");
  const std::string torch =
      first_ending(names, {".bin", ".bin.index.json", ".pth", ".pt", ".ckpt"});
  const bool llama2c = !has(names, "config.json") && !first_ending(names, {".bin"}).empty();
  MINFER_REQUIRE(Input, torch.empty() || llama2c, shortened(directory, 200),
                 ": has PyTorch weights (", shortened(torch),
                 "), which can run code when they are read, and no safetensors; convert them "
                 "(transformers: from_pretrained, save_pretrained)");
  const std::string other = first_ending(names, {".onnx", ".h5", ".msgpack", ".pb", ".npz"});
  MINFER_REQUIRE(Input, other.empty(), shortened(directory, 200), ": has weights of another kind (",
                 shortened(other), ") and no safetensors or GGUF");
  return directory;
}

std::string missing_model_text(const std::string& path) {
  const std::string repository = repository_of(path);
  if (repository.empty()) return "";
  const std::string name = repository.substr(repository.find('/') + 1);
  return cat(shortened(path, 200),
             ": no such path; a repository of huggingface.co is fetched by `hf "
             "download ",
             repository, " --local-dir ", name, "`, then -m ", name);
}

}  // namespace minfer
