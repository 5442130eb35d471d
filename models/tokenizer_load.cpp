#include <algorithm>
#include <filesystem>

#include "kernels/base/error.h"
#include "loaders/file.h"
#include "loaders/tensor_source.h"
#include "models/tokenizer_formats.h"

namespace minfer {
namespace {

std::unique_ptr<Tokenizer> load_file(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  const File file(path);
  char start[4] = {};
  file.read(0, start, std::min<uint64_t>(file.size(), sizeof start));
  const std::string_view magic(start, sizeof start);
  if (magic == "GGUF") return make_gguf_tokenizer(open_source(path)->metadata);
  if (magic[0] == '{') return load_hf_json(path, directory);
  // llama2.c's length of the longest piece is far below 65,536.
  if (magic[2] == 0 && magic[3] == 0) return load_llama2c(path);
  constexpr char kFirstPiece = 0x0a;  // protobuf: field 1, a message
  MINFER_REQUIRE(Input, magic[0] == kFirstPiece,
                 "not a tokenizer; supported are tokenizer.model, tokenizer.json, llama2.c's "
                 "tokenizer.bin and GGUF");
  return load_sentencepiece(path, directory);
}

std::string tokenizer_file_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return path;
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    if (std::filesystem::exists(file)) return file.string();
  }
  throw Error(ErrorKind::Input,
              cat(shown_path(path), ": neither tokenizer.model nor tokenizer.json is there"));
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const std::string file = tokenizer_file_of(path);
  try {
    return load_file(file);
  } catch (const Error& e) {
    // Errors of reading the file name it already.
    const std::string shown = shown_path(file);
    if (std::string_view(e.what()).starts_with(shown)) throw;
    throw e.in(shown);
  }
}

}  // namespace minfer
