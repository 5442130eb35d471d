#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/base/quant_codec.h"
#include "loaders/tensor_source.h"
#include "models/spec.h"

namespace minfer {

// Bytes that this process can still take without swapping or being killed: what the system has
// left, and what the control group allows. The largest int64_t where nothing says.
int64_t available_host_bytes();

// Bytes of a matrix as it is stored, codes with their scales and minimums.
int64_t stored_bytes(const StoredMatrix& matrix);

// A matrix as the file has it.
StoredMatrix stored_matrix(const TensorEntry& entry);

// How the CPU keeps a weight that is in groups; none where it is in floats, as it is or as F32.
std::optional<GroupFormat> kept_groups(const TensorEntry& entry);

// Bytes that it takes there, packing's padding aside.
int64_t weight_memory_bytes(const TensorEntry& entry);

// The same of a card, whose floats have 16 bits; padding included.
std::optional<GroupFormat> card_kept_groups(const TensorEntry& entry);
int64_t card_memory_bytes(const TensorEntry& entry);

// Throws Memory, with both figures, where there are fewer.
void require_host_memory(int64_t bytes, std::string_view purpose);

}  // namespace minfer
