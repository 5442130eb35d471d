#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "loaders/metadata.h"
#include "loaders/model_writer.h"

namespace minfer {

// A Hugging Face directory with quantized matrices: config.json, model.safetensors (in
// compressed_tensors.h's layout, with a checksum of each tensor), the tokenizer and other small
// files of the source, minfer_quant_report.json, and SHA256SUMS over them all. Where the source is
// a GGUF file, its tokenizer goes into one without tensors, tokenizer.gguf, beside the weights.
inline constexpr const char* kQuantReport = "minfer_quant_report.json";
inline constexpr const char* kTokenizerGguf = "tokenizer.gguf";
struct QuantizedDirOptions {
  std::string output;
  // The output is one safetensors file that carries the configuration and the tokenizer inside
  // (small_files.h). It has no report, and no checksums but those of its tensors.
  bool single_file = false;
  bool replace = false;  // whether to replace an existing output
  std::vector<TensorEntry> tensors;
  std::string config;  // config.json as JSON text, without quantization_config
  bool tied_output = false;
  std::string source_dir;                       // whose small files are copied; empty: none
  Metadata tokenizer = {};                      // of a GGUF source; empty: none
  std::map<std::string, std::string> metadata;  // of the safetensors file
  // Called while the result is read back, with the bytes done and in all.
  std::function<void(int64_t, int64_t)> progress;
};
std::unique_ptr<ModelWriter> make_quantized_dir_writer(QuantizedDirOptions options);

}  // namespace minfer
