#pragma once

#include "engine/forward.h"
#include "kernels/decode_plan.h"

namespace minfer {

// The model and the caches of a session as a decode plan sees them; both outlive it.
DecodeModel decode_model(const Model& model, ForwardState& state);

}  // namespace minfer
