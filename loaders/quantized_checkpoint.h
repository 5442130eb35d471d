#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loaders/gptq_scheme.h"
#include "loaders/safetensors.h"

// Private to the loaders: Hugging Face directories whose weights are not stored as they are
// delivered, most often those with a quantization_config.
namespace minfer {

// A weight whose parts are several tensors of the files. Made from headers alone.
struct PackedWeight {
  using Stored = SafetensorsSource::Stored;

  TensorEntry entry;
  std::vector<const Stored*> parts;  // parts of no other weight, and not listed as tensors
  // What read_quantized_into() or, for an entry without `quant`, read_into() does; or what reads n
  // rows from row `begin` on of a tensor [.., columns] of rank 3, elements of one of rank 2,
  // counted over all outer dims. One is set.
  std::function<void(HostQuantizedMatrix& to, const SafetensorsSource&)> read_quantized = {};
  std::function<void(HostTensor& to, const SafetensorsSource&)> read = {};
  std::function<void(void* to, const SafetensorsSource&, int64_t begin, int64_t n)> read_rows = {};
};

// The weights that a quantization_config describes, checked against the headers of the files.
struct PackedWeights {
  std::string scheme;  // "compressed-tensors int4 g64": for people; empty: nothing to say
  std::vector<PackedWeight> weights;
  std::vector<std::string> warnings;
  std::string input_activations = {};  // as TensorSource has it
};
// Each throws Input, with the name, for what is not supported.
PackedWeights find_compressed_tensors(const SafetensorsSource& source);
PackedWeights find_gptq_weights(const SafetensorsSource& source, const GptqScheme& scheme);
PackedWeights find_gpt_oss_experts(const SafetensorsSource& source);

// Returns the source with its packed weights under their plain names, or the source itself if there
// are none. Throws Input without the name of the directory.
std::unique_ptr<TensorSource> join_packed_weights(std::unique_ptr<SafetensorsSource> source);

}  // namespace minfer
