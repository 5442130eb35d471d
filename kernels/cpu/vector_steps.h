#pragma once

// Codes and scales of quantized panels for one instruction set, step by step: quantized_layout.h
// says how they lie. Included after vector_matmul.h.

namespace minfer::cpu {
namespace {

template <int... kIndices, typename F>
inline void unrolled(std::integer_sequence<int, kIndices...>, F&& f) {
  (f.template operator()<kIndices>(), ...);
}

// Calls f.operator()<i>() for i in [0, n).
template <int kNumber, typename F>
inline void unrolled(F&& f) {
  unrolled(std::make_integer_sequence<int, kNumber>(), f);
}

// The bit at which the code of a word's column begins, in a word with codes of 4 or 8 bits.
constexpr int word_shift(int bits, int column) {
  return bits == 8 ? 8 * column : column < 4 ? 8 * column : 8 * (column - 4) + 4;
}

// Where the brick of a step lies in a panel, and which half of the brick it is.
template <int kStep>
constexpr int64_t brick_bytes(int64_t step, int bits) {
  return step * kStep / kBrick * bits * 4 * kPanel;
}
template <int kStep>
constexpr int half_of(int64_t step) {
  return kStep < kBrick ? int(step % 2) : 0;
}

// Prefetches as much as a step has of codes that are not plain.
template <CodeForm kCodes, int kStep>
inline void prefetch_step(const uint8_t* brick, int half, int64_t ahead = kGemvPrefetchBytes) {
  for (int word = half; word < bits_of(kCodes); word += kBrick / kStep) {
    prefetch_codes(brick + word * 4 * kPanel, ahead);
  }
}

// Codes in two planes, or of two bits: a step of a panel. `half` of a brick is 0 for steps of 32
// columns.
template <CodeForm kCodes, int kStep>
class PlaneStep {
 public:
  PlaneStep(const uint8_t* brick, int half)
      : low_(brick + half * kLowBits * kStep / kBrick * kWordBytes),
        high_(brick + kLowBits * kWordBytes),
        high_shift_(0) {
    if constexpr (kStep < kBrick && kHighBits == 1) high_shift_ = 4 * half;  // in the same word
    if constexpr (kStep < kBrick && kHighBits == 2) high_ += half * kWordBytes;
  }

  // The codes of columns [4 kFour, 4 kFour + 4), one a byte.
  template <int kFour>
  U32x16 bytes() const {
    const U32x16 low = bits<kLowBits, kFour, 0>(low_, 0);
    if constexpr (kHighBits == 0) {
      return low;
    } else {
      return low | bits<kHighBits, kFour, kLowBits>(high_, high_shift_);
    }
  }

 private:
  static constexpr int kLowBits = low_bits(bits_of(kCodes)), kHighBits = high_bits(bits_of(kCodes));
  static constexpr int kWordBytes = 4 * kPanel;

  // Those of one plane, from bit kTo of the bytes on.
  template <int kBits, int kFour, int kTo>
  static U32x16 bits(const uint8_t* plane, int shift) {
    constexpr int kFours = 8 / kBits;  // in a word
    U32x16 words = load_codes(plane + kFour / kFours * kWordBytes);
    if constexpr (kStep < kBrick && kBits == 1) words = shift_right(words, shift);
    return mask_bytes(shifted<kFour % kFours * kBits - kTo>(words), ((1 << kBits) - 1) << kTo);
  }

  const uint8_t *low_, *high_;
  int high_shift_;
};

// The scales of panels side by side, from a step of the first one on.
template <typename Scale, int kStep>
class ScaleCursor {
 public:
  ScaleCursor(const PackedCodes& w, int64_t panel, int64_t step)
      : stride(w.n_groups * kPanel),
        scales_(static_cast<const Scale*>(w.scales) + panel * stride),
        mins_(w.mins == nullptr ? nullptr : static_cast<const Scale*>(w.mins) + panel * stride),
        offset_(step / w.steps_per_group * kPanel),
        left_(w.steps_per_group - step % w.steps_per_group),
        steps_per_group_(w.steps_per_group) {}

  bool has_mins() const { return mins_ != nullptr; }
  F32x16 scale(int64_t p) const { return load(scales_ + p * stride + offset_); }
  F32x16 min(int64_t p) const { return load(mins_ + p * stride + offset_); }
  void prefetch(int64_t p) const { __builtin_prefetch(scales_ + p * stride + offset_, 0, 2); }

  void next_step() {
    if (--left_ > 0) return;
    left_ = steps_per_group_;
    offset_ += kPanel;
  }

  int64_t stride;  // from panel to panel; 0: every panel is the first one

 private:
  const Scale *scales_, *mins_;
  int64_t offset_;  // of the group within the panel's scales
  int64_t left_, steps_per_group_;
};

// Products: a group is a step.
template <int kStep>
class ScaleCursor<ScaleProduct, kStep> {
 public:
  ScaleCursor(const PackedCodes& w, int64_t panel, int64_t step)
      : stride(w.n_steps / kSteps * w.product_bytes()),
        block_(static_cast<const uint8_t*>(w.scales) + panel * stride +
               step / kSteps * w.product_bytes()),
        factor_bytes_(w.factor_bytes()),
        number_bytes_(w.number_bytes()),
        step_(step % kSteps),
        has_mins_(w.has_mins) {}

  bool has_mins() const { return has_mins_; }
  F32x16 scale(int64_t p) const { return product(p, 0); }
  F32x16 min(int64_t p) const { return product(p, 1); }
  void prefetch(int64_t p) const { __builtin_prefetch(numbers(p), 0, 2); }

  void next_step() {
    if (++step_ < kSteps) return;
    step_ = 0;
    block_ += factor_bytes_ + kSteps * number_bytes_;
  }

  int64_t stride;

 private:
  static constexpr int64_t kSteps = kFactorColumns / kStep;

  const uint8_t* numbers(int64_t p) const {
    return block_ + p * stride + factor_bytes_ + step_ * number_bytes_;
  }
  F32x16 product(int64_t p, int which) const {
    const auto* const factors = reinterpret_cast<const f16*>(block_ + p * stride);
    return load(factors + which * kPanel) *
           load(reinterpret_cast<const int8_t*>(numbers(p)) + which * kPanel);
  }

  const uint8_t* block_;
  int64_t factor_bytes_, number_bytes_, step_;
  bool has_mins_;
};

}  // namespace
}  // namespace minfer::cpu
