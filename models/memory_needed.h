#pragma once

#include <functional>

#include "models/card_memory.h"
#include "models/weight_list.h"

namespace minfer {

// All that is allocated on a backend for a model and a session: weights as they are packed, and
// with the session's activations what packing and products take besides, by the backend's word.
//   stored_of  a matrix of the model as it is before it is packed
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
