#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

class Elementwise : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make_cpu_backend({.n_threads = 2, .isa = GetParam()});
};

// Every 2^13-th float from -100 to 100; beyond, only a few values near the ends of the range.
HostTensor sweep() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x42c80000u; bits += 1u << 13) {
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(-values.back());
  }
  for (float x : {1e30f, -1e30f, 3.4e38f, -3.4e38f}) values.push_back(x);
  const auto n = int64_t(values.size());
  return from_values(values, {n});
}

// x / 2 (1 + erf) and x / 2 (1 + tanh): the function in brackets is off by a few u absolutely (erf:
// 2 u, its argument 1 u times a slope below 0.9; tanh: its argument 4 u times a slope times
// argument below 0.45), the sum and the multiplications by 3 u.
TEST_P(Elementwise, GeluMatchesFloat64) {
  const HostTensor x = sweep();
  for (GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
    const DeviceTensor out = poisoned(*backend_, x.view().shape);
    backend_->gelu(out, backend_->upload(x), kind);
    const std::vector<float> got = values_of(*backend_, out);
    for (size_t i = 0; i < got.size(); ++i) {
      const double value = double(x.at(int64_t(i)));
      const double bound = 6 * kU * std::abs(value) + kSmallestNormal;
      ASSERT_NEAR(double(got[i]), float64::gelu(value, kind), bound) << "x " << value;
    }
  }
}

// exp is off by 4 u (2 units in the last place), sum and quotient by 2 u each. Below -87 the
// exponential leaves the range: x times the smallest normal number.
TEST_P(Elementwise, SiluMatchesFloat64) {
  const HostTensor x = sweep();
  const DeviceTensor out = poisoned(*backend_, x.view().shape);
  backend_->silu(out, backend_->upload(x));
  const std::vector<float> got = values_of(*backend_, out);
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = double(x.at(int64_t(i))), want = float64::silu(value);
    const double bound = 8 * kU * std::abs(want) + std::max(1.0, std::abs(value)) * kSmallestNormal;
    ASSERT_NEAR(double(got[i]), want, value < -1e3 ? 1e-30 * std::abs(value) : bound)
        << "x " << value;
  }
}

TEST_P(Elementwise, NotANumberStaysOne) {
  const float nan = std::nanf("");
  const HostTensor x = from_values(std::vector<float>(19, nan), {1, 19});
  const DeviceTensor in = backend_->upload(x);
  const auto all_nan = [&](const Tensor& out) {
    for (float value : values_of(*backend_, out)) EXPECT_TRUE(std::isnan(value));
  };
  const DeviceTensor out = backend_->allocate(DType::F32, {1, 19});
  for (GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
    backend_->gelu(out, in, kind);
    all_nan(out);
  }
  backend_->silu(out, in);
  all_nan(out);
  backend_->softmax(out, in);
  all_nan(out);
  backend_->rms_norm(out, in, backend_->upload(from_values(std::vector<float>(19, 1), {19})), 0);
  all_nan(out);
}

class ElementwiseShapes : public testing::TestWithParam<std::tuple<std::string, int64_t, int64_t>> {
};

TEST_P(ElementwiseShapes, SumsAndProductsMatchFloat64) {
  const auto [isa, n_rows, dim] = GetParam();
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = isa});
  const Shape shape{n_rows, dim};
  const HostTensor a = random_normal(1, shape), b = random_normal(2, shape);
  const HostTensor bias = random_normal(3, {dim});
  const DeviceTensor a_dev = backend->upload(a), b_dev = backend->upload(b);
  const DeviceTensor bias_dev = backend->upload_vector(bias);
  const auto check = [&](const DeviceTensor& out, auto&& want) {
    const std::vector<float> got = values_of(*backend, out);
    for (int64_t i = 0; i < n_rows * dim; ++i) {
      const auto [value, bound] = want(double(a.at(i)), double(b.at(i)), double(bias.at(i % dim)));
      ASSERT_NEAR(double(got[size_t(i)]), value, bound + kSmallestNormal) << "element " << i;
    }
  };
  using Pair = std::pair<double, double>;

  DeviceTensor out = poisoned(*backend, shape);
  backend->add(out, a_dev, b_dev);
  check(out, [](double x, double y, double) { return Pair(x + y, kU * std::abs(x + y)); });

  out = poisoned(*backend, shape);
  backend->add_bias(out, a_dev, bias_dev);
  check(out, [](double x, double, double c) { return Pair(x + c, kU * std::abs(x + c)); });

  out = poisoned(*backend, shape);
  backend->swiglu(out, a_dev, b_dev);  // silu (8 u) and one multiplication
  check(out, [](double x, double y, double) {
    const double want = float64::silu(x) * y;
    return Pair(want, 9 * kU * std::abs(want));
  });

  for (const Activation gelu : {Activation::GeluErf, Activation::GeluTanh}) {
    out = poisoned(*backend, shape);
    backend->glu(out, a_dev, b_dev, gelu);  // gelu (6 u of x) and one multiplication
    check(out, [gelu](double x, double y, double) {
      return Pair(float64::activated(x, gelu) * y, 7 * kU * std::abs(x * y));
    });
  }

  // g / (1 + exp(-alpha g)) has the error of silu, 8 u, and u of its argument, whose relative
  // derivative is less than 1 + |alpha g|; the factor has u of what it is the sum of, and there are
  // two roundings more.
  for (const SwiGluClamp& clamp : {SwiGluClamp{1.702f, 0.75f}, {-1, 1.5f}, {0, 7}}) {
    out = poisoned(*backend, shape);
    backend->glu(out, a_dev, b_dev, Activation::ClampedSwiGlu, clamp);
    check(out, [clamp](double x, double y, double) {
      const double want = float64::clamped_swiglu(x, y, clamp), limit = double(clamp.limit);
      const double g = std::min(x, limit), up = std::clamp(y, -limit, limit);
      const double gate = std::abs(g / (1 + std::exp(-double(clamp.alpha) * g)));
      return Pair(want, kU * ((12 + std::abs(double(clamp.alpha) * g)) * std::abs(want) +
                              gate * (std::abs(up) + 1)));
    });
  }

  out = backend->upload(a);
  backend->scale_and_cap(out, -2.5f);
  check(out, [](double x, double, double) { return Pair(-2.5 * x, 2.5 * kU * std::abs(x)); });

  // tanh to 3 u absolutely, and its argument, which is off by 2 u, times a slope that makes that
  // less than u; times c.
  for (const float cap : {0.5f, 3.0f}) {
    out = backend->upload(a);
    backend->scale_and_cap(out, 1.5f, cap);
    check(out, [c = double(cap)](double x, double, double) {
      return Pair(c * std::tanh(1.5 * x / c), 6 * kU * c);
    });
  }

  for (GeluKind kind : {GeluKind::Erf, GeluKind::Tanh}) {
    out = poisoned(*backend, shape);
    backend->bias_gelu(out, a_dev, bias_dev, kind);  // the sum is rounded: u times a slope of 1.13
    check(out, [kind](double x, double, double c) {
      return Pair(float64::gelu(x + c, kind), 7.13 * kU * std::abs(x + c));
    });
  }

  out = backend->upload(a);  // in place
  backend->swiglu(out, out, b_dev);
  backend->add(out, out, a_dev);
  check(out, [](double x, double y, double) {
    const double product = float64::silu(x) * y;
    return Pair(product + x, 9 * kU * std::abs(product) + kU * std::abs(product + x));
  });
}

// Limits do not hide that a gate or its factor is no number.
TEST_P(Elementwise, ClampsKeepNaN) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = GetParam()});
  const DeviceTensor gate = backend->upload(from_values({NAN, 1, 2}, {1, 3}));
  const DeviceTensor up = backend->upload(from_values({1, NAN, 2}, {1, 3}));
  const DeviceTensor out = poisoned(*backend, {1, 3});
  backend->glu(out, gate, up, Activation::ClampedSwiGlu, {1, 1.5f});
  const std::vector<float> got = values_of(*backend, out);
  EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]));
  EXPECT_NEAR(got[2], 2.5f * float64::silu(1.5), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Isa, Elementwise, testing::ValuesIn(supported_isas()));
INSTANTIATE_TEST_SUITE_P(Shapes, ElementwiseShapes,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(1, 3, 70),
                                          testing::Values(1, 16, 37, 1000)));

class OpVectors : public testing::TestWithParam<std::string> {};

HostTensor from_json(const nlohmann::json& value) {
  std::vector<float> flat;
  Shape shape;
  if (value.front().is_array()) {
    for (const auto& row : value) {
      for (const auto& element : row) flat.push_back(element.get<float>());
    }
    shape = {int64_t(value.size()), int64_t(value.front().size())};
  } else {
    flat = value.get<std::vector<float>>();
    shape = {1, int64_t(flat.size())};
  }
  return from_values(flat, shape);
}

// Results that another project published for its own operators are reproduced.
TEST_P(OpVectors, AreReproduced) {
  const auto path = data_dir() / "expected/op-vectors.json";
  MINFER_NEEDS(path);
  const auto file = nlohmann::json::parse(read_file(path));
  const auto& cases = file.at("cases");
  ASSERT_EQ(cases.size(), 4u);
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = GetParam()});
  const auto upload = [&](const nlohmann::json& value) {
    return backend->upload(from_json(value));
  };
  const auto vector = [&](const nlohmann::json& value) {
    return backend->upload(from_values(value.get<std::vector<float>>(), {int64_t(value.size())}));
  };
  const auto check = [&](const DeviceTensor& out, const nlohmann::json& expected) {
    const std::vector<float> got = values_of(*backend, out);
    const HostTensor want = from_json(expected);
    ASSERT_EQ(int64_t(got.size()), want.view().n_elements());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want.at(int64_t(i)), file.at("tolerance").get<float>());
    }
  };

  DeviceTensor out = upload(cases[0]["y"]);  // y * x * sigmoid(x)
  backend->swiglu(out, upload(cases[0]["x"]), out);
  check(out, cases[0]["expected"]);

  out = upload(cases[1]["x"]);
  backend->rms_norm(out, out, vector(cases[1]["w"]), 1e-6f);
  check(out, cases[1]["expected"]);

  out = upload(cases[2]["c"]);
  backend->matmul(out, upload(cases[2]["a"]), backend->pack_matrix(from_json(cases[2]["b"])), true);
  check(out, cases[2]["expected"]);

  const auto& mlp = cases[3];
  out = upload(mlp["residual"]);
  const int64_t n_tokens = out.view().shape[0], ffn_dim = int64_t(mlp["w_up"].size());
  const DeviceTensor normed = poisoned(*backend, out.view().shape);
  const DeviceTensor gate = poisoned(*backend, {n_tokens, ffn_dim});
  const DeviceTensor up = poisoned(*backend, {n_tokens, ffn_dim});
  backend->rms_norm(normed, out, vector(mlp["rms_w"]), 1e-6f);
  backend->matmul(gate, normed, backend->pack_matrix(from_json(mlp["w_gate"])), false);
  backend->matmul(up, normed, backend->pack_matrix(from_json(mlp["w_up"])), false);
  backend->swiglu(gate, gate, up);
  backend->matmul(out, gate, backend->pack_matrix(from_json(mlp["w_down"])), true);
  check(out, mlp["expected"]);
}

INSTANTIATE_TEST_SUITE_P(Isa, OpVectors, testing::ValuesIn(supported_isas()));

}  // namespace
}  // namespace minfer::test
