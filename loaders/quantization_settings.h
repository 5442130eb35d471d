#pragma once

#include <string>

#include "loaders/safetensors.h"

namespace minfer {

// Brings the settings of a quantized checkpoint under "quantization_config." of the metadata, where
// its writer has put them elsewhere: `compression_config` of config.json, or quantize_config.json
// or quant_config.json beside it (these where there are packed weights). Returns the file that they
// come from, for messages; empty: config.json. Throws Input with the name of that file.
//   directory  empty: a single file, which has config.json alone
std::string settle_quantization_settings(SafetensorsSource& source, const std::string& directory);

}  // namespace minfer
