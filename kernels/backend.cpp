#include "kernels/backend.h"

#include "kernels/decode_plan.h"

namespace minfer {

std::unique_ptr<DecodePlan> Backend::plan_decode(const DecodeModel&) { return nullptr; }

}  // namespace minfer
