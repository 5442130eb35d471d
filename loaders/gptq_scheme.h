#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "loaders/metadata.h"

// Private to the loaders: what the settings of GPTQ, AWQ and AutoRound say of the packed tensors.
namespace minfer {

struct GptqScheme {
  // For column i of the eight in a word: its place from the lowest bits. AWQ interleaves columns.
  using Places = std::array<int, 8>;
  static constexpr Places kInOrder = {0, 1, 2, 3, 4, 5, 6, 7};
  static constexpr Places kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

  std::string name;
  int bits = 4;
  int64_t group = -1;  // -1: one scale a row
  bool asymmetric = true;
  bool codes_along_in = true;  // a word of qweight holds rows of [in, out]; else columns
  Places places = kInOrder;    // of the columns of a word
  // 1 for GPTQ's first format, which stores the zero-point minus 1; a zero-point of 0 wraps around.
  int zero_offset = 0;
};

// Each reads the keys below "quantization_config." and throws Input, with the key, for a setting
// that is not supported.
GptqScheme read_gptq_scheme(const Metadata& metadata);
GptqScheme read_awq_scheme(const Metadata& metadata);
GptqScheme read_auto_round_scheme(const Metadata& metadata);

}  // namespace minfer
