#pragma once

#include <algorithm>
#include <functional>
#include <set>

#include "kernels/base/math.h"
#include "kernels/cuda/gemm/gemm.h"
#include "tests/kernels/cuda/plain_half.h"
#include "tests/support/cuda_tensors.h"

// A call of cuda::gemm, its tensors, and its comparison with float64 and with a plain program.
namespace minfer::test {

using cuda::Epilogue;

// Uniform in (-scale, scale), much faster than normal numbers.
inline HostTensor random_uniform(uint64_t seed, const Shape& shape, DType dtype, float scale) {
  HostTensor tensor(dtype, shape);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  visit_float(dtype, [&]<typename T>() {
    T* const data = tensor.as<T>();
    for (int64_t i = 0; i < shape.n_elements(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      data[i] = from_f32<T>((float(state >> 40) * 0x1p-23f - 1) * scale);
    }
  });
  return tensor;
}

struct GemmCase {
  DType dtype = DType::F16;
  int64_t m = 1, k = 8;
  std::vector<int64_t> n = {8};  // for each part
  Epilogue epilogue = Epilogue::Store;
  bool out_is_f32 = false;
  bool has_bias = false;
  bool rounds_sums = false;  // to the type of out, before the epilogue
};

inline std::ostream& operator<<(std::ostream& out, const GemmCase& c) {
  out << c.dtype << " m " << c.m << " k " << c.k << " n";
  for (int64_t n : c.n) out << ' ' << n;
  return out << " epilogue " << int(c.epilogue) << (c.out_is_f32 ? " f32" : "")
             << (c.has_bias ? " bias" : "");
}

using GemmLauncher = std::function<void(Tensor x, std::span<const cuda::GemmPart>, Epilogue)>;

// Inputs on host and card. Outs have an extra row of NaN before and after.
struct GemmTensors {
  explicit GemmTensors(const GemmCase& c) : c(c) {
    x = random_uniform(1, {c.m, c.k}, c.dtype, 1.7f);
    x_device = to_device(x);
    const DType out_dtype = c.out_is_f32 ? DType::F32 : c.dtype;
    for (size_t i = 0; i < c.n.size(); ++i) {
      const int64_t n = c.n[i];
      w.push_back(random_uniform(2 + i, {n, c.k}, c.dtype, 1.7f / std::sqrt(float(c.k))));
      bias.push_back(random_uniform(12 + i, {n}, c.dtype, 1));
      HostTensor out(out_dtype, {c.m + 2, n});
      std::memset(out.view().data, 0xFF, size_t(out.view().n_bytes()));
      if (c.epilogue == Epilogue::Accumulate) {
        const HostTensor before = random_uniform(22 + i, {c.m, n}, DType::F32, 3);
        std::memcpy(out.view().rows(1, c.m).data, before.view().data,
                    size_t(before.view().n_bytes()));
      }
      w_device.push_back(to_device(w[i]));
      bias_device.push_back(to_device(bias[i]));
      out_device.push_back(to_device(out));
      before.push_back(std::move(out));
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // other streams do not wait for copies
  }

  std::vector<cuda::GemmPart> parts() const {
    std::vector<cuda::GemmPart> parts;
    for (size_t i = 0; i < c.n.size(); ++i) {
      parts.push_back({w_device[i], out_device[i].view().rows(1, c.m),
                       c.has_bias ? bias_device[i].view() : Tensor{}});
    }
    return parts;
  }

  const GemmCase& c;
  HostTensor x;
  std::vector<HostTensor> w, bias, before;
  DeviceTensor x_device;
  std::vector<DeviceTensor> w_device, bias_device, out_device;
};

struct BoundedSum {
  double value, error;
  float plain;  // from the plain program, not yet rounded to half
};

// The error of rounding a value, which is off by up to `error`, to the type of out.
inline double round_off(const GemmTensors& t, double value, double error) {
  const DType dtype = t.c.out_is_f32 ? DType::F32 : t.c.dtype;
  return unit_roundoff(dtype) * (std::abs(value) + error) +
         (dtype == DType::F16 ? 0x1p-24 : kSmallestNormal);
}

// x[row] w[column] + bias in float64, and the error bound of f32 sums on tensor cores. An mma
// instruction adds 16 products and the sum so far, each truncated to 24 bits of the largest: 17
// errors of 2^-23 of the largest partial sum, k / 16 times. With split-K, partial sums are up to
// twice as large. A bias adds one rounding.
inline BoundedSum exact_sum(const GemmTensors& t, size_t part, int64_t row, int64_t column) {
  return visit_float(t.c.dtype, [&]<typename T>() {
    const T* const a = t.x.as<const T>() + row * t.c.k;
    const T* const b = t.w[part].as<const T>() + column * t.c.k;
    double sum = 0, largest = 0;
    float plain = 0;
    for (int64_t i = 0; i < t.c.k; ++i) {
      const float x = to_f32(a[i]), w = to_f32(b[i]);
      const double product = double(x) * double(w);
      sum += product;
      plain += x * w;
      largest = std::max({largest, std::abs(sum), std::abs(product)});
    }
    double error = (double(t.c.k) / 16 + 1) * 17 * 0x1p-23 * 2 * largest;
    if (t.c.rounds_sums) error += round_off(t, sum, error);
    if (t.c.has_bias) {
      sum += double(t.bias[part].at(column));
      plain += t.bias[part].at(column);
      error += kU * std::abs(sum);
      if (t.c.rounds_sums) error += round_off(t, sum, error);
    }
    return BoundedSum{sum, error, plain};
  });
}

// The slopes of GELU and SiLU are below 1.13, their own errors below 2^-19 (activations.cuh).
inline BoundedSum expected(const GemmTensors& t, size_t part, int64_t row, int64_t column) {
  const BoundedSum sum = exact_sum(t, part, row, column);
  double value = sum.value, error = sum.error;
  float plain_up = 0, residual = 0;
  switch (t.c.epilogue) {
    case Epilogue::Store:
      break;
    case Epilogue::Accumulate:
      residual = t.before[part].at((row + 1) * t.c.n[part] + column);
      value += double(residual);
      break;
    case Epilogue::SwiGlu:
    case Epilogue::GeGluErf:
    case Epilogue::GeGluTanh: {
      const BoundedSum up = exact_sum(t, 1, row, column);
      const double gate = float64::activated(sum.value, plain::gate_of(t.c.epilogue));
      plain_up = up.plain;
      value = gate * up.value;
      error = 1.13 * sum.error * (std::abs(up.value) + up.error) + std::abs(gate) * up.error +
              0x1p-19 * std::abs(value);
      break;
    }
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      value = float64::gelu(sum.value,
                            t.c.epilogue == Epilogue::GeluErf ? GeluKind::Erf : GeluKind::Tanh);
      error = 1.13 * sum.error + 0x1p-19 * std::abs(value);
      break;
  }
  return {value, error + round_off(t, value, error),
          plain::finish(t.c.epilogue, sum.plain, plain_up, residual, t.c.dtype)};
}

// All indices if requested; else the first, the last, and those beside edges of tiles.
inline std::vector<int64_t> sampled(int64_t size, bool all) {
  std::set<int64_t> picked;
  if (all) {
    for (int64_t i = 0; i < size; ++i) picked.insert(i);
  } else {
    for (int64_t i : {0, 1, 8, 31, 32, 63, 64, 127, 128, 191, 192, 255, 256}) picked.insert(i);
    for (int64_t i = 1; i < 9; ++i) picked.insert(i * 2654435761 % size);
    for (int64_t i = 1; i <= 3; ++i) picked.insert(size - i);
  }
  std::erase_if(picked, [&](int64_t i) { return i < 0 || i >= size; });
  return {picked.begin(), picked.end()};
}

inline void compare(const GemmTensors& t) {
  const GemmCase& c = t.c;
  const size_t n_outs = is_gated(c.epilogue) ? 1 : c.n.size();
  for (size_t part = 0; part < c.n.size(); ++part) {
    const HostTensor out = to_host(t.out_device[part]);
    const int64_t n = c.n[part];
    const auto bytes = [&](const HostTensor& tensor, int64_t row) {
      return tensor.view().rows(row, 1).data;
    };
    const size_t row_bytes = size_t(out.view().rows(0, 1).n_bytes());
    for (int64_t row : {int64_t{0}, c.m + 1}) {
      ASSERT_EQ(std::memcmp(bytes(out, row), bytes(t.before[part], row), row_bytes), 0)
          << "written " << (row == 0 ? "in front of" : "behind") << " out of part " << part;
    }
    if (part >= n_outs) {
      ASSERT_EQ(
          std::memcmp(out.view().data, t.before[part].view().data, size_t(out.view().n_bytes())),
          0);
      continue;
    }
    visit_float(out.view().dtype, [&]<typename T>() {
      const T* const values = out.as<const T>() + n;
      for (int64_t i = 0; i < c.m * n; ++i) {
        ASSERT_TRUE(std::isfinite(to_f32(values[i])))
            << "part " << part << ", row " << i / n << ", column " << i % n;
      }
    });
    const bool all = double(c.m) * double(n) * double(c.k) < 2e6;
    PlainErrors errors;
    for (int64_t row : sampled(c.m, all)) {
      for (int64_t column : sampled(n, all)) {
        const BoundedSum want = expected(t, part, row, column);
        const auto got = double(out.at((row + 1) * n + column));
        ASSERT_NEAR(got, want.value, want.error)
            << "part " << part << ", row " << row << ", column " << column;
        errors.add(got, double(want.plain), want.value);
      }
    }
    errors.expect_within(c.dtype, cat("part ", part));
  }
}

inline void check(const GemmCase& c, const GemmLauncher& launcher) {
  SCOPED_TRACE(cat(c));
  const GemmTensors t(c);
  launcher(t.x_device, t.parts(), c.epilogue);
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  compare(t);
}

// The case with every epilogue.
inline std::vector<GemmCase> with_epilogues(const GemmCase& c) {
  std::vector<GemmCase> cases;
  for (bool has_bias : {false, true}) {
    GemmCase variant = c;
    variant.has_bias = has_bias;
    cases.push_back(variant);
    for (Epilogue epilogue : {Epilogue::GeluErf, Epilogue::GeluTanh}) {
      variant.epilogue = epilogue;
      cases.push_back(variant);
    }
    variant.out_is_f32 = true;
    for (Epilogue epilogue : {Epilogue::Store, Epilogue::Accumulate}) {
      variant.epilogue = epilogue;
      cases.push_back(variant);
    }
    variant.out_is_f32 = false;
    variant.n = {c.n[0], c.n[0]};
    for (Epilogue epilogue :
         {Epilogue::SwiGlu, has_bias ? Epilogue::GeGluErf : Epilogue::GeGluTanh}) {
      variant.epilogue = epilogue;
      cases.push_back(variant);
    }
  }
  return cases;
}

}  // namespace minfer::test
