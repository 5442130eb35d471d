#pragma once

#include <string>
#include <vector>

namespace minfer {

// The safetensors files of a Hugging Face directory: those that an index names, or these.
struct HfWeightFiles {
  std::string index;               // a path; empty: there is none
  std::vector<std::string> files;  // paths, where there is no index
};

// model.safetensors or its index; else what the directory has under another name, as
// gptq_model-4bit-128g.safetensors: one index, one file, or all shards of one set. Throws Input
// where there is none, or more than one choice.
HfWeightFiles find_hf_weight_files(const std::string& directory);

}  // namespace minfer
