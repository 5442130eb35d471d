#include <algorithm>
#include <filesystem>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "loaders/quantized_dir.h"
#include "loaders/tensor_source.h"
#include "models/tokenizer/formats.h"

namespace minfer {
namespace {

// `bytes` is a tokenizer.json or a tokenizer.model.
std::unique_ptr<Tokenizer> load_hf(std::string_view bytes, const SmallFiles& beside) {
  constexpr char kFirstPiece = 0x0a;  // protobuf: field 1, a message
  if (bytes.starts_with('{')) return load_hf_json(bytes, beside);
  MINFER_REQUIRE(Input, bytes.starts_with(kFirstPiece),
                 "not a tokenizer; supported are tokenizer.json, tokenizer.model, llama2.c's "
                 "tokenizer.bin and GGUF");
  return load_sentencepiece(bytes, beside);
}

bool is_model(const std::string& path) {
  try {
    return !open_source(path)->tensors.empty();
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Tokenizer> load_file(const std::string& path) {
  const File file(path);
  char start[4] = {};
  file.read(0, start, std::min<uint64_t>(file.size(), sizeof start));
  const std::string_view magic(start, sizeof start);
  if (magic == "GGUF") return make_gguf_tokenizer(open_source(path)->metadata);
  // llama2.c's length of the longest piece is far below 65,536.
  if (magic[0] != '{' && magic[2] == 0 && magic[3] == 0) {
    MINFER_REQUIRE(Input, !is_model(path),
                   "is a llama2.c model, which has no tokenizer inside; "
                   "--tokenizer FILE gives one");
    return load_llama2c(path);
  }
  return load_hf(read_whole_file(path, kMaxTokenizerBytes),
                 SmallFiles(std::filesystem::path(path).parent_path().string()));
}

// The file of a model that has its tokenizer; empty: none.
std::string tokenizer_file_in(const SmallFiles& files) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", kTokenizerGguf}) {
    if (files.has(name)) return name;
  }
  return {};
}

// With the name of the file in front, which errors of reading it have already.
template <typename Load>
std::unique_ptr<Tokenizer> load_named(const std::string& shown, const Load& load) {
  try {
    return load();
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with(shown)) throw;
    throw e.in(shown);
  }
}

}  // namespace

bool has_tokenizer(const std::string& path) {
  return !tokenizer_file_in(small_files_of(path)).empty();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const SmallFiles files = small_files_of(path);
  const std::string name = tokenizer_file_in(files);
  if (name == kTokenizerGguf) {
    return load_named(files.shown(name),
                      [&] { return load_file((std::filesystem::path(path) / name).string()); });
  }
  if (!name.empty()) {
    return load_named(files.shown(name),
                      [&] { return load_hf(files.read(name, kMaxTokenizerBytes), files); });
  }
  std::error_code ignored;  // opening it says what is wrong
  MINFER_REQUIRE(Input, !std::filesystem::is_directory(path, ignored), shown_path(path),
                 ": no tokenizer.json, tokenizer.model or tokenizer.gguf is there");
  return load_named(shown_path(path), [&] { return load_file(path); });
}

}  // namespace minfer
