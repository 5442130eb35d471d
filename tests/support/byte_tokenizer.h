#pragma once

#include <memory>
#include <string>
#include <vector>

#include "loaders/metadata.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/tokenizer.h"

namespace minfer::test {

// The metadata of a byte-level vocabulary: ids 0 to 255 are the bytes; then come "ab", two line
// ends as one token, and the tokens `control`, of which the first is BOS and the second EOS.
inline Metadata byte_vocabulary(const std::vector<std::string>& control) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(byte_level_spelling(std::string(1, static_cast<char>(byte))));
  const std::string line_end = tokens['\n'];
  tokens.insert(tokens.end(), {"ab", line_end + line_end});
  std::vector<int64_t> types(tokens.size(), 1);
  const auto first = static_cast<int64_t>(tokens.size());
  tokens.insert(tokens.end(), control.begin(), control.end());
  types.resize(tokens.size(), 3);

  Metadata metadata;
  metadata.set("tokenizer.ggml.model", "gpt2");
  metadata.set("tokenizer.ggml.pre", "gpt-2");
  metadata.set("tokenizer.ggml.tokens", tokens);
  metadata.set("tokenizer.ggml.token_type", types);
  metadata.set("tokenizer.ggml.merges", std::vector<std::string>{"a b", line_end + " " + line_end});
  metadata.set("tokenizer.ggml.bos_token_id", first);
  metadata.set("tokenizer.ggml.eos_token_id", first + 1);
  return metadata;
}

}  // namespace minfer::test
