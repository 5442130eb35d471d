#pragma once

#include <string>

#include "models/spec.h"

namespace minfer {

// config.json of a Llama-family model, for a source that has none.
//   dtype  of the values that are not quantized
std::string hf_config_text(const ModelSpec& spec, DType dtype);

}  // namespace minfer
