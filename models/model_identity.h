#pragma once

#include <string>

#include "models/model.h"

namespace minfer {

// "120 tensors of 15703040 bytes, checksum 0123456789abcdef": the same for two opened models if
// and, but for chance, only if names, types and shapes of their tensors, their metadata and their
// vocabularies are the same. No weight is read.
std::string identity_of(const OpenedModel& opened);

}  // namespace minfer
