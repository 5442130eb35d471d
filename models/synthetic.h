#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace minfer {

struct MemoryNeeded;  // models/memory_needed.h

// A model of a known shape with seeded random weights, made in memory: no file, no tokenizer.
//   text  NAME or NAME:TYPE; NAME as in synthetic_names(), TYPE f16 (default), bf16, f32, int8
//         or int4[:GROUP], GROUP 32, 64 (default) or 128
// Weights are uniform with variance 1 / in_dim, so that activations keep their size. int8 has one
// scale a row; so have the embedding, the output and rows of broken groups of an int4 model, as
// `minfer quantize` leaves them. The context is that of the shape, or min_seq_len where that is
// longer: nothing was trained on either. `session` is that of LoadOptions. Throws Usage for an
// unknown name or type, with the list, and Memory before any weight is made.
Model make_synthetic_model(const std::string& text, Backend& backend, uint64_t seed = 1,
                           int64_t min_seq_len = 0, const SessionMemory& session = {});
// Of such a model, to plan a session by: without weights, and cut for ranks.
OpenedModel open_synthetic(const std::string& text, int n_ranks, int64_t min_seq_len = 0);
ModelSpec synthetic_spec(const std::string& text, int64_t min_seq_len = 0);

struct SyntheticType {
  SyntheticType(DType weights, int64_t columns = 0) : dtype(weights), group(columns) {}
  DType dtype;    // a float type, U8 or U4
  int64_t group;  // U4: columns that share a scale
};
Model make_synthetic_model(const ModelSpec& spec, const SyntheticType& type, Backend& backend,
                           uint64_t seed, const SessionMemory& session = {});

// What such a model and a session take of the backend's memory.
MemoryNeeded synthetic_memory(const ModelSpec& spec, const SyntheticType& type,
                              const Backend& backend, const SessionMemory& session);

std::vector<std::string> synthetic_names();

}  // namespace minfer
