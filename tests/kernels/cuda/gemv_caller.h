#pragma once

#include <cmath>
#include <set>

#include "tests/kernels/cuda/plain_half.h"
#include "tests/kernels/cuda/weights.h"

// A call of gemv() with random input, beside float64.
namespace minfer::test {

using cuda::Epilogue;

// The input that the GEMV multiplies, and how far each of its values may be off. An error before a
// value is rounded to half can decide between two neighbouring halves. Mostly that is the normed
// value, with an error of 2^-19: the sum of squares adds at most 200 numbers per thread, whatever
// the shape, and the rest is 10 roundings. With RMSNorm of several rows it is x times its weight
// and a power of two, and the error of 2^-19 comes behind that.
struct Input {
  float64::Values values, slack;
  float64::Values exact, plain;  // normed in float64, and in the plain program
};

struct Call {
  DType half = DType::F16;
  int64_t n_tokens = 1, in_dim = 64;
  Epilogue epilogue = Epilogue::Store;
  DType out = DType::F16;
  bool has_bias = false;
  int norm = 0;                    // 1: RMS, 2: layer
  std::vector<int> odd_rows = {};  // of make_odd(), one after the other, again and again
  // Whether rows of an RMSNorm may be rounded with its scale or without: the plain kernel, and a
  // last row alone, are rounded behind it.
  bool any_scale = false;
};

constexpr float kEps = 1e-5f;

struct Caller {
  explicit Caller(const Call& c) : call(c) {
    const Shape shape{c.n_tokens, c.in_dim};
    x = random_normal(1, shape, c.norm == 0 ? c.half : DType::F32, 2);
    if (!c.odd_rows.empty()) make_odd();
    if (c.norm == 0) {
      input.values = input.exact = input.plain = doubles(x);
      input.slack.resize(input.values.size());
      return;
    }
    weight = random_normal(2, {c.in_dim}, c.half);
    bias = random_normal(3, {c.in_dim}, c.half);
    const float64::Values x64 = doubles(x), w64 = doubles(weight), b64 = doubles(bias);
    const float64::Values y = c.norm == 1 ? float64::rms_norm(x64, w64, double(kEps))
                                          : float64::layer_norm(x64, w64, b64, double(kEps));
    input.exact = y;
    input.plain =
        c.norm == 1 ? plain::rms_norm(x, weight, kEps) : plain::layer_norm(x, weight, &bias, kEps);
    const bool scale_follows = c.norm == 1 && c.n_tokens > 1;
    for (size_t i = 0; !scale_follows && i < y.size(); ++i) {
      // After the norm, a row has unit variance and |mean| below that: 4 covers both.
      const size_t k = i % size_t(c.in_dim);
      const double b = c.norm == 2 ? b64[k] : 0;
      const double error = 0x1p-19 * (std::abs(y[i] - b) + std::abs(b) + 0.25 * std::abs(w64[k]));
      const double low = rounded(y[i] - error, c.half), high = rounded(y[i] + error, c.half);
      input.values.push_back(rounded(y[i], c.half));
      input.slack.push_back(high - low);
    }
    double scale = 1;
    for (size_t i = 0; scale_follows && i < y.size(); ++i) {
      if (i % size_t(c.in_dim) == 0) scale = scale_of(i / size_t(c.in_dim));
      if (c.any_scale || !c.odd_rows.empty()) {
        input.values.push_back(y[i]);
        input.slack.push_back((unit_roundoff(c.half) + 0x1p-19) * std::abs(y[i]) + smallest());
        continue;
      }
      // The normed value rounds as its multiples by powers of two do, where none is subnormal.
      const double error = 0x1p-23 * std::abs(y[i]);
      const auto staged = [&](double v) { return double(rounded(v / scale, c.half)) * scale; };
      input.values.push_back(staged(y[i]));
      input.slack.push_back(staged(y[i] + error) - staged(y[i] - error) + 0x1p-19 * std::abs(y[i]) +
                            (std::abs(y[i]) < 0x1p-9 ? smallest() : 0));
    }
  }

  // Two roundings of subnormal staged values, the kernel's and the reference's, each by at most
  // half of their distance of 2^-24. A power of two makes a row's root mean square at least 32 /
  // sqrt(in_dim), unless eps outweighs the row.
  double smallest() const {
    return call.half == DType::F16 ? 0x1p-24 * std::max(1.0, std::sqrt(double(call.in_dim)) / 32)
                                   : 0;
  }

  // A row's scale of RMSNorm over a power of two, from 0.25 to 0.5: values are staged so much
  // larger, times another power of two.
  double scale_of(size_t row) const {
    double sum = 0;
    for (int64_t k = 0; k < call.in_dim; ++k) {
      sum += std::pow(double(x.at(int64_t(row) * call.in_dim + k)), 2);
    }
    int exponent = 0;
    return std::frexp(1 / std::sqrt(sum / double(call.in_dim) + double(kEps)), &exponent) / 2;
  }

  // Rows of which the first 128 columns tell little: zeros in front of much (0), or of one large
  // value (1); one large value behind (2), or among them (3); small (4), large (5) and zero (6)
  // throughout; one huge value behind (7). For F16 rows of 3 to 6 are staged without their scale.
  void make_odd() {
    auto* const at = static_cast<float*>(x.view().data);
    const int64_t n = call.in_dim;
    for (int64_t t = 0; t < call.n_tokens; ++t) {
      float* const row = at + t * n;
      const int kind = call.odd_rows[size_t(t) % call.odd_rows.size()];
      if (kind == 0 || kind == 1) std::fill(row, row + 128, 0.0f);
      if (kind == 1 || kind == 2) row[n - 1] = 3e4f;
      if (kind == 3) row[5] = 3e4f;
      const float factor = kind == 4 ? 1e-7f : kind == 5 ? 1e7f : kind == 6 ? 0.0f : 1.0f;
      for (int64_t k = 0; k < n; ++k) row[k] *= factor;
      if (kind == 7) row[n - 1] = 1e12f;
    }
  }

  // Computes out = x wᵀ for all weights in one call, and compares each element with float64.
  void expect_match(const std::vector<const Weights*>& weights, int64_t n_rows_checked = 1 << 30) {
    const DeviceTensor x_device = to_device(x);
    DeviceTensor weight_device, bias_device;
    cuda::GemvNorm norm;
    if (call.norm != 0) {
      weight_device = to_device(weight);
      norm = {weight_device, {}, kEps, call.norm == 1};
      if (call.norm == 2) norm.bias = (bias_device = to_device(bias)).view();
    }
    std::vector<DeviceTensor> outs, biases;
    std::vector<HostTensor> host_biases, residuals;
    std::vector<cuda::GemvPart> parts;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t out_dim = weights[i]->matrix.out_dim;
      // One row more than requested: it must stay poisoned.
      outs.push_back(poisoned_device(call.out, {call.n_tokens + 1, out_dim}));
      residuals.push_back(random_normal(20 + i, {call.n_tokens, out_dim}));
      if (call.epilogue == Epilogue::Accumulate) {
        MINFER_CUDA_CHECK(cudaMemcpy(outs[i].view().data, residuals[i].view().data,
                                     size_t(residuals[i].view().n_bytes()),
                                     cudaMemcpyHostToDevice));
      }
      host_biases.push_back(random_normal(40 + i, {out_dim}, call.half));
      biases.push_back(to_device(host_biases[i]));
      parts.push_back({&weights[i]->matrix, outs[i].view().rows(0, call.n_tokens),
                       call.has_bias ? biases[i].view() : Tensor()});
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    cuda::gemv(stream(), x_device, call.norm == 0 ? nullptr : &norm, parts, call.epilogue);

    const bool pairs = is_gated(call.epilogue);
    for (size_t i = 0; i < (pairs ? 1 : weights.size()); ++i) {
      const HostTensor out = to_host(outs[i]);
      const int64_t out_dim = weights[i]->matrix.out_dim;
      const auto* const guard = static_cast<const uint8_t*>(out.view().rows(call.n_tokens, 1).data);
      for (int64_t b = 0; b < bytes_of(call.out, out_dim); ++b) ASSERT_EQ(guard[b], 0xFF);
      for (int64_t j = 0; j < call.n_tokens * out_dim; ++j) {
        ASSERT_TRUE(std::isfinite(out.at(j))) << "element " << j << " of part " << i;
      }
      std::set<int64_t> rows{0, out_dim - 1};
      std::mt19937_64 engine(5);
      for (int64_t r = 0; r < std::min(out_dim, n_rows_checked); ++r) {
        rows.insert(out_dim <= n_rows_checked ? r : int64_t(engine() % uint64_t(out_dim)));
      }
      PlainErrors errors;
      for (const int64_t row : rows) {
        const auto sums = row_sums(*weights[i], row, call.has_bias ? &host_biases[i] : nullptr);
        const auto ups =
            pairs ? row_sums(*weights[1], row, call.has_bias ? &host_biases[1] : nullptr) : sums;
        for (int64_t t = 0; t < call.n_tokens; ++t) {
          const Sum &sum = sums[size_t(t)], &up = ups[size_t(t)];
          const float residual = residuals[i].at(t * out_dim + row);
          const auto got = double(out.at(t * out_dim + row));
          const auto [want, bound] = finish(sum, up, double(residual));
          ASSERT_NEAR(got, want, bound)
              << weights[i]->format << " [" << out_dim << ", " << call.in_dim << "] part " << i
              << ", row " << row << ", token " << t << " of " << call.n_tokens;
          errors.add(got,
                     double(plain::finish(call.epilogue, sum.plain, up.plain, residual, call.half)),
                     finish({.value = sum.exact}, {.value = up.exact}, double(residual)).value);
        }
      }
      errors.expect_within(call.half, cat(weights[i]->format, " [", out_dim, ", ", call.in_dim,
                                          "] part ", i, ", ", call.n_tokens, " tokens"));
    }
  }

  struct Sum {
    double value = 0, bound = 0;
    double exact = 0;  // from the exact input
    float plain = 0;   // from the plain program, not yet rounded to half
  };
  struct Bounded {
    double value, bound;
  };

  // The product of two halves is exact in f32. An mma instruction adds 16 of them to its
  // accumulator; each addend loses less than 2^-22 of the largest, which is less than the sum of
  // magnitudes. A warp sums a slice of the row, at most all of it if the block has as many tiles as
  // warps; scales, the 16 warps, a bias and scaled sums add fewer than 80 roundings. Sums of
  // activations, for mins and zero codes, cover units of at most 128, and the whole row if it has
  // one min.
  std::vector<Sum> row_sums(const Weights& w, int64_t row, const HostTensor* added) const {
    const int64_t n = call.in_dim;
    // The zero code is subtracted from codes for bf16, and from bytes: exactly. Else Σ zero x is.
    const bool is_subtracted = w.format.group != 0 && !w.format.with_mins &&
                               w.format.table == CodeTable::None &&
                               (call.half == DType::BF16 || w.format.weights == DType::U8);
    std::vector<double> values(static_cast<size_t>(n)), magnitudes(values);
    std::vector<float> halves;  // the plain program's weights are half
    for (int64_t k = 0; k < n; ++k) {
      std::tie(values[size_t(k)], magnitudes[size_t(k)]) = w.at(row, k);
      if (is_subtracted) magnitudes[size_t(k)] = std::abs(values[size_t(k)]);
      halves.push_back(float(rounded(values[size_t(k)], call.half)));
    }
    std::vector<Sum> sums;
    for (int64_t t = 0; t < call.n_tokens; ++t) {
      double sum = 0, magnitude = 0, slack = 0, exact = 0;
      float plain = 0;
      for (int64_t k = 0; k < n; ++k) {
        const double x = input.values[size_t(t * n + k)];
        sum += values[size_t(k)] * x;
        magnitude += magnitudes[size_t(k)] * std::abs(x);
        slack += std::abs(values[size_t(k)]) * input.slack[size_t(t * n + k)];
        exact += values[size_t(k)] * input.exact[size_t(t * n + k)];
        plain += halves[size_t(k)] * float(input.plain[size_t(t * n + k)]);
      }
      const double b = added == nullptr ? 0 : double(added->at(row));
      double u = (double(n) / 16 + 16 + 20) * 0x1p-22;
      if (w.format.group != 0) u += (256 + double(n) / 64) * 0x1p-24;
      sums.push_back({sum + b, u * (magnitude + std::abs(b)) + slack, exact + b, plain + float(b)});
    }
    return sums;
  }

  Bounded finish(const Sum& a, const Sum& up, double residual) const {
    double value = a.value, bound = a.bound, relative = 0;
    switch (call.epilogue) {
      case Epilogue::Store:
        break;
      case Epilogue::Accumulate:
        value += residual;
        break;
      case Epilogue::SwiGlu: {  // |silu'| < 1.1; exp and the division err by a few ulp
        const double s = float64::silu(a.value);
        value = s * up.value;
        bound = 1.1 * a.bound * (std::abs(up.value) + up.bound) + std::abs(s) * up.bound;
        relative = (std::abs(a.value) + 8) * 0x1p-23;
        break;
      }
      case Epilogue::GeGluErf:  // as below, times up
      case Epilogue::GeGluTanh: {
        const double g = float64::activated(a.value, plain::gate_of(call.epilogue));
        value = g * up.value;
        bound = 1.13 * a.bound * (std::abs(up.value) + up.bound) + std::abs(g) * up.bound;
        relative = (17 + 8 * std::abs(std::pow(a.value, 3))) * 0x1p-23;
        break;
      }
      case Epilogue::GeluErf:  // |gelu'| < 1.13; normcdff: 5 ulp
      case Epilogue::GeluTanh:
        value = float64::gelu(a.value,
                              call.epilogue == Epilogue::GeluErf ? GeluKind::Erf : GeluKind::Tanh);
        bound *= 1.13;
        // the exponent of exp(-2u) has a relative error of a few ulp
        relative = (16 + 8 * std::abs(std::pow(a.value, 3))) * 0x1p-23;
        break;
    }
    const double smallest = call.out == DType::F16 ? 0x1p-25 : 1e-38;
    const double u = unit_roundoff(call.out);
    return {value, (bound + std::abs(value) * relative) * (1 + u) + u * std::abs(value) + smallest};
  }

  Call call;
  HostTensor x, weight, bias;
  Input input;
};

inline void expect_gemv(const Call& call, const Format& format, int64_t out_dim,
                        int64_t n_rows_checked = 1 << 30) {
  const Weights w(format, out_dim, call.in_dim, 100);
  Caller(call).expect_match({&w}, n_rows_checked);
}

inline Call call_of(DType half, int64_t n_tokens, int64_t in_dim) {
  Call call;
  call.half = call.out = half;
  call.n_tokens = n_tokens;
  call.in_dim = in_dim;
  return call;
}

}  // namespace minfer::test
