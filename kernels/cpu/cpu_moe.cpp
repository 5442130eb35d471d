// Mixtures of experts on the CPU: kernels/moe.h.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/moe.h"

namespace minfer::cpu {
namespace {

// scores[e] of one row's logits.
void score(float* scores, const float* logits, int64_t n, RouterScore kind) {
  if (kind == RouterScore::Sigmoid) {
    for (int64_t e = 0; e < n; ++e) scores[e] = 1 / (1 + std::exp(-logits[e]));
    return;
  }
  const float top = *std::max_element(logits, logits + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += scores[e] = std::exp(logits[e] - top);
  for (int64_t e = 0; e < n; ++e) scores[e] /= sum;
}

// Routes row t. scores and ranks are workspace, [n_experts] each.
void route_row(const RouteArgs& a, int64_t t, float* scores, float* ranks) {
  const Routing& r = a.out;
  const int64_t n = r.n_experts;
  const float* logits = a.logits.as<const float>() + t * n;
  if (a.bias) {
    std::transform(logits, logits + n, a.bias.as<const float>(), ranks, std::plus<>());
    logits = ranks;
  }
  score(scores, logits, n, a.spec.router_score);
  const float* const correction = a.correction ? a.correction.as<const float>() : nullptr;
  constexpr float kLast = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < n; ++e) {
    const float rank = correction == nullptr ? scores[e] : scores[e] + correction[e];
    ranks[e] = std::isnan(rank) ? kLast : rank;
  }
  float sum = 0;
  for (int64_t j = 0; j < r.n_active; ++j) {
    int32_t* const chosen = r.chosen + t * r.n_active;
    int64_t best = -1;
    for (int64_t e = 0; e < n; ++e) {
      const bool is_taken = std::find(chosen, chosen + j, e) != chosen + j;
      if (!is_taken && (best < 0 || ranks[e] > ranks[best])) best = e;
    }
    chosen[j] = narrow<int32_t>(best);
    sum += r.weights[t * r.n_active + j] = scores[best];
  }
  for (int64_t j = 0; j < r.n_active; ++j) {
    float& weight = r.weights[t * r.n_active + j];
    if (a.spec.renormalizes_experts) weight /= sum;
    weight *= a.spec.router_scale;
  }
}

// A stable counting sort of the pairs by expert.
void sort_pairs(const Routing& r) {
  std::fill_n(r.begins, r.n_experts + 1, 0);
  for (int64_t i = 0; i < r.n_pairs(); ++i) ++r.begins[r.chosen[i] + 1];
  for (int64_t e = 0; e < r.n_experts; ++e) r.begins[e + 1] += r.begins[e];
  std::vector<int32_t> next(r.begins, r.begins + r.n_experts);
  for (int64_t i = 0; i < r.n_pairs(); ++i) {
    const int32_t place = next[size_t(r.chosen[i])]++;
    r.pairs[place] = narrow<int32_t>(i);
    r.places[i] = place;
  }
}

// The input from row `begin` on.
MatmulInput from_row(MatmulInput input, int64_t begin, int64_t row_blocks, int64_t n_steps) {
  if (input.floats.x != nullptr) input.floats.x += begin * input.floats.stride;
  if (input.floats.sums != nullptr) input.floats.sums += begin * n_steps;
  if (input.blocks != nullptr) input.blocks += begin * row_blocks;
  return input;
}

}  // namespace

void CpuBackend::route(const RouteArgs& a) {
  const Routing& r = a.out;
  MINFER_CHECK(a.logits.shape == Shape({r.n_rows, r.n_experts}) &&
                   (!a.bias || a.bias.shape == Shape{r.n_experts}) &&
                   (!a.correction || a.correction.shape == Shape{r.n_experts}),
               "route: logits ", a.logits.shape, ", bias ", a.bias.shape, ", correction ",
               a.correction.shape, ", ", r.n_rows, " rows of ", r.n_experts, " experts");
  for_ranges(r.n_rows, r.n_experts * (2 + r.n_active), [&](int64_t begin, int64_t end) {
    std::vector<float> scores(size_t(2 * r.n_experts));
    for (int64_t t = begin; t < end; ++t) {
      route_row(a, t, scores.data(), scores.data() + r.n_experts);
    }
  });
  sort_pairs(r);
}

// out[place] = x[place] wᵀ (+ bias), w being that of the place's expert. All experts that have rows
// are one loop over pieces, so that threads share the work whatever the experts' sizes.
void CpuBackend::multiply_by_expert(const Tensor& x, const Routing& r,
                                    std::span<const ExpertMatmul> calls) {
  struct Job {
    MatmulJob job;
    int64_t begin;
  };
  std::vector<std::pair<MatmulInputForm, std::vector<Job>>> by_form;
  for (const ExpertMatmul& call : calls) {
    for (int64_t e = 0; e < r.n_experts; ++e) {
      const int64_t begin = r.begins[e], n = r.begins[e + 1] - begin;
      if (n == 0) continue;
      const Matrix& w = call.linear_of(e).weight;
      MINFER_CHECK(w.in_dim == x.shape[1] && w.out_dim == call.out.shape[1], "expert ", e, ": w [",
                   w.out_dim, ", ", w.in_dim, "], x ", x.shape, ", out ", call.out.shape);
      const MatmulInputForm form = matmul_input_form(w);
      auto found = std::ranges::find(by_form, form, &decltype(by_form)::value_type::first);
      if (found == by_form.end()) found = by_form.insert(found, {form, {}});
      found->second.push_back({matmul_job({call.out.rows(begin, n), w}, n), begin});
    }
  }
  for (const auto& [form, jobs] : by_form) {
    const Matrix& first = *jobs.front().job.w;
    const MatmulInput input = matmul_input(form, x.as<const float>(), x.shape[0], first);
    const int64_t row_blocks = n_input_blocks(first.in_dim) * n_planes(input_form_);
    const int64_t n_steps = is_float(first.dtype) ? 0 : packed_codes(first).n_steps;
    int64_t n_pieces = 0;
    double multiplications = 0;
    for (const auto& [job, begin] : jobs) {
      n_pieces += job.n_pieces;
      multiplications +=
          double(job.whole.token_end) * double(first.in_dim) * double(job.whole.out_dim);
    }
    for_pieces(n_pieces, multiplications, [&](int64_t i, int thread) {
      const Job* at = jobs.data();
      for (; i >= at->job.n_pieces; ++at) i -= at->job.n_pieces;
      run_matmul_piece(at->job, from_row(input, at->begin, row_blocks, n_steps), i, thread);
    });
  }
  for (const ExpertMatmul& call : calls) {
    for (int64_t e = 0; e < r.n_experts; ++e) {
      const int64_t begin = r.begins[e], n = r.begins[e + 1] - begin;
      const Tensor bias = call.linear_of(e).bias;
      if (n == 0 || !bias) continue;
      const Tensor rows = call.out.rows(begin, n);
      add_bias(rows, rows, bias);
    }
  }
}

// Besides that of all backends: the input by place.
int64_t CpuBackend::moe_workspace_bytes(int64_t n_rows, int64_t dim, const LayerSpec& layer) const {
  const Shape rows{checked_mul(n_rows, layer.n_active_experts), dim};
  return checked_add(Backend::moe_workspace_bytes(n_rows, dim, layer), bytes_of(DType::F32, rows));
}

void CpuBackend::run_experts(const ExpertsArgs& a) {
  const Routing& r = a.routing;
  const int64_t n_pairs = r.n_pairs(), dim = a.x.shape[1];
  const auto linear = [&](Linear Expert::*which) {
    return [&weights = a.weights, which](int64_t e) -> const Linear& {
      return weights.experts[size_t(e)].*which;
    };
  };
  float* const rows = input_memory<float>(expert_rows_, n_pairs * dim);
  for_ranges(n_pairs, dim, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      std::copy_n(a.x.as<const float>() + r.pairs[place] / r.n_active * dim, dim,
                  rows + place * dim);
    }
  });
  const Tensor gate = gate_scratch(DType::F32, a.hidden.shape);
  const ExpertMatmul gate_and_up[] = {{gate, linear(&Expert::w_gate)},
                                      {a.hidden, linear(&Expert::w_up)}};
  multiply_by_expert({rows, DType::F32, {n_pairs, dim}}, r, gate_and_up);
  MINFER_CHECK(a.spec.gated, "experts without a gate");
  glu(a.hidden, gate, a.hidden, a.spec.activation, a.spec.swiglu_clamp());
  const ExpertMatmul down[] = {{a.out, linear(&Expert::w_down)}};
  multiply_by_expert(a.hidden, r, down);
}

void CpuBackend::combine_experts(const CombineArgs& a) {
  const Routing& r = a.routing;
  const int64_t dim = a.out.shape[1];
  MINFER_CHECK(a.out.shape == Shape({r.n_rows, dim}) && a.outs.shape == Shape({r.n_pairs(), dim}) &&
                   (!a.shared || a.shared.shape == a.out.shape),
               "combine: out ", a.out.shape, ", outs ", a.outs.shape, ", shared ", a.shared.shape);
  const float* const outs = a.outs.as<const float>();
  for_ranges(r.n_rows, dim * (r.n_active + 2), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      std::ranges::fill(sum, 0.0f);
      const auto add = [&](const float* row, float weight) {
        for (int64_t i = 0; i < dim; ++i) sum[size_t(i)] += weight * row[i];
      };
      for (int64_t j = t * r.n_active; j < (t + 1) * r.n_active; ++j) {
        add(outs + r.places[j] * dim, r.weights[j]);
      }
      if (a.shared) {
        const float gate =
            a.shared_gate ? 1 / (1 + std::exp(-a.shared_gate.as<const float>()[t])) : 1;
        add(a.shared.as<const float>() + t * dim, gate);
      }
      float* const out = a.out.as<float>() + t * dim;
      for (int64_t i = 0; i < dim; ++i)
        out[i] = a.accumulate ? out[i] + sum[size_t(i)] : sum[size_t(i)];
    }
  });
  if (a.next != nullptr) norm(*a.next);
}

}  // namespace minfer::cpu
