#pragma once

#include <cstdint>

namespace minfer {

// rtn    scale max|w| / 7 (8 bits: / 127), codes symmetric around the zero: a baseline
// rtn16  all codes; the scale, which may be negative, puts the weight of largest magnitude on -8
// mse    as rtn16, with a search for the scale of least squared error
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

// The scale of each of n_groups groups of `size` weights; group i begins at weights[i * stride].
// A group's result depends on its own weights alone. Weights are finite, at most 65504 in
// magnitude.
void choose_scales(GroupScale* out, const float* weights, int64_t n_groups, int64_t size,
                   int64_t stride, const QuantizeFormat& format, QuantizeMethod method);

// The finite f16 that a scale is stored as; what is not zero does not become zero.
float stored_scale(float x);

// The nearest code, ties to the even one of code - zero.
uint8_t code_of(float weight, const GroupScale& scale);

}  // namespace minfer
