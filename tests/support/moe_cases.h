#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/moe.h"
#include "tests/support/float64_ops.h"
#include "tests/support/random_blocks.h"
#include "tests/support/tensors.h"

// Cases of mixtures of experts for every backend, and what they are in float64.
namespace minfer::test {

struct RouteCase {
  int64_t n_rows, n_experts, n_active;
  RouterScore score = RouterScore::Softmax;
  bool renormalizes = false, has_correction = false;
  float scale = 1;
  bool has_bias = false;

  LayerSpec spec() const {
    LayerSpec spec;
    spec.n_experts = n_experts;
    spec.n_active_experts = n_active;
    spec.router_score = score;
    spec.renormalizes_experts = renormalizes;
    spec.router_correction = has_correction;
    spec.router_scale = scale;
    spec.router_bias = has_bias;
    return spec;
  }
  HostTensor logits() const { return random_normal(7, {n_rows, n_experts}, DType::F32, 2); }
  HostTensor correction() const { return random_normal(8, {n_experts}, DType::F32, 0.3f); }
  HostTensor bias() const { return random_normal(9, {n_experts}, DType::F32, 2); }
};
inline std::ostream& operator<<(std::ostream& out, const RouteCase& c) {
  return out << c.n_rows << " rows, " << c.n_active << " of " << c.n_experts << ", score "
             << int(c.score) << (c.renormalizes ? ", renormalized" : "")
             << (c.has_correction ? ", corrected" : "") << (c.has_bias ? ", biased" : "")
             << ", scale " << c.scale;
}

constexpr RouteCase kRouteCases[] = {
    {1, 8, 2, RouterScore::Softmax, true},
    {1, 128, 8, RouterScore::Softmax, true},
    {3, 60, 4},
    {67, 64, 8},
    {300, 5, 5, RouterScore::Softmax, true, false, 0.5f},
    {40, 33, 1, RouterScore::Sigmoid},
    {130, 160, 8, RouterScore::Sigmoid, true, true, 2.5f},
    {9, 512, 10, RouterScore::Softmax, true},
    {2, 1, 1},
    {70, 32, 4, RouterScore::Softmax, true, false, 1, true},
    {5, 40, 3, RouterScore::Sigmoid, false, true, 1, true},
};

// The scores of one row's logits, to which the bias has been added.
inline float64::Values router_scores(float64::Values logits, const LayerSpec& spec) {
  if (spec.router_score == RouterScore::Softmax) return float64::softmax(logits, logits.size());
  for (double& s : logits) s = 1 / (1 + std::exp(-s));
  return logits;
}

// The experts of one row in the order in which they are chosen, and their weights.
struct ChosenExpert {
  size_t expert;
  double weight;
};
inline std::vector<ChosenExpert> chosen_experts(float64::Values logits,
                                                const float64::Values& correction,
                                                const LayerSpec& spec) {
  const float64::Values scores = router_scores(std::move(logits), spec);
  std::vector<ChosenExpert> order;
  for (size_t e = 0; e < scores.size(); ++e) order.push_back({e, scores[e]});
  std::ranges::stable_sort(order, std::greater(), [&](const ChosenExpert& c) {
    return c.weight + (correction.empty() ? 0 : correction[c.expert]);
  });
  order.resize(size_t(spec.n_active_experts));
  double sum = 0;
  for (const ChosenExpert& c : order) sum += c.weight;
  for (ChosenExpert& c : order) {
    c.weight *= double(spec.router_scale) / (spec.renormalizes_experts ? sum : 1);
  }
  return order;
}

// Compares a routing in host memory with its definition. Where two scores are closer than their
// roundings, either is right.
inline void expect_routed(const Routing& r, const HostTensor& logits, const HostTensor& bias,
                          const HostTensor& correction, const LayerSpec& spec) {
  const int64_t n = spec.n_experts, k = spec.n_active_experts;
  for (int64_t t = 0; t < r.n_rows; ++t) {
    float64::Values scores;
    for (int64_t e = 0; e < n; ++e) {
      const double logit = logits.at(t * n + e);
      scores.push_back(spec.router_bias ? logit + double(bias.at(e)) : logit);
    }
    scores = router_scores(std::move(scores), spec);
    const auto rank = [&](int64_t e) {
      return scores[size_t(e)] + (spec.router_correction ? double(correction.at(e)) : 0);
    };
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return rank(a) > rank(b); });
    // exp and sums in f32: a few roundings, and those of the exponent's argument, with a bias of
    // two more of up to 8.
    const double roundoff = (double(n) + 40) * kU;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = r.chosen[t * k + j];
      ASSERT_TRUE(e >= 0 && e < n) << t << ' ' << j;
      EXPECT_NEAR(rank(e), rank(order[size_t(j)]), 2 * roundoff) << t << ' ' << j;
      EXPECT_EQ(std::count(r.chosen + t * k, r.chosen + (t + 1) * k, e), 1);
      sum += scores[size_t(e)];
    }
    for (int64_t j = 0; j < k; ++j) {
      const double expected = scores[size_t(r.chosen[t * k + j])] *
                              (spec.renormalizes_experts ? 1 / sum : 1) * spec.router_scale;
      EXPECT_NEAR(r.weights[t * k + j], expected, 4 * roundoff * expected) << t << ' ' << j;
    }
  }
  // The sort: by expert, in the order of the pairs.
  std::vector<int32_t> sorted(static_cast<size_t>(r.n_pairs()));
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, {}, [&](int32_t pair) { return r.chosen[pair]; });
  EXPECT_EQ(std::vector(r.pairs, r.pairs + r.n_pairs()), sorted);
  for (int64_t place = 0; place < r.n_pairs(); ++place) {
    EXPECT_EQ(r.places[r.pairs[place]], place);
  }
  for (int64_t e = 0; e <= n; ++e) {
    const auto first = std::ranges::find_if(sorted, [&](int32_t p) { return r.chosen[p] >= e; });
    EXPECT_EQ(r.begins[e], first - sorted.begin()) << e;
  }
}

struct TieCase {
  const char* name;
  std::vector<float> logits;
  std::vector<int32_t> chosen;
  RouterScore score = RouterScore::Softmax;

  LayerSpec spec() const {
    LayerSpec spec;
    spec.n_experts = std::ssize(logits);
    spec.n_active_experts = std::ssize(chosen);
    spec.router_score = score;
    return spec;
  }
};
inline const TieCase kTieCases[] = {
    {"all equal", {1, 1, 1, 1, 1}, {0, 1, 2}},
    {"two best", {0, 3, 1, 3, 2}, {1, 3, 4}},
    {"at the edge", {5, 2, 2, 2, 9}, {4, 0, 1}},
    {"no number", {1, NAN, 3, 0}, {2, 0, 3, 1}, RouterScore::Sigmoid},
    {"saturated", {40, 30, 200, -1}, {0, 1, 2}, RouterScore::Sigmoid},
    {"all no numbers", {NAN, NAN, NAN}, {0, 1}},
};

// Elements of the experts' matrices: floats, codes whose groups have scales of this type, or one of
// GGUF's Q types. Rows of down that are not whole blocks of these are U8 with a scale each.
struct ExpertsCase {
  int64_t n_rows, n_experts, n_active, dim, ffn_dim;
  DType dtype = DType::F32;
  int64_t group = 0;
  DType scales = DType::F16;
  bool with_mins = false;
  CodeTable table = CodeTable::None;
  bool has_bias = false;
  SwiGluClamp clamp = {};

  bool has_blocks() const { return dtype != DType::U4 && dtype != DType::U8 && !is_float(dtype); }
  LayerSpec spec() const {
    LayerSpec spec;
    spec.ffn_dim = ffn_dim;
    spec.ffn_bias = has_bias;
    if (clamp.limit > 0) {
      spec.activation = Activation::ClampedSwiGlu;
      spec.swiglu_alpha = clamp.alpha;
      spec.swiglu_limit = clamp.limit;
    }
    spec.n_experts = n_experts;
    spec.n_active_experts = n_active;
    spec.renormalizes_experts = true;
    return spec;
  }
};
inline std::ostream& operator<<(std::ostream& out, const ExpertsCase& c) {
  return out << c.n_rows << " rows, " << c.n_active << " of " << c.n_experts << ", [" << c.ffn_dim
             << ", " << c.dim << "] " << c.dtype << " g" << c.group << (c.with_mins ? " mins" : "")
             << " table " << int(c.table) << (c.has_bias ? ", biases" : "") << ", limit "
             << c.clamp.limit;
}

// Many rows for some experts and none for others; rows that fill no tile.
constexpr ExpertsCase kExpertsCases[] = {
    {1, 8, 2, 64, 96},
    {1, 8, 2, 128, 64, DType::F16},
    {5, 4, 3, 37, 21},
    {5, 4, 3, 33, 50, DType::F16},
    {23, 16, 2, 48, 40, DType::F16},
    {70, 5, 2, 72, 24, DType::BF16},
    {1, 6, 3, 128, 64, DType::U8, 0},
    {1, 6, 3, 256, 128, DType::U4, 64},
    {4, 6, 3, 128, 320, DType::U4, 32, DType::F32, true},
    {30, 3, 2, 192, 64, DType::U4, 64},
    {40, 4, 2, 128, 96, DType::U8, 0},
    {150, 3, 1, 64, 80, DType::U8, 16, DType::F32},
    {33, 4, 2, 96, 32, DType::U4, 32, DType::F16, true},
    {7, 4, 2, 128, 64, DType::U4, 32, DType::F16, false, CodeTable::Iq4},
    {1, 5, 3, 64, 96, DType::F16, 0, DType::F16, false, CodeTable::None, true, {1.702f, 0.8f}},
    {37, 3, 2, 72, 40, DType::F16, 0, DType::F16, false, CodeTable::None, true, {1.702f, 0.8f}},
    {3, 4, 2, 33, 50, DType::F16, 0, DType::F16, false, CodeTable::None, true},
    {1, 6, 3, 96, 64, DType::U4, 32, DType::F32, false, CodeTable::E2m1, true, {1.4f, 0.5f}},
    {90, 4, 2, 64, 96, DType::U4, 32, DType::F32, false, CodeTable::E2m1, true, {1.4f, 0.5f}},
    {60, 4, 2, 96, 64, DType::U8, 0, DType::F16, false, CodeTable::None, false, {2, 0.3f}},
    {2, 3, 2, 256, 512, DType::Q4_K},
    {40, 3, 2, 512, 256, DType::Q6_K},
};

// Seeded weights and inputs of a case, and what they are in float64.
struct ExpertsData {
  explicit ExpertsData(const ExpertsCase& of, DType input_dtype = DType::F32)
      : c(of),
        x(random_normal(50, {of.n_rows, of.dim}, input_dtype)),
        logits(random_normal(51, {of.n_rows, of.n_experts})),
        router(random_normal(52, {of.n_experts, of.dim}, DType::F32, 0.2f)) {
    for (int64_t i = 0; i < 3 * of.n_experts; ++i) {
      const bool is_down = i % 3 == 2;
      const int64_t out = is_down ? of.dim : of.ffn_dim, in = is_down ? of.ffn_dim : of.dim;
      const float size = 1 / std::sqrt(float(in));
      blocks.emplace_back();
      if (is_float(of.dtype)) {
        floats.push_back(random_normal(uint64_t(100 + i), {out, in}, of.dtype, size));
        values.push_back(doubles(floats.back()));
      } else {
        if (of.has_blocks() && in % info(of.dtype).block_elements == 0) {
          blocks.back() = random_blocks(of.dtype, {out, in}, 2.0f, uint64_t(100 + i));
          codes.push_back(to_quantized_matrix(blocks.back()));
        } else {
          codes.push_back(random_codes(uint64_t(100 + i), out, in, size));
        }
        float64::Values rows;
        std::vector<float> row(static_cast<size_t>(in));
        for (int64_t j = 0; j < out; ++j) {
          dequantize_row(row.data(), codes.back().view(), j);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        values.push_back(rows);
      }
      biases.push_back(
          random_normal(uint64_t(900 + i), {out}, input_dtype, of.has_bias ? 0.5f : 0));
    }
  }

  MoeWeights pack(Backend& backend) const {
    MoeWeights weights;
    weights.router = backend.pack_matrix(router);
    weights.experts.resize(size_t(c.n_experts));
    const auto matrix = [&](size_t i) {
      return is_float(c.dtype)  ? backend.pack_matrix(floats[i].view())
             : blocks[i].view() ? backend.pack_matrix(blocks[i].view())
                                : backend.pack_matrix(codes[i].view());
    };
    const auto linear = [&](size_t i) {
      Linear made{matrix(i), {}};
      if (c.has_bias) made.bias = backend.upload_vector(biases[i]);
      return made;
    };
    for (size_t e = 0; e < weights.experts.size(); ++e) {
      weights.experts[e] = {linear(3 * e), linear(3 * e + 1), linear(3 * e + 2)};
    }
    backend.index_experts(weights);
    return weights;
  }

  // How far a computation may be off, relative to the magnitudes that make up its sums: gate and
  // up, and everything behind them.
  struct Roundoff {
    double gate_and_up, rest;
  };
  // Of one expert for one row: its output, and what both roundoffs make of it at most.
  struct Output {
    float64::Values values, of_gate_and_up, of_rest;

    double bound(size_t i, const Roundoff& roundoff) const {
      return 1.01 * (roundoff.gate_and_up * of_gate_and_up[i] + roundoff.rest * of_rest[i]) + 1e-30;
    }
  };
  Output output_of(const float64::Values& row, size_t e) const {
    const float64::Values gate = linear(row, 3 * e), up = linear(row, 3 * e + 1);
    const float64::Values of_gate = sizes(row, 3 * e), of_up = sizes(row, 3 * e + 1);
    float64::Values hidden, error;
    for (size_t i = 0; i < gate.size(); ++i) {
      // |silu'| < 1.1, also of g sigmoid(alpha g), where alpha is not negative. Where a clamp holds
      // one of its inputs, the result depends less on it.
      const bool is_clamped = c.clamp.limit > 0;
      const double s =
          is_clamped ? float64::clamped_swiglu(gate[i], 0, c.clamp) : float64::silu(gate[i]);
      const double factor =
          is_clamped ? 1 + std::clamp(up[i], -double(c.clamp.limit), double(c.clamp.limit)) : up[i];
      hidden.push_back(s * factor);
      error.push_back(1.1 * of_gate[i] * std::abs(factor) + std::abs(s) * (of_up[i] + is_clamped));
    }
    float64::Values of_rest = sizes(hidden, 3 * e + 2);
    const float64::Values down = magnitudes(values[3 * e + 2]);
    return {linear(hidden, 3 * e + 2), float64::matmul(error, down, c.ffn_dim), of_rest};
  }
  float64::Values row_of(int64_t t) const {
    float64::Values row;
    for (int64_t i = 0; i < c.dim; ++i) row.push_back(x.at(t * c.dim + i));
    return row;
  }

  // out_at(i): element i of outs [n_pairs, dim], by place. The routing is in host memory.
  template <typename At>
  void expect_outputs(At out_at, const Routing& r, const Roundoff& roundoff) const {
    for (int64_t place = 0; place < r.n_pairs(); ++place) {
      const int64_t pair = r.pairs[place];
      const Output out = output_of(row_of(pair / r.n_active), size_t(r.chosen[pair]));
      for (int64_t i = 0; i < c.dim; ++i) {
        ASSERT_NEAR(out_at(place * c.dim + i), out.values[size_t(i)],
                    out.bound(size_t(i), roundoff))
            << "place " << place << ", expert " << r.chosen[pair] << ", column " << i;
      }
    }
  }

  ExpertsCase c;
  HostTensor x, logits, router;
  std::vector<HostTensor> floats;          // gate, up and down of each expert
  std::vector<HostQuantizedMatrix> codes;  // the same
  std::vector<HostTensor> blocks;          // the same, of Q types
  std::vector<float64::Values> values;
  std::vector<HostTensor> biases;  // the same; zeros where the case has none

 private:
  float64::Values linear(const float64::Values& x, size_t i) const {
    float64::Values out = float64::matmul(x, values[i], std::ssize(x));
    for (size_t j = 0; j < out.size(); ++j) out[j] += double(biases[i].at(int64_t(j)));
    return out;
  }
  // The magnitudes that make up linear().
  float64::Values sizes(const float64::Values& x, size_t i) const {
    float64::Values out = float64::matmul(magnitudes(x), magnitudes(values[i]), std::ssize(x));
    for (size_t j = 0; j < out.size(); ++j) out[j] += std::abs(double(biases[i].at(int64_t(j))));
    return out;
  }
  static float64::Values magnitudes(float64::Values x) {
    for (double& v : x) v = std::abs(v);
    return x;
  }

  HostQuantizedMatrix random_codes(uint64_t seed, int64_t out, int64_t in, float size) const {
    const int64_t group = c.group == 0 ? in : c.group;
    const bool has_table = c.table != CodeTable::None;
    const DType dtype = c.has_blocks() ? DType::U8 : c.dtype;
    HostQuantizedMatrix w = make_quantized_matrix(dtype, c.scales, out, in, group, c.with_mins);
    w.table = c.table;
    std::mt19937_64 engine(seed);
    auto* const bytes = static_cast<uint8_t*>(w.codes.view().data);
    for (int64_t i = 0; i < w.codes.view().n_bytes(); ++i) bytes[i] = uint8_t(engine());
    const float step = size / (dtype == DType::U4 && !has_table ? 5.0f : 80.0f);
    const HostTensor scales = random_normal(seed + 1, w.scales.view().shape, DType::F16, step);
    visit_float(c.scales, [&]<typename T>() {
      for (int64_t i = 0; i < scales.view().n_elements(); ++i) {
        // Some F32 scales are no F16 numbers. Those of E2m1 are powers of two.
        float scale = scales.at(i) * (i % 7 == 0 ? 1.0001f : 1.0f);
        if (c.table == CodeTable::E2m1) {
          scale = std::exp2(std::round(std::log2(std::abs(scale)))) * (i % 7 == 0 ? 0x1p-18f : 1);
        }
        w.scales.as<T>()[i] = from_f32<T>(scale);
      }
    });
    if (c.with_mins) {
      const HostTensor mins = random_normal(seed + 2, w.mins.view().shape, DType::F32, size);
      std::copy_n(mins.as<const float>(), mins.view().n_elements(), w.mins.as<float>());
    }
    return w;
  }
};

}  // namespace minfer::test
