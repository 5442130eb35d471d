#pragma once

#include <string>

#include "loaders/safetensors.h"

namespace minfer {

// Copies the settings of a quantized checkpoint to "quantization_config." of the metadata if they
// are elsewhere: in `compression_config` of config.json or, with packed weights, in
// quantize_config.json or quant_config.json beside it. Adds a missing quant_method. Returns the
// file with the settings, for messages; empty: config.json. Throws Input with the file's name.
//   directory  empty for a single file, which has no settings besides config.json
std::string settle_quantization_settings(SafetensorsSource& source, const std::string& directory);

}  // namespace minfer
