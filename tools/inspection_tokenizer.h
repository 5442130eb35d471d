#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "loaders/tensor_source.h"

namespace minfer {

// What `minfer inspect` says about a model beside its tensors.
struct TokenizerInspection {
  struct Id {
    int64_t id;
    std::string piece;
    std::string file;  // the one that names it
  };
  std::string name, licence;  // empty: the files say none
  std::string refusal;  // why the tokenizer is not supported; empty where there is none either
  std::string kind;     // empty: no tokenizer
  int64_t n_tokens = 0;
  std::optional<Id> bos;
  std::vector<Id> eos;
  std::string chat_template;  // "yes", "no", or "not supported: ..."
};

TokenizerInspection inspect_tokenizer(const TensorSource& source);

std::string to_text(const TokenizerInspection& inspection);
// Adds "name", "licence" and "tokenizer".
void add_json(nlohmann::ordered_json& object, const TokenizerInspection& inspection);

}  // namespace minfer
