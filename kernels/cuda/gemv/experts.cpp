#include "kernels/cuda/gemv/experts.h"

#include "kernels/base/math.h"

namespace minfer::cuda {
namespace {

constexpr Linear Expert::*kParts[] = {&Expert::w_gate, &Expert::w_up, &Expert::w_down};

DType scales_of(const Matrix& w) { return w.scales ? w.scales.view().dtype : DType::F32; }

bool are_alike(const Matrix& a, const Matrix& b) {
  return a.dtype == b.dtype && a.table == b.table && a.out_dim == b.out_dim &&
         a.in_dim == b.in_dim && a.group == b.group && a.code_bits == b.code_bits &&
         bool(a.mins) == bool(b.mins) && scales_of(a) == scales_of(b);
}

}  // namespace

std::vector<ExpertPlace> expert_places(const MoeWeights& weights) {
  MINFER_REQUIRE(Input, std::ssize(weights.experts) <= kMaxCardExperts, weights.experts.size(),
                 " experts of a layer: not supported on a card, at most ", kMaxCardExperts);
  std::vector<ExpertPlace> places;
  for (Linear Expert::*part : kParts) {
    const Matrix& first = (weights.experts.front().*part).weight;
    for (size_t e = 0; e < weights.experts.size(); ++e) {
      const Linear& linear = weights.experts[e].*part;
      const Matrix& w = linear.weight;
      MINFER_REQUIRE(Input, are_alike(w, first), "expert ", e, " has a matrix [", w.out_dim, ", ",
                     w.in_dim, "] of ", w.dtype, ", ", w.code_bits, " bits, in groups of ", w.group,
                     ", expert 0 one [", first.out_dim, ", ", first.in_dim, "] of ", first.dtype,
                     ", ", first.code_bits, " bits, in groups of ", first.group,
                     ": not supported on a card");
      places.push_back({w.storage.view().data, w.scales.view().data,
                        static_cast<const float*>(w.mins.view().data), linear.bias.view().data});
    }
  }
  return places;
}

ExpertMatrices matrices_of(const MoeWeights& weights, ExpertPart part) {
  MINFER_CHECK(weights.index && !weights.experts.empty(), "experts without an index");
  const auto* const places = static_cast<const ExpertPlace*>(weights.index.view().data);
  return {&(weights.experts.front().*kParts[int(part)]).weight,
          places + int(part) * std::ssize(weights.experts)};
}

}  // namespace minfer::cuda
