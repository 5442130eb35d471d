#include <gtest/gtest.h>

#include <utility>

#include "engine/session.h"
#include "models/synthetic.h"
#include "tests/support/float64_llama.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

struct BlockCase {
  const char* name;
  void (*change)(LayerSpec& layer);
};
const BlockCase kBlockCases[] = {
    {"Plain", [](LayerSpec&) {}},
    {"NormsBehind", [](LayerSpec& layer) { layer.norm_places = NormPlaces::Behind; }},
    {"NormsBeforeAndBehind", [](LayerSpec& layer) { layer.norm_places = NormPlaces::Both; }},
    {"Scaled", [](LayerSpec& layer) { layer.residual_scale = 0.25f; }},
    {"Parallel", [](LayerSpec& layer) { layer.parallel_residual = true; }},
    {"ParallelBehindOneNorm",
     [](LayerSpec& layer) { layer.parallel_residual = layer.shared_norm = true; }},
};

class MoeBlocks : public testing::TestWithParam<BlockCase> {};

// One expert, whose weight is 1, is a feed-forward network, whatever else its block is.
TEST_P(MoeBlocks, OfOneExpertAreThoseOfAFeedForwardNetwork) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  ModelSpec spec = synthetic_spec("tiny");
  for (LayerSpec& layer : spec.layers) GetParam().change(layer);
  const auto logits_of = [&](const Model& model) {
    Session session(model, *backend, {.kv_dtype = DType::F32});
    const std::vector<TokenId> ids = {1, 7, 30, 31, 2, 200, 3};
    const std::span<const float> logits = session.eval_all(ids);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const auto make = [&] { return make_synthetic_model(spec, {DType::F32, 0}, *backend, 1); };
  const std::vector<float> dense = logits_of(make());
  Model model = make();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = model.spec.layers[i];
    layer.n_experts = layer.n_active_experts = 1;
    layer.renormalizes_experts = true;
    LayerWeights& w = model.weights.layers[i];
    w.moe.router = backend->pack_matrix(random_normal(i, {1, spec.dim}).view());
    w.moe.experts.resize(1);
    Expert& expert = w.moe.experts.front();
    expert.w_gate = std::exchange(w.w_gate, {});
    expert.w_up = std::exchange(w.w_up, {});
    expert.w_down = std::exchange(w.w_down, {});
    backend->index_experts(w.moe);
  }
  const std::vector<float> got = logits_of(model);
  EXPECT_LE(max_difference(std::span<const float>(got), {dense.begin(), dense.end()}), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Blocks, MoeBlocks, testing::ValuesIn(kBlockCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace minfer::test
