#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace minfer {

enum class RopeScaling { None, Linear, Llama3, Dynamic, Yarn, LongRope };

// How one table of rotation angles (RoPE) is made. Names and formulas are those of transformers'
// modeling_rope_utils.py; docs/models.md says how they are chosen.
struct RopeSpec {
  double theta = 10000;
  int64_t rotary_dim = 0;  // rotated part of a head, from its start
  RopeScaling scaling = RopeScaling::None;
  double factor = 1;                                 // Linear, Llama3, Dynamic, Yarn
  int64_t original_seq_len = 8192;                   // Llama3, Dynamic, Yarn, LongRope
  double low_freq_factor = 1, high_freq_factor = 4;  // Llama3
  double beta_fast = 32, beta_slow = 1;              // Yarn: turns within the original context
  bool truncate = true;    // Yarn: the ramp begins and ends at whole rotary pairs
  double table_scale = 1;  // of cosines and sines: transformers' attention_factor
  // Divisors of the frequencies, [rotary_dim / 2] or empty: GGUF's rope_freqs.weight, and
  // LongRope's for texts up to the original context and for longer ones.
  std::vector<double> divisors = {}, short_divisors = {}, long_divisors = {};

  bool operator==(const RopeSpec&) const = default;
};

// "yarn": as config.json calls it; "none" for no scaling.
std::string_view scaling_name(RopeScaling scaling);

// Returns YaRN's scale of cosines and sines for a context stretched by `factor`.
double yarn_table_scale(double factor, double mscale = 1);

// Returns the rotation frequencies in radians per position, with the scaling applied:
// [rotary_dim / 2].
//   seq_len  the longest text that the table is for, which Dynamic and LongRope choose by
std::vector<double> rope_frequencies(const RopeSpec& rope, int64_t seq_len = 0);

}  // namespace minfer
