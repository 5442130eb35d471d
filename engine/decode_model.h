#pragma once

#include "engine/forward.h"
#include "kernels/decode_plan.h"

namespace minfer {

// The model and the cache of an executor as a decode plan sees them; both outlive it.
DecodeModel decode_model(const Model& model, ForwardState& state, int64_t max_seq_len);

}  // namespace minfer
