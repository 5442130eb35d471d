#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "loaders/small_files.h"
#include "models/tokenizer/tokenizer.h"

namespace minfer {

// The size of the largest tokenizer file that is read.
inline constexpr uint64_t kMaxTokenizerBytes = 64 << 20;

// One function per kind of tokenizer file; each throws Input for a file it cannot take. `beside`
// has tokenizer_config.json and the like.
std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const SmallFiles& beside);
std::unique_ptr<Tokenizer> load_hf_json(std::string_view text, const SmallFiles& beside);
std::unique_ptr<Tokenizer> load_llama2c(const std::string& path);

}  // namespace minfer
