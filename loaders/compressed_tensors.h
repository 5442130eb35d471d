#pragma once

#include <string>
#include <vector>

#include "loaders/safetensors_writer.h"
#include "loaders/tensor_source.h"

namespace minfer {

// How quantized matrices are stored in a Hugging Face directory: the names, the packing and the
// `quantization_config` of the compressed-tensors package (0.10 and later), which transformers and
// vLLM read. A matrix "M.weight" becomes
//
//   M.weight_packed      I32 [out, in * bits / 32]: codes along the input dimension, the first in
//                        the low bits, offset by half their range; rows padded to whole words
//   M.weight_scale       F16 [out, in / group]
//   M.weight_zero_point  I32 [out * bits / 32, in / group], where asymmetric: packed along the rows
//   M.weight_shape       I64 [2]
//
// which is the format "pack-quantized". An 8-bit embedding, and every matrix of a model without
// 4-bit matrices, becomes M.weight, I8, and M.weight_scale instead: the format "int-quantized".
// (transformers cannot load an embedding that is packed.)
class CompressedTensorsLayout {
 public:
  explicit CompressedTensorsLayout(const std::vector<TensorEntry>& tensors);

  // The records of a tensor in the file, quantized or not.
  std::vector<SafetensorsWriter::Record> records(const TensorEntry& tensor) const;
  // The bytes of all these records.
  int64_t stored_bytes(const TensorEntry& tensor) const;
  // The text of the output's config.json: the model's own, `config`, with a quantization_config.
  //   tied  the output layer is the embedding
  std::string with_quantization_config(const std::string& config, bool tied) const;

  void append(SafetensorsWriter& file, const TensorEntry& tensor, int64_t begin,
              const QuantizedMatrix& rows) const;

 private:
  bool is_packed(const TensorEntry& tensor) const;

  std::vector<TensorEntry> tensors_;
  bool all_8_bits_ = true;
};

}  // namespace minfer
