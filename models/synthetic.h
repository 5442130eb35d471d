#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace minfer {

// A model of a known shape with seeded random weights, made in memory: no file, no tokenizer.
//   spec  NAME or NAME:TYPE; NAME as in synthetic_names(), TYPE f16 (default), bf16 or f32
// Weights are uniform with variance 1 / in_dim, so that activations keep their size. Throws Usage
// for an unknown name or type, with the list.
Model make_synthetic_model(const std::string& spec, Backend& backend, uint64_t seed = 1);
Model make_synthetic_model(const ModelConfig& config, DType dtype, Backend& backend, uint64_t seed);

std::vector<std::string> synthetic_names();

}  // namespace minfer
