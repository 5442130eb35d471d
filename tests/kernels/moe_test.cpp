#include "kernels/moe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/float64_ops.h"
#include "tests/support/moe_cases.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

// A Routing in the memory of a backend, poisoned.
struct RoutingOf {
  DeviceTensor memory;
  Routing routing;

  RoutingOf(Backend& backend, int64_t n_rows, const LayerSpec& spec)
      : memory(poisoned(
            backend, {ceil_div(Routing::bytes(n_rows, spec.n_experts, spec.n_active_experts), 4)})),
        routing(memory.view().data, n_rows, spec.n_experts, spec.n_active_experts) {}
};

class Moe : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make_cpu_backend({.n_threads = 2, .isa = GetParam()});
};

TEST_P(Moe, RoutesAsInFloat64) {
  for (const RouteCase& c : kRouteCases) {
    SCOPED_TRACE(c);
    const LayerSpec spec = c.spec();
    const RoutingOf found(*backend_, c.n_rows, spec);
    const HostTensor logits = c.logits(), correction = c.correction();
    const HostTensor bias = c.bias();
    DeviceTensor on_device, bias_on_device;
    if (spec.router_correction) on_device = backend_->upload(correction);
    if (spec.router_bias) bias_on_device = backend_->upload(bias);
    backend_->route({found.routing, backend_->upload(logits), bias_on_device, on_device, spec});
    expect_routed(found.routing, logits, bias, correction, spec);
  }
}

// Of equal scores the lower index wins; what is no number comes last.
TEST_P(Moe, BreaksTiesByIndex) {
  for (const TieCase& c : kTieCases) {
    SCOPED_TRACE(c.name);
    const LayerSpec spec = c.spec();
    const RoutingOf found(*backend_, 1, spec);
    const HostTensor logits = from_values(c.logits, {1, std::ssize(c.logits)});
    backend_->route({found.routing, backend_->upload(logits), {}, {}, spec});
    EXPECT_EQ(std::vector(found.routing.chosen, found.routing.chosen + spec.n_active_experts),
              c.chosen);
  }
}

TEST_P(Moe, RunsTheChosenExpertsAsInFloat64) {
  for (const ExpertsCase& c : kExpertsCases) {
    SCOPED_TRACE(c);
    const ExpertsData data(c);
    const MoeWeights weights = data.pack(*backend_);
    const LayerSpec spec = c.spec();
    const RoutingOf routing(*backend_, c.n_rows, spec);
    backend_->route({routing.routing, backend_->upload(data.logits), {}, {}, spec});
    const int64_t n_pairs = c.n_rows * c.n_active;
    const DeviceTensor out = poisoned(*backend_, {n_pairs, c.dim});
    const DeviceTensor hidden = poisoned(*backend_, {n_pairs, c.ffn_dim});
    const DeviceTensor x = backend_->upload(data.x);
    backend_->run_experts({out, x, hidden, routing.routing, weights, spec});
    // Sums in f32, of inputs within 2^-22 of the largest of 32 where they are planes of bytes.
    const double roundoff = (double(std::max(c.dim, c.ffn_dim)) + 16) * kU +
                            (GetParam() == "avx512" && !is_float(c.dtype) ? 0x1p-18 : 0);
    const std::vector<float> outs = values_of(*backend_, out);
    data.expect_outputs([&](int64_t i) { return outs[size_t(i)]; }, routing.routing,
                        {roundoff, roundoff});
  }
}

TEST_P(Moe, CombinesInOrder) {
  const int64_t n_rows = 5, dim = 37;
  LayerSpec spec;
  spec.n_experts = 4;
  spec.n_active_experts = 3;
  const HostTensor logits = random_normal(1, {n_rows, spec.n_experts});
  const RoutingOf found(*backend_, n_rows, spec);
  const Routing& r = found.routing;
  backend_->route({r, backend_->upload(logits), {}, {}, spec});
  const HostTensor outs = random_normal(2, {r.n_pairs(), dim});
  const HostTensor shared = random_normal(3, {n_rows, dim});
  const HostTensor gate = random_normal(4, {n_rows, 1}), residual = random_normal(5, {n_rows, dim});
  for (const bool has_shared : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const DeviceTensor out =
          accumulate ? backend_->upload(residual) : poisoned(*backend_, {n_rows, dim});
      DeviceTensor on_device, gate_on_device;
      if (has_shared) {
        on_device = backend_->upload(shared);
        gate_on_device = backend_->upload(gate);
      }
      backend_->combine_experts(
          {out, backend_->upload(outs), on_device, gate_on_device, r, accumulate});
      const std::vector<float> sums = values_of(*backend_, out);
      for (int64_t i = 0; i < n_rows * dim; ++i) {
        const int64_t t = i / dim;
        double sum = accumulate ? residual.at(i) : 0, magnitude = std::abs(sum);
        const auto add = [&](double term) {
          sum += term;
          magnitude += std::abs(term);
        };
        for (int64_t j = t * r.n_active; j < (t + 1) * r.n_active; ++j) {
          add(double(r.weights[j]) * outs.at(r.places[j] * dim + i % dim));
        }
        if (has_shared) add(shared.at(i) / (1 + std::exp(-double(gate.at(t)))));
        EXPECT_NEAR(sums[size_t(i)], sum, 12 * kU * magnitude) << i;
      }
    }
  }
}

// x += scale * post_norm(experts), then a norm: the parts one after the other, of the same sum.
TEST_P(Moe, AddsWhatResidualsAre) {
  const ExpertsCase c{5, 4, 3, 37, 21};
  const ExpertsData data(c);
  const LayerSpec spec = c.spec();
  const MoeWeights weights = data.pack(*backend_);
  const DeviceTensor input = backend_->upload(data.x);
  const HostTensor zeros =
      from_values(std::vector<float>(size_t(c.n_rows * c.dim)), data.x.view().shape);
  const DeviceTensor sum = backend_->upload(zeros);
  backend_->add_experts({sum, input, weights, spec});
  const HostTensor residual = random_normal(60, {c.n_rows, c.dim});
  const DeviceTensor post = backend_->upload(random_normal(61, {c.dim}));
  const DeviceTensor after = backend_->upload(random_normal(62, {c.dim}));
  const float eps = 1e-5f;
  for (const bool has_norm : {false, true}) {
    for (const float scale : {1.0f, 0.25f}) {
      SCOPED_TRACE(cat(has_norm, " ", scale));
      const DeviceTensor x = backend_->upload(residual);
      const DeviceTensor normed = backend_->upload(zeros);
      const NormArgs next{
          .out = normed, .x = x, .weight = after, .bias = {}, .kind = NormKind::Rms, .eps = eps};
      NormWeights post_norm;
      if (has_norm) post_norm = {.weight = post, .bias = {}, .kind = NormKind::Rms, .eps = eps};
      backend_->add_experts({.x = x,
                             .input = input,
                             .weights = weights,
                             .spec = spec,
                             .post_norm = post_norm,
                             .scale = scale,
                             .next = &next});
      const std::vector<float> got = values_of(*backend_, x),
                               got_next = values_of(*backend_, normed);
      const std::vector<float> experts = values_of(*backend_, sum), w = values_of(*backend_, post);
      for (int64_t t = 0; t < c.n_rows; ++t) {
        float64::Values part(experts.begin() + t * c.dim, experts.begin() + (t + 1) * c.dim);
        if (has_norm) part = float64::rms_norm(part, {w.begin(), w.end()}, double{eps});
        for (int64_t i = 0; i < c.dim; ++i) {
          const double before = residual.at(t * c.dim + i), added = scale * part[size_t(i)];
          ASSERT_NEAR(got[size_t(t * c.dim + i)], before + added,
                      (double(c.dim) + 8) * kU * (std::abs(before) + std::abs(added)));
        }
      }
      backend_->norm(next);
      EXPECT_EQ(got_next, values_of(*backend_, normed));
    }
  }
}

// A row's bits do not depend on the rows beside it, nor on the number of threads.
TEST_P(Moe, RowsStandAlone) {
  for (const ExpertsCase& c : kExpertsCases) {
    SCOPED_TRACE(c);
    const ExpertsData data(c);
    const LayerSpec spec = c.spec();
    const auto run = [&](Backend& backend, int64_t begin, int64_t n) {
      const MoeWeights weights = data.pack(backend);
      const std::vector<float> zeros(size_t(n * c.dim));
      const DeviceTensor x = backend.upload(from_values(zeros, {n, c.dim}));
      const DeviceTensor input = backend.upload(data.x.view().rows(begin, n));
      backend.add_experts({x, input, weights, spec});
      return values_of(backend, x);
    };
    const std::vector<float> all = run(*backend_, 0, c.n_rows);
    const auto single = make_cpu_backend({.n_threads = 1, .isa = GetParam()});
    for (const int64_t t : {int64_t{0}, c.n_rows / 2, c.n_rows - 1}) {
      const std::vector<float> row = run(*single, t, 1);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + t * c.dim)) << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Moe, testing::ValuesIn(supported_isas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace minfer::test
