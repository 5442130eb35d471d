#pragma once

#include "models/spec.h"

namespace minfer {

// Sets what a configuration says of tensors by the tensors themselves: whether the output layer is
// the embedding, and which linear layers have biases. What they contradict goes to
// spec.warnings. Reads tensors where the names alone do not tell: a stored output layer beside
// the embedding that it is said to be, biases that are said not to be there.
void settle_by_tensors(ModelSpec& spec, const TensorSource& source);

}  // namespace minfer
