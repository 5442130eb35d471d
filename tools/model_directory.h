#pragma once

#include <string>

namespace minfer {

// What `-m` means that names a directory: itself, or the one GGUF in a directory that has no
// safetensors, or the one snapshot of Hugging Face's cache. Throws Input where it holds several
// GGUF files, an adapter or weights of a kind that minfer does not read.
std::string model_in_directory(const std::string& directory);

// Why a path that is not there is none: "meta-llama/Llama-3.2-1B" names a repository.
std::string missing_model_text(const std::string& path);

}  // namespace minfer
