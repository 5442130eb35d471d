#pragma once

#include "models/model.h"

namespace minfer {

// Fills in what follows from a model's weights: `description` and `bytes_per_token`.
void describe_model(Model& model);

}  // namespace minfer
