#pragma once

#include <string>
#include <vector>

namespace minfer {

// The safetensors files of a Hugging Face directory: those in an index, or those in `files`.
struct HfWeightFiles {
  std::string index;               // a path; empty: there is none
  std::vector<std::string> files;  // paths, where there is no index
};

// Finds model.safetensors or its index; else what has another name, such as
// gptq_model-4bit-128g.safetensors: one index, one file, or all shards of one set, except
// adapter_model*. Throws Input if there is none, or more than one choice.
HfWeightFiles find_hf_weight_files(const std::string& directory);

}  // namespace minfer
