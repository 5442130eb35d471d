#include "loaders/foreign_file.h"

#include <cctype>

#include "kernels/base/error.h"

namespace minfer {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// " of 4100200300 bytes", as the line "size N" of the pointer says.
std::string pointed_size(std::string_view pointer) {
  const size_t line = pointer.find("\nsize ");
  if (line == std::string_view::npos) return "";
  const std::string_view rest = pointer.substr(line + 6);
  const std::string_view digits = rest.substr(0, rest.find_first_not_of("0123456789"));
  return digits.empty() ? "" : cat(" of ", digits.substr(0, 20), " bytes");
}

constexpr const char* kPickle =
    "is PyTorch's (a pickle, which can run code when it is read); convert it to safetensors or "
    "GGUF";
constexpr const char* kConvert = "; convert it to safetensors or GGUF";

struct Magic {
  std::string_view bytes;
  const char* what;
};
using namespace std::string_view_literals;
constexpr Magic kMagics[] = {
    {"ggml"sv, "is a ggml file from before GGUF; convert it to GGUF"},
    {"lmgg"sv, "is a ggml file from before GGUF; convert it to GGUF"},
    {"tjgg"sv, "is a ggml file from before GGUF; convert it to GGUF"},
    {"fmgg"sv, "is a ggml file from before GGUF; convert it to GGUF"},
    {"algg"sv, "is a LoRA adapter of ggml; merge it into its model first"},
    {"FUGG"sv, "is a big-endian GGUF; convert it to little-endian"},
    {"MZqFpD"sv, "is a llamafile; `unzip FILE '*.gguf'` takes the model out of it"},
    {"\x80\x02"sv, kPickle},
    {"\x80\x03"sv, kPickle},
    {"\x80\x04"sv, kPickle},
    {"\x80\x05"sv, kPickle},
    {"\x89HDF"sv, "is HDF5, as Keras writes it; convert it to safetensors or GGUF"},
    {"\x93NUMPY"sv, "is a NumPy array; convert it to safetensors or GGUF"},
    {"\x1f\x8b"sv, "is compressed by gzip; unpack it first"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd; unpack it first"},
    {"\xfd"
     "7zXZ"sv,
     "is compressed by xz; unpack it first"},
    {"BZh"sv, "is compressed by bzip2; unpack it first"},
    {"7z\xbc\xaf"sv, "is a 7z archive; unpack it first"},
    {"Rar!"sv, "is a RAR archive; unpack it first"},
    {"%PDF"sv, "is a PDF document"},
    {"\x7f"
     "ELF"sv,
     "is a program, no model"},
};

}  // namespace

std::string stand_in(std::string_view start) {
  if (start.starts_with("version https://git-lfs.github.com/spec/")) {
    return cat("is a git-lfs pointer to a file", pointed_size(start),
               ", not the file; `git lfs pull` in its directory fetches it");
  }
  const size_t first = start.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  const std::string text = first == std::string_view::npos
                               ? ""
                               : lower(start.substr(first, std::size("<!doctype html")));
  if (text.starts_with("<!doctype html") || text.starts_with("<html")) {
    return "is a web page, saved in place of the file; on huggingface.co the file is at /resolve/, "
           "not at /blob/";
  }
  return "";
}

std::string foreign_format(std::string_view start, std::string_view name) {
  const std::string lower_name = lower(name);
  const auto ends = [&](std::string_view end) { return lower_name.ends_with(end); };
  if (start.empty()) return "is empty; its download was cut off";
  if (start.starts_with("PK\x03\x04")) {
    if (ends(".llamafile") || ends(".exe")) return kMagics[6].what;
    if (ends(".zip")) return "is a zip archive; unpack it first";
    if (ends(".npz")) return cat("is a set of NumPy arrays", kConvert);
    return cat("is a zip archive, as PyTorch's .bin and .pth are, of pickles, which can run code ",
               "when they are read", kConvert);
  }
  for (const Magic& magic : kMagics) {
    if (start.starts_with(magic.bytes)) return magic.what;
  }
  for (const char* end : {".bin.index.json", ".safetensors.index.json", "config.json",
                          "tokenizer.json", "tokenizer.model"}) {
    if (ends(end)) return "is one file of a model; give the directory that it is in";
  }
  if (ends(".onnx")) return cat("is ONNX", kConvert);
  if (ends(".pb") || ends(".tflite") || ends(".ckpt") || ends(".msgpack") || ends(".h5")) {
    return cat("is of another framework", kConvert);
  }
  if (ends(".engine") || ends(".plan")) return "is an engine of TensorRT; minfer reads its source";
  if (start.size() > 262 && start.substr(257, 5) == "ustar")
    return "is a tar archive; unpack it first";
  return "";
}

}  // namespace minfer
