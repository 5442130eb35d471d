#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace minfer::test {

constexpr double kU = unit_roundoff(DType::F32);
constexpr double kSmallestNormal = std::numeric_limits<float>::min();

// Seeded normal numbers, rounded to dtype.
inline HostTensor random_normal(uint64_t seed, const Shape& shape, DType dtype = DType::F32,
                                float scale = 1) {
  HostTensor tensor(dtype, shape);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  visit_float(dtype, [&]<typename T>() {
    T* data = tensor.as<T>();
    for (int64_t i = 0; i < shape.n_elements(); ++i) data[i] = from_f32<T>(normal(engine));
  });
  return tensor;
}

inline HostTensor from_values(const std::vector<float>& values, const Shape& shape) {
  HostTensor tensor(DType::F32, shape);
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

// An output tensor full of NaN, so that an element left unwritten fails its test.
inline DeviceTensor poisoned(Backend& backend, const Shape& shape) {
  const std::vector<float> nan(size_t(shape.n_elements()), std::nanf(""));
  return backend.upload(from_values(nan, shape));
}

inline std::vector<float> values_of(Backend& backend, const Tensor& tensor) {
  const HostTensor host = backend.download(tensor);
  const float* data = host.as<const float>();
  return {data, data + tensor.n_elements()};
}

inline std::vector<double> doubles(const HostTensor& tensor) {
  std::vector<double> values(size_t(tensor.view().n_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = double(tensor.at(int64_t(i)));
  return values;
}

// x, rounded to F32 and then to the float type.
inline double rounded(double x, DType dtype) {
  return visit_float(dtype, [&]<typename T>() { return double(to_f32(from_f32<T>(float(x)))); });
}

// The root mean square error of a card is at most this many times that of a plain program in half
// precision.
constexpr double kMostOfPlain = 2;

// The instruction sets that this machine can run.
inline std::vector<std::string> supported_isas() {
  std::vector<std::string> isas;
  for (const char* isa : {"base", "avx2", "avx512"}) {
    try {
      make_cpu_backend({.n_threads = 1, .isa = isa});
      isas.emplace_back(isa);
    } catch (const Error&) {
    }
  }
  return isas;
}

}  // namespace minfer::test
