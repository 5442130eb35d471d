#pragma once

#include <functional>

#include "models/card_memory.h"
#include "models/weight_list.h"

namespace minfer {

// All memory that a backend allocates for a model and a session. The session's activations include
// the workspaces of packing and of matmuls. All sizes come from the backend.
//   stored_of  returns the format of a matrix before it is packed
struct MemoryNeeded {
  WeightMemory weights;
  SessionMemory session;

  int64_t bytes() const {
    return checked_add(checked_add(weights.bytes, session.kv_bytes), session.activation_bytes);
  }
};
MemoryNeeded memory_needed(const ModelSpec& spec, const Backend& backend,
                           const SessionMemory& session,
                           const std::function<StoredMatrix(const WeightInfo&)>& stored_of);

}  // namespace minfer
