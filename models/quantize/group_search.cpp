#include "models/quantize/group_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/half.h"
#include "models/quantize/rounding.h"

namespace minfer {
namespace {

// Groups are searched kLanes at a time, their weights interleaved, one in each lane of two vectors
// of a width that every machine has: no sum depends on the instruction set.
constexpr int64_t kLanes = 8;
using Lanes = std::array<float, kLanes>;
using Vector4 = float __attribute__((vector_size(16)));
using Vector8 = float __attribute__((vector_size(32)));

// Weights of kLanes groups: [size][kLanes].
using Tile = std::vector<float>;

// Codes minus zero that a candidate may use, as floats.
struct Range {
  Lanes low, high;
};

// Squared error of each group with the nearest codes, and what a better scale for the same codes
// follows from.
struct Fit {
  Lanes error{};                       // sum (w - scale q)^2
  Lanes residual_dot{}, square_dot{};  // sum (w - scale q) q, sum q^2
};

// One pass over the tile. Sums run over pieces of kPiece weights first: a row may have thousands.
template <typename Vector>
[[gnu::always_inline]] inline Fit fit_with(const Tile& tile, const Lanes& scales,
                                           const Range& range) {
  constexpr size_t kVectorLanes = sizeof(Vector) / sizeof(float), kPiece = 128 * kLanes;
  const auto load = [](Vector& to, const float* from) { std::memcpy(&to, from, sizeof to); };
  Fit total;
  for (size_t first = 0; first < kLanes; first += kVectorLanes) {
    Vector scale, low, high, inverse;
    load(scale, &scales[first]);
    load(low, &range.low[first]);
    load(high, &range.high[first]);
    for (size_t l = 0; l < kVectorLanes; ++l) inverse[l] = scale[l] == 0 ? 0 : 1 / scale[l];
    Vector error{}, residual_dot{}, square_dot{};
    for (size_t begin = 0; begin < tile.size(); begin += kPiece) {
      const size_t end = std::min(begin + kPiece, tile.size());
      Vector piece_error{}, piece_residual_dot{}, piece_square_dot{};
      for (size_t i = begin; i < end; i += kLanes) {
        Vector w;
        load(w, &tile[i + first]);
        Vector q = w * inverse;
        clamp_all(q, low, high);
        round_all(q);
        const Vector residual = w - scale * q;
        piece_error += residual * residual;
        piece_residual_dot += residual * q;
        piece_square_dot += q * q;
      }
      error += piece_error;
      residual_dot += piece_residual_dot;
      square_dot += piece_square_dot;
    }
    std::memcpy(&total.error[first], &error, sizeof error);
    std::memcpy(&total.residual_dot[first], &residual_dot, sizeof residual_dot);
    std::memcpy(&total.square_dot[first], &square_dot, sizeof square_dot);
  }
  return total;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] Fit fit_avx2(const Tile& tile, const Lanes& scales, const Range& range) {
  return fit_with<Vector8>(tile, scales, range);
}
#endif

Fit fit(const Tile& tile, const Lanes& scales, const Range& range) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return fit_avx2(tile, scales, range);
#endif
  return fit_with<Vector4>(tile, scales, range);
}

// The best scale so far of each group.
struct Best {
  Lanes scale{}, error{};
  Range range{};

  void take(size_t l, float new_scale, float new_error, float low, float high) {
    scale[l] = new_scale;
    error[l] = new_error;
    range.low[l] = low;
    range.high[l] = high;
  }
};

struct Extremes {
  Lanes low{}, high{};  // of the weights, and of zero

  float magnitude(size_t l) const { return std::max(-low[l], high[l]); }
};

Extremes extremes_of(const Tile& tile) {
  Extremes x;
  for (size_t i = 0; i < tile.size(); i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      x.low[l] = std::min(x.low[l], tile[i + l]);
      x.high[l] = std::max(x.high[l], tile[i + l]);
    }
  }
  return x;
}

// Smallest and largest code minus zero, of a scale that is positive: a negative one mirrors them.
struct SignedRange {
  float low, high;
};

class Search {
 public:
  Search(const Tile& tile, const QuantizeFormat& format)
      : tile_(tile), format_(format), extremes_(extremes_of(tile)) {}

  // By the definition of rtn or rtn16.
  Best plain(bool all_codes) const {
    Best best;
    for (size_t l = 0; l < kLanes; ++l) {
      const float magnitude = extremes_.magnitude(l);
      if (format_.asymmetric) {
        const float scale = stored_scale((extremes_.high[l] - extremes_.low[l]) / 15);
        const float zero = scale == 0 ? 0 : rounded_within(-extremes_.low[l] / scale, 0, 15);
        best.take(l, scale, 0, -zero, 15 - zero);
      } else if (format_.bits == 8) {
        best.take(l, stored_scale(magnitude / 127), 0, -127, 127);
      } else if (!all_codes) {
        best.take(l, stored_scale(magnitude / 7), 0, -7, 7);
      } else {
        const SignedRange range = full_range(extremes_.high[l] > -extremes_.low[l]);
        best.take(l, stored_scale(magnitude / 8), 0, range.low, range.high);
      }
    }
    return best;
  }

  Best least_squares() const {
    Best best = plain(true);
    best.error = fit(tile_, best.scale, best.range).error;
    const bool is_large = tile_.size() > kLargeGroup * kLanes;
    Best candidate = best;  // its error is that of the best scale for its codes, not yet rounded
    if (format_.asymmetric) {
      try_zero_points(candidate);
    } else if (format_.bits == 8) {
      try_scales({-127, 127}, kFinest8, kCoarsest8, kStep8, candidate);
    } else {
      for (const bool mirrored : {false, true}) {
        try_scales(full_range(mirrored), kFinest4, is_large ? kCoarsestLarge4 : kCoarsest4, kStep4,
                   candidate);
      }
    }
    refine(candidate, best);
    return best;
  }

 private:
  // The scale of a candidate is the largest magnitude (asymmetric: the span of the weights) divided
  // by one of these. The steps are as wide as fitting the scale to the codes makes up for. Many
  // weights in a group have an extreme that is best cut off further.
  static constexpr float kFinest4 = 6.8f, kCoarsest4 = 11.0f, kCoarsestLarge4 = 32.0f;
  static constexpr float kStep4 = 0.2f;
  static constexpr size_t kLargeGroup = 128;
  static constexpr float kFinest8 = 126.0f, kCoarsest8 = 200.0f, kStep8 = 2.0f;
  static constexpr float kFinestSpan = 13.6f, kCoarsestSpan = 24.0f, kStepSpan = 0.4f;

  // Where the positive weight is the extreme one, the scale is negative and the range mirrored.
  static SignedRange full_range(bool mirrored) {
    return mirrored ? SignedRange{-7, 8} : SignedRange{-8, 7};
  }

  void try_candidate(const Lanes& scale, const Range& range, Best& best) const {
    const Fit found = fit(tile_, scale, range);
    for (size_t l = 0; l < kLanes; ++l) {
      if (found.square_dot[l] == 0) continue;
      const float shift = found.residual_dot[l] / found.square_dot[l];
      const float error = found.error[l] - found.residual_dot[l] * shift;
      if (error < best.error[l]) {
        best.take(l, scale[l] + shift, error, range.low[l], range.high[l]);
      }
    }
  }

  void try_scales(const SignedRange& signed_range, float first, float last, float step,
                  Best& best) const {
    Range range;
    range.low.fill(signed_range.low);
    range.high.fill(signed_range.high);
    for (float divisor = first; divisor <= last; divisor += step) {
      Lanes scale;
      for (size_t l = 0; l < kLanes; ++l) scale[l] = extremes_.magnitude(l) / divisor;
      try_candidate(scale, range, best);
    }
  }

  // Zero-points that put the middle of the codes near the middle of the weights.
  void try_zero_points(Best& best) const {
    constexpr float kReach = 1;
    for (float divisor = kFinestSpan; divisor <= kCoarsestSpan; divisor += kStepSpan) {
      Lanes scale, middle;
      for (size_t l = 0; l < kLanes; ++l) {
        const float span = extremes_.high[l] - extremes_.low[l];
        scale[l] = span / divisor;
        middle[l] = span == 0 ? 0 : 7.5f - (extremes_.high[l] + extremes_.low[l]) / 2 / scale[l];
      }
      for (float shift = -kReach; shift <= kReach; ++shift) {
        Range range;
        for (size_t l = 0; l < kLanes; ++l) {
          const float zero = rounded_within(middle[l] + shift, 0, 15);
          range.low[l] = -zero;
          range.high[l] = 15 - zero;
        }
        try_candidate(scale, range, best);
      }
    }
  }

  // The candidate's scale and its neighbours as f16, then the best scale for the codes that these
  // give: each judged with the codes of the stored scale. `best` is replaced where one is better.
  void refine(Best candidate, Best& best) const {
    constexpr int kRounds = 2;
    for (int round = 0; round < kRounds; ++round) {
      Lanes next = candidate.scale;
      Lanes next_error;
      next_error.fill(INFINITY);
      for (int neighbour = -1; neighbour <= 1; ++neighbour) {
        Lanes scale;
        for (size_t l = 0; l < kLanes; ++l) scale[l] = stored(candidate.scale[l], neighbour);
        const Fit found = fit(tile_, scale, candidate.range);
        for (size_t l = 0; l < kLanes; ++l) {
          if (found.error[l] < best.error[l]) {
            best.take(l, scale[l], found.error[l], candidate.range.low[l], candidate.range.high[l]);
          }
          if (found.error[l] < next_error[l] && found.square_dot[l] > 0) {
            next_error[l] = found.error[l];
            next[l] = scale[l] + found.residual_dot[l] / found.square_dot[l];
          }
        }
      }
      candidate.scale = next;
    }
  }

  // The f16 that is `neighbour` steps from the one nearest to a positive scale.
  static float stored(float scale, int neighbour) {
    const int bits = to_f16(stored_scale(scale)).bits + neighbour;
    return to_f32(f16{static_cast<uint16_t>(std::clamp(bits, 0, 0x7bff))});
  }

  const Tile& tile_;
  const QuantizeFormat& format_;
  Extremes extremes_;
};

GroupScale group_scale(const Best& best, size_t l, const QuantizeFormat& format,
                       QuantizeMethod method) {
  const int low = int(best.range.low[l]), high = int(best.range.high[l]);
  if (format.asymmetric) return {best.scale[l], -low, 0, 15};
  const int zero = 1 << (format.bits - 1);
  const bool mirrored = high > -low;
  if (mirrored) return {-best.scale[l], zero, zero - high, zero - low};
  MINFER_CHECK(method == QuantizeMethod::Rtn || format.bits == 8 || high == 7, "codes");
  return {best.scale[l], zero, zero + low, zero + high};
}

}  // namespace

void choose_scales(GroupScale* out, const float* weights, int64_t n_groups, int64_t size,
                   int64_t stride, const QuantizeFormat& format, QuantizeMethod method) {
  Tile tile(static_cast<size_t>(size * kLanes));
  for (int64_t begin = 0; begin < n_groups; begin += kLanes) {
    const int64_t count = std::min(kLanes, n_groups - begin);
    for (int64_t l = 0; l < kLanes; ++l) {  // past the last group: the last one again
      const float* group = weights + (begin + std::min(l, count - 1)) * stride;
      for (int64_t i = 0; i < size; ++i) tile[static_cast<size_t>(i * kLanes + l)] = group[i];
    }
    const Search search(tile, format);
    const Best best = method == QuantizeMethod::Mse ? search.least_squares()
                                                    : search.plain(method != QuantizeMethod::Rtn);
    for (int64_t l = 0; l < count; ++l) {
      out[begin + l] = group_scale(best, static_cast<size_t>(l), format, method);
    }
  }
}

float stored_scale(float x) {
  constexpr uint16_t kSmallest = 1;  // 2^-24
  f16 scale = to_f16(x);
  if (x != 0 && (scale.bits & 0x7fff) == 0) scale.bits |= kSmallest;
  return to_f32(scale);
}

uint8_t code_of(float weight, const GroupScale& scale) {
  if (scale.scale == 0) return static_cast<uint8_t>(scale.zero);
  const float low = float(scale.low - scale.zero), high = float(scale.high - scale.zero);
  return static_cast<uint8_t>(int(rounded_within(weight / scale.scale, low, high)) + scale.zero);
}

}  // namespace minfer
