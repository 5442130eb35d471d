#include "kernels/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include "kernels/cuda/gemm/gemm.h"
#include "tests/kernels/cuda/weights.h"
#include "tests/support/moe_cases.h"

namespace minfer::test {
namespace {

// A Routing on the card, poisoned, and a copy of it on the host.
struct CardRouting {
  CardRouting(int64_t n_rows, const LayerSpec& spec)
      : n_bytes(Routing::bytes(n_rows, spec.n_experts, spec.n_active_experts)),
        memory(poisoned_device(DType::U8, {n_bytes})),
        copy(DType::U8, {n_bytes}),
        on_card(memory.view().data, n_rows, spec.n_experts, spec.n_active_experts),
        on_host(copy.view().data, n_rows, spec.n_experts, spec.n_active_experts) {}

  void fetch() {
    const HostTensor fetched = to_host(memory);
    std::memcpy(copy.view().data, fetched.view().data, size_t(n_bytes));
  }

  int64_t n_bytes;
  DeviceTensor memory;
  HostTensor copy;
  Routing on_card, on_host;
};

TEST(CudaMoe, RoutesAsInFloat64) {
  MINFER_NEEDS_CUDA();
  for (const RouteCase& c : kRouteCases) {
    SCOPED_TRACE(c);
    const LayerSpec spec = c.spec();
    CardRouting found(c.n_rows, spec);
    const HostTensor logits = c.logits(), bias = c.bias(), correction = c.correction();
    const DeviceTensor logits_on_card = to_device(logits), bias_on_card = to_device(bias),
                       correction_on_card = to_device(correction);
    cuda::route(stream(),
                {found.on_card, logits_on_card, spec.router_bias ? bias_on_card.view() : Tensor(),
                 spec.router_correction ? correction_on_card.view() : Tensor(), spec});
    found.fetch();
    expect_routed(found.on_host, logits, bias, correction, spec);
  }
}

TEST(CudaMoe, BreaksTiesByIndex) {
  MINFER_NEEDS_CUDA();
  for (const TieCase& c : kTieCases) {
    SCOPED_TRACE(c.name);
    const LayerSpec spec = c.spec();
    CardRouting found(1, spec);
    const DeviceTensor logits = to_device(from_values(c.logits, {1, std::ssize(c.logits)}));
    cuda::route(stream(), {found.on_card, logits, {}, {}, spec});
    found.fetch();
    const Routing& r = found.on_host;
    EXPECT_EQ(std::vector(r.chosen, r.chosen + r.n_active), c.chosen);
  }
}

// The same bits every time: nothing depends on which thread is first.
TEST(CudaMoe, SortsManyRows) {
  MINFER_NEEDS_CUDA();
  for (const RouteCase& c : {RouteCase{1500, 20, 4, RouterScore::Softmax, true},
                             RouteCase{3001, 9, 3, RouterScore::Softmax, true}}) {
    SCOPED_TRACE(c);
    const LayerSpec spec = c.spec();
    CardRouting found(c.n_rows, spec);
    const HostTensor logits = c.logits();
    cuda::route(stream(), {found.on_card, to_device(logits), {}, {}, spec});
    found.fetch();
    expect_routed(found.on_host, logits, {}, {}, spec);
  }
}

constexpr ExpertsCase kCardCases[] = {
    {1, 8, 2, 128, 64, DType::F16},
    {5, 4, 3, 40, 50, DType::F16},
    {5, 4, 3, 33, 21, DType::BF16},
    {70, 5, 2, 72, 24, DType::BF16},
    {300, 3, 2, 64, 144, DType::F16},
    {1, 6, 3, 128, 64, DType::U8, 0},
    {3, 6, 2, 256, 128, DType::U4, 64},
    {2, 5, 3, 512, 320, DType::U4, 32, DType::F32, true},
    {4, 4, 2, 192, 80, DType::U8, 0, DType::F16, true},
    {30, 3, 2, 192, 64, DType::U4, 64},
    {40, 3, 2, 192, 96, DType::U4, 16},
    {40, 3, 2, 192, 96, DType::U8, 16},
    {40, 3, 2, 192, 96, DType::U8, 32},
    {140, 2, 1, 256, 384, DType::U4, 128, DType::F32},
    {40, 4, 2, 128, 96, DType::U8, 0},
    {50, 3, 1, 64, 80, DType::U8, 16, DType::F32},
    {33, 4, 2, 96, 32, DType::U4, 32, DType::F16, true},
    {20, 3, 2, 320, 48, DType::U4, 0, DType::F32},
    {2, 5, 2, 256, 96, DType::U4, 32, DType::F16, false, CodeTable::Iq4},
    {3, 4, 2, 128, 320, DType::U4, 32, DType::F32, false, CodeTable::E2m1},
    {4, 3, 2, 128, 64, DType::U4, 16, DType::F16, false, CodeTable::Iq4},
    {70, 3, 2, 192, 96, DType::U4, 32, DType::F16, false, CodeTable::Iq4},
    {160, 2, 1, 128, 320, DType::U4, 32, DType::F32, false, CodeTable::E2m1},
    {9, 40, 3, 64, 16, DType::U8, 0},
    {2, 160, 8, 64, 272, DType::U8, 0},  // many experts; a GEMV of tiles for every SM
    {100, 40, 3, 64, 600, DType::F16},   // more tiles than blocks
    {500, 2, 2, 64, 48, DType::F16},     // several tiles of rows
    {140, 2, 2, 64, 272, DType::F16},    // two tiles of few rows
    {700, 3, 2, 96, 160, DType::U4, 32},
    {410, 4, 2, 448, 80, DType::U8, 0},
    {215, 2, 1, 576, 320, DType::U4, 64, DType::F32, true},
    {3, 5, 3, 64, 96, DType::F16, 0, DType::F16, false, CodeTable::None, true, {1.702f, 0.8f}},
    {110, 3, 2, 72, 40, DType::BF16, 0, DType::F16, false, CodeTable::None, true, {1.702f, 0.8f}},
    {3, 4, 2, 33, 51, DType::F16, 0, DType::F16, false, CodeTable::None, true, {1.702f, 0.8f}},
    {2, 6, 4, 96, 64, DType::U4, 32, DType::F32, false, CodeTable::E2m1, true, {1.4f, 0.5f}},
    {90, 4, 2, 128, 96, DType::U4, 32, DType::F32, false, CodeTable::E2m1, true, {1.4f, 0.5f}},
    {3, 4, 2, 128, 64, DType::U4, 64, DType::F16, false, CodeTable::None, true},
    {70, 4, 2, 96, 64, DType::U8, 0, DType::F16, false, CodeTable::None, false, {2, 0.3f}},
    {1, 4, 2, 256, 512, DType::Q2_K},
    {33, 3, 2, 512, 256, DType::Q2_K},
    {2, 3, 2, 256, 256, DType::Q3_K},
    {30, 2, 1, 256, 256, DType::Q3_K},
    {2, 4, 3, 512, 256, DType::Q4_K},
    {150, 2, 1, 256, 256, DType::Q4_K},
    {2, 3, 2, 256, 512, DType::Q5_K},
    {40, 2, 1, 256, 512, DType::Q5_K},
    {2, 3, 2, 256, 80, DType::Q4_K},  // a last tile of few rows, and down as U8
    {40, 2, 1, 512, 176, DType::Q6_K},
    {3, 4, 2, 256, 256, DType::Q6_K, 0, DType::F16, false, CodeTable::None, true},
    {20, 3, 2, 512, 256, DType::Q6_K},
    {3, 3, 2, 256, 256, DType::IQ4_XS},
    {70, 3, 2, 256, 256, DType::IQ4_XS},
};

// A case on a card, with activations of a half type.
struct CardExperts {
  CardExperts(const ExpertsCase& c, DType half) : data(c, half) {
    moe.experts.resize(size_t(c.n_experts));
    const auto matrix = [&](size_t i, int64_t out, int64_t in) {
      if (data.blocks[i].view()) return pack_products(data.blocks[i], data.codes[i].view());
      if (!is_float(c.dtype)) return pack(data.codes[i].view());
      Matrix w;
      w.storage = to_device(data.floats[i]);
      w.out_dim = out;
      w.in_dim = in;
      w.dtype = c.dtype;
      return w;
    };
    const auto linear = [&](size_t i, int64_t out, int64_t in) {
      Linear made{matrix(i, out, in), {}};
      if (c.has_bias) made.bias = to_device(data.biases[i]);
      return made;
    };
    router_bias = random_normal(99, {c.n_experts});
    if (c.has_bias) moe.router_bias = to_device(router_bias);
    for (size_t e = 0; e < moe.experts.size(); ++e) {
      moe.experts[e] = {linear(3 * e, c.ffn_dim, c.dim), linear(3 * e + 1, c.ffn_dim, c.dim),
                        linear(3 * e + 2, c.dim, c.ffn_dim)};
    }
    const std::vector<cuda::ExpertPlace> places = cuda::expert_places(moe);
    const auto n_bytes = int64_t(places.size() * sizeof(places[0]));
    HostTensor bytes(DType::U8, {n_bytes});
    std::memcpy(bytes.view().data, places.data(), size_t(n_bytes));
    moe.index = to_device(bytes);
  }

  ExpertsData data;
  MoeWeights moe;
  HostTensor router_bias;  // which a case with biases has
};

// Sums in f32; hidden layers and outputs are rounded to half, and so are the values of codes, if
// they are rounded at all. The fast silu errs by 2^-19, clamped or not.
ExpertsData::Roundoff roundoff_of(const ExpertsCase& c, DType half, bool rounds_codes) {
  const double sums = (double(std::max(c.dim, c.ffn_dim)) + 64) * kU, u = unit_roundoff(half);
  const double of_codes = rounds_codes && !is_float(c.dtype) ? u : 0;
  return {of_codes + sums + 0x1p-19, of_codes + sums + 0x1p-19 + 3 * u};
}

enum class Way { Plain, Mma, Wgmma };
struct CudaExperts : testing::TestWithParam<std::tuple<Way, DType>> {};

TEST_P(CudaExperts, ComputeTheChosenOnesAsInFloat64) {
  MINFER_NEEDS_CUDA();
  const auto [way, half] = GetParam();
  if (way == Way::Wgmma && !cuda::has_hgemm()) GTEST_SKIP() << "needs a Hopper card";
  for (const ExpertsCase& c : kCardCases) {
    if (is_float(c.dtype) && c.dtype != half) continue;
    if (way == Way::Plain && c.n_rows > 10) continue;  // it takes row by row
    SCOPED_TRACE(c);
    const CardExperts experts(c, half);
    const LayerSpec spec = c.spec();
    CardRouting routing(c.n_rows, spec);
    const DeviceTensor logits = to_device(experts.data.logits), x = to_device(experts.data.x);
    cuda::route(stream(), {routing.on_card, logits, {}, {}, spec});
    const int64_t n_pairs = c.n_rows * c.n_active;
    // One row more than asked for: it must stay poisoned.
    const DeviceTensor hidden = poisoned_device(half, {n_pairs + 1, c.ffn_dim});
    const DeviceTensor out = poisoned_device(half, {n_pairs + 1, c.dim});
    const Tensor hiddens_of = hidden.view().rows(0, n_pairs), outs_of = out.view().rows(0, n_pairs);
    if (way == Way::Wgmma) {
      const bool is_taken = cuda::experts_by_wgmma_always(
          stream(), {outs_of, x, hiddens_of, routing.on_card, experts.moe, spec});
      const int64_t multiple = is_float(c.dtype) ? 8 : 16;
      EXPECT_EQ(is_taken, c.dim % multiple == 0 && c.ffn_dim % multiple == 0);
      if (!is_taken) continue;
    } else {
      const cuda::ExpertMatrices up = matrices_of(experts.moe, cuda::ExpertPart::Up);
      const auto run = [&](const cuda::ExpertCall& call) {
        if (way == Way::Plain) return expert_plain(stream(), call);
        const bool is_taken = expert_gemm(stream(), call);
        EXPECT_EQ(is_taken, call.w.first->in_dim % 8 == 0);
        if (!is_taken) expert_plain(stream(), call);
      };
      run({.out = hiddens_of,
           .x = x,
           .routing = routing.on_card,
           .w = matrices_of(experts.moe, cuda::ExpertPart::Gate),
           .up = &up,
           .clamp = c.clamp});
      run({.out = outs_of,
           .x = hiddens_of,
           .x_by_place = true,
           .routing = routing.on_card,
           .w = matrices_of(experts.moe, cuda::ExpertPart::Down)});
    }
    const HostTensor outs = to_host(out), hiddens = to_host(hidden);
    routing.fetch();
    experts.data.expect_outputs([&](int64_t i) { return outs.at(i); }, routing.on_host,
                                roundoff_of(c, half, way != Way::Plain));
    for (int64_t i = 0; i < c.dim; ++i) EXPECT_TRUE(std::isnan(outs.at(n_pairs * c.dim + i)));
    for (int64_t i = 0; i < c.ffn_dim; ++i) {
      EXPECT_TRUE(std::isnan(hiddens.at(n_pairs * c.ffn_dim + i)));
    }
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Way, DType>>& info) {
  const auto [way, half] = info.param;
  const char* const name = way == Way::Plain ? "Plain" : way == Way::Mma ? "Mma" : "Wgmma";
  return std::string(name) + (half == DType::F16 ? "F16" : "BF16");
}
INSTANTIATE_TEST_SUITE_P(Ways, CudaExperts,
                         testing::Combine(testing::Values(Way::Plain, Way::Mma, Way::Wgmma),
                                          testing::Values(DType::F16, DType::BF16)),
                         name_of);

// The GEMVs of a decode step: they choose by the logits, and add to the residual stream.
TEST(CudaMoe, GemvsOfTheChosenExpertsAreAsInFloat64) {
  MINFER_NEEDS_CUDA();
  int n_taken = 0;
  for (const ExpertsCase& c : kCardCases) {
    for (const DType half : {DType::F16, DType::BF16}) {
      if (c.n_rows > 5 || (is_float(c.dtype) && c.dtype != half)) continue;
      SCOPED_TRACE(half);
      SCOPED_TRACE(c);
      const CardExperts experts(c, half);
      const LayerSpec spec = c.spec();
      const bool is_taken = cuda::expert_gemv_takes(experts.moe, spec, half);
      // Of codes of a table, only groups as GGUF has them.
      EXPECT_EQ(is_taken, is_float(c.dtype) ? c.dim % 8 == 0 && c.ffn_dim % 8 == 0
                                            : c.table == CodeTable::None || c.group == 32);
      if (!is_taken) continue;
      ++n_taken;
      LayerSpec behind_layer_norm = spec;
      behind_layer_norm.norm = NormKind::Layer;
      EXPECT_FALSE(cuda::expert_gemv_takes(experts.moe, behind_layer_norm, half));
      const HostTensor residual = random_normal(90, {c.n_rows, c.dim});
      const HostTensor weight = random_normal(91, {c.dim}, half);
      const DeviceTensor x = to_device(residual), norm_weight = to_device(weight);
      const DeviceTensor logits = to_device(experts.data.logits);
      const DeviceTensor hidden = poisoned_device(half, {c.n_rows, c.n_active, c.ffn_dim});
      const cuda::GemvNorm norm{norm_weight, {}, 1e-5f, true};
      cuda::expert_gemv(stream(), {.x = x,
                                   .norm = norm,
                                   .logits = logits,
                                   .hidden = hidden,
                                   .moe = experts.moe,
                                   .spec = spec});
      const HostTensor sums = to_host(x);
      CardRouting routing(c.n_rows, spec);
      cuda::route(stream(), {routing.on_card, logits, experts.moe.router_bias, {}, spec});
      routing.fetch();
      const Routing& r = routing.on_host;
      // The normed input is rounded to half, after an error that may decide how.
      ExpertsData::Roundoff roundoff = roundoff_of(c, half, /*rounds_codes=*/false);
      roundoff.gate_and_up += 2 * unit_roundoff(half);
      for (int64_t t = 0; t < c.n_rows; ++t) {
        float64::Values row(size_t(c.dim));
        for (int64_t i = 0; i < c.dim; ++i) row[size_t(i)] = residual.at(t * c.dim + i);
        row = float64::rms_norm(row, doubles(weight), 1e-5);
        float64::Values sum(size_t(c.dim)), bound(size_t(c.dim));
        for (int64_t j = t * c.n_active; j < (t + 1) * c.n_active; ++j) {
          const auto out = experts.data.output_of(row, size_t(r.chosen[j]));
          for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += double(r.weights[j]) * out.values[i];
            bound[i] += double(r.weights[j]) * out.bound(i, roundoff);
          }
        }
        for (int64_t i = 0; i < c.dim; ++i) {
          const double start = residual.at(t * c.dim + i);
          const double most = bound[size_t(i)] + 4 * kU * std::abs(start) + 1e-7;
          ASSERT_NEAR(sums.at(t * c.dim + i), start + sum[size_t(i)], most) << t << ' ' << i;
        }
      }
    }
  }
  EXPECT_GE(n_taken, 12);
}

TEST(CudaMoe, CombinesInOrder) {
  MINFER_NEEDS_CUDA();
  const int64_t n_rows = 5;
  const RouteCase c{n_rows, 4, 3};
  const LayerSpec spec = c.spec();
  for (const auto& [half, dim] : {std::pair{DType::F16, 133}, std::pair{DType::BF16, 133},
                                  std::pair{DType::F16, 1032}, std::pair{DType::BF16, 40}}) {
    CardRouting routing(n_rows, spec);
    cuda::route(stream(), {routing.on_card, to_device(c.logits()), {}, {}, spec});
    routing.fetch();
    const Routing& r = routing.on_host;
    const HostTensor outs = random_normal(2, {r.n_pairs(), dim}, half);
    const HostTensor shared = random_normal(3, {n_rows, dim}, half);
    const HostTensor gate = random_normal(4, {n_rows, 1});
    const HostTensor residual = random_normal(5, {n_rows, dim});
    const DeviceTensor on_card[] = {to_device(outs), to_device(shared), to_device(gate)};
    for (const int n_shared : {0, 1, 2}) {  // none, without a gate, with one
      for (const bool accumulate : {false, true}) {
        const DeviceTensor out =
            accumulate ? to_device(residual) : poisoned_device(half, {n_rows, dim});
        cuda::combine_experts(
            stream(), {out, on_card[0], n_shared > 0 ? on_card[1].view() : Tensor(),
                       n_shared > 1 ? on_card[2].view() : Tensor(), routing.on_card, accumulate});
        const HostTensor sums = to_host(out);
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
          const double opened = n_shared > 1 ? 1 / (1 + std::exp(-double(gate.at(t)))) : 1;
          if (n_shared > 0) add(opened * shared.at(i));
          const double u = accumulate ? 0 : unit_roundoff(half);
          ASSERT_NEAR(sums.at(i), sum, (u + 16 * kU) * magnitude) << i;
        }
      }
    }
  }
}

// Rows that one kernel takes, of one and of two chunks of a thread, and rows that take two.
TEST(CudaMoe, CombinesAndNormsInOne) {
  MINFER_NEEDS_CUDA();
  const int64_t n_rows = 5;
  const RouteCase c{n_rows, 4, 3};
  const LayerSpec spec = c.spec();
  CardRouting routing(n_rows, spec);
  cuda::route(stream(), {routing.on_card, to_device(c.logits()), {}, {}, spec});
  for (const auto& [half, dim] :
       {std::pair{DType::F16, 133}, std::pair{DType::F16, 8}, std::pair{DType::BF16, 1032},
        std::pair{DType::F16, 2048}, std::pair{DType::F16, 16392}}) {
    SCOPED_TRACE(cat(half, " ", dim));
    const DeviceTensor outs = to_device(random_normal(2, {n_rows * 3, dim}, half));
    const DeviceTensor shared = to_device(random_normal(3, {n_rows, dim}, half));
    const DeviceTensor weight = to_device(random_normal(4, {dim}, half));
    const HostTensor residual = random_normal(5, {n_rows, dim});
    const DeviceTensor x = to_device(residual), want_x = to_device(residual);
    const DeviceTensor out = poisoned_device(half, {n_rows, dim});
    const DeviceTensor want = poisoned_device(half, {n_rows, dim});
    const NormArgs next{.out = out, .x = x, .weight = weight, .bias = {}, .eps = 1e-3f};
    cuda::combine_experts(stream(), {x, outs, shared, {}, routing.on_card, true, &next});
    cuda::combine_experts(stream(), {want_x, outs, shared, {}, routing.on_card, true});
    cuda::rms_norm(stream(), want, want_x, weight, next.eps);
    expect_same_bytes(x, to_host(want_x), "x");
    expect_same_bytes(out, to_host(want), "out");
  }
}

}  // namespace
}  // namespace minfer::test
