#pragma once

#include <memory>
#include <string>

#include "models/tokenizer.h"

namespace minfer {

// One function per kind of tokenizer file; each throws Input for a file it cannot take. `directory`
// is where the files beside it are looked for (tokenizer_config.json and the like).
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path,
                                              const std::string& directory);
std::unique_ptr<Tokenizer> load_hf_json(const std::string& path, const std::string& directory);
std::unique_ptr<Tokenizer> load_llama2c(const std::string& path);

}  // namespace minfer
