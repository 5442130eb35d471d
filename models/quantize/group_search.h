#pragma once

#include <cstdint>

namespace minfer {

// How the scale of a group is chosen:
// rtn    round to nearest: scale max|w| / 7 (8 bits: / 127; asymmetric: range / 15); a baseline
// rtn16  as rtn, but symmetric 4 bits use all codes: the scale, of either sign, puts max|w| on -8
// mse    starts from rtn16, then searches for the scale of least squared error
enum class QuantizeMethod { Rtn, Rtn16, Mse };

// How the weights of a matrix are to be stored.
struct QuantizeFormat {
  int bits = 4;             // 4 or 8
  int64_t group = 0;        // columns that share a scale; 0: a whole row
  bool asymmetric = false;  // an integer zero-point in each group; 4 bits only
};

// w is near scale * (code - zero), code in [low, high]. The scale is a finite f16.
struct GroupScale {
  float scale = 0;
  int zero = 0;
  int low = 0, high = 0;
};

// Chooses the scale of each of n_groups groups of `size` weights; group i begins at
// weights[i * stride]. The result of a group depends on its own weights alone. Weights must be
// finite and at most 65504 in magnitude.
void choose_scales(GroupScale* out, const float* weights, int64_t n_groups, int64_t size,
                   int64_t stride, const QuantizeFormat& format, QuantizeMethod method);

// Rounds a scale to the finite f16 that is stored. A scale that is not zero does not become zero.
float stored_scale(float x);

// Returns the nearest code; a tie goes to the code with an even code - zero.
uint8_t code_of(float weight, const GroupScale& scale);

}  // namespace minfer
