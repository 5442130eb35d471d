#include <gtest/gtest.h>

#include <set>
#include <type_traits>

#include "kernels/cuda/decode/graph/decode_layers.h"
#include "kernels/cuda/decode/persistent/persistent_step.h"
#include "tests/support/other_value.h"

namespace minfer::test {
namespace {

DecodeModel plain_model() {
  DecodeModel model;
  model.layers.resize(2);
  for (DecodeLayer& layer : model.layers) {
    layer.spec = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .ffn_dim = 64, .norm_eps = 1e-5f};
    layer.spec.rope = 0;
  }
  model.edges.output_norm_eps = 1e-5f;
  return model;
}

// The fields of a block spec that change what is computed. Each is set to a value that is not
// neutral, in all blocks or in the last one alone. A fused step takes the fields that it was
// written for and refuses all others, so that it ignores none. Results with the fields that it
// takes are tested on a card: CudaModel.FusedStepsComputeEveryFieldThatTheyTake.
std::set<std::string> fields_taken(bool (*can_compute)(const DecodeModel&),
                                   const LayerSpec& plain = plain_model().layers[0].spec,
                                   bool takes_plain = true) {
  std::set<std::string> taken;
  DecodeModel plain_ones = plain_model();
  for (DecodeLayer& layer : plain_ones.layers) layer.spec = plain;
  EXPECT_EQ(can_compute(plain_ones), takes_plain);
  for_each_changed_spec(plain, [&](const std::string& field, const LayerSpec& changed) {
    DecodeModel model = plain_ones;
    model.layers[1].spec = changed;
    const bool in_one = can_compute(model);
    model.layers[0].spec = changed;
    if (can_compute(model)) taken.insert(field);
    EXPECT_TRUE(!in_one || taken.contains(field)) << field;
  });
  return taken;
}

TEST(DecodeSpec, TheGraphTakesWhatItComputesAndNothingElse) {
  // An activation without a gate, and a gate with another activation than silu, count as other
  // fields.
  EXPECT_EQ(fields_taken(cuda::DecodeLayers::can_compute),
            (std::set<std::string>{"attn_out_bias", "attn_scale", "attn_sinks", "ffn_bias", "norm",
                                   "norm_eps", "qk_norm", "qkv_bias", "rope", "window"}));
}

// A mixture of experts has fields of its own.
TEST(DecodeSpec, TheGraphTakesExperts) {
  LayerSpec moe = plain_model().layers[0].spec;
  moe.n_experts = 6;
  moe.n_active_experts = 2;
  moe.shared_ffn_dim = 32;
  EXPECT_EQ(fields_taken(cuda::DecodeLayers::can_compute, moe),
            (std::set<std::string>{"attn_out_bias", "attn_scale", "attn_sinks", "n_active_experts",
                                   "n_experts", "norm", "norm_eps", "qk_norm", "qkv_bias",
                                   "renormalizes_experts", "rope", "router_bias",
                                   "router_correction", "router_scale", "router_score",
                                   "shared_ffn_dim", "shared_gate", "window"}));
  EXPECT_TRUE(fields_taken(cuda::PersistentStep::can_compute, moe, false).empty());
}

// Experts with biases and clamped gates, which no shared expert has.
TEST(DecodeSpec, TheGraphTakesClampedExperts) {
  LayerSpec moe = plain_model().layers[0].spec;
  moe.n_experts = 6;
  moe.n_active_experts = 2;
  moe.ffn_bias = true;
  moe.activation = Activation::ClampedSwiGlu;
  moe.swiglu_alpha = 1.702f;
  moe.swiglu_limit = 7;
  const std::set<std::string> taken = fields_taken(cuda::DecodeLayers::can_compute, moe);
  for (const char* field : {"ffn_bias", "swiglu_alpha", "swiglu_limit"}) {
    EXPECT_TRUE(taken.contains(field)) << field;
  }
  EXPECT_FALSE(taken.contains("shared_ffn_dim"));
  EXPECT_TRUE(fields_taken(cuda::PersistentStep::can_compute, moe, false).empty());
}

TEST(DecodeSpec, NeitherTakesNormsOfItsKindsThatItDoesNotCompute) {
  for (const auto can_compute :
       {cuda::DecodeLayers::can_compute, cuda::PersistentStep::can_compute}) {
    DecodeModel model = plain_model();
    for (DecodeLayer& layer : model.layers) layer.spec.qk_norm = QkNorm::LayerOfEachHead;
    EXPECT_FALSE(can_compute(model));
    model = plain_model();
    for (DecodeLayer& layer : model.layers) layer.spec.norm = NormKind::None;
    EXPECT_FALSE(can_compute(model));
  }
}

TEST(DecodeSpec, TheOneKernelTakesWhatItComputesAndNothingElse) {
  EXPECT_EQ(fields_taken(cuda::PersistentStep::can_compute),
            (std::set<std::string>{"activation", "attn_out_bias", "attn_scale", "attn_softcap",
                                   "ffn_bias", "norm_places", "qk_norm", "qkv_bias",
                                   "residual_scale", "rope", "window"}));
}

// A mixture of experts without biases and without a shared expert.
TEST(DecodeSpec, TheOneKernelTakesExperts) {
  LayerSpec moe = plain_model().layers[0].spec;
  moe.n_experts = 6;
  moe.n_active_experts = 2;
  EXPECT_EQ(fields_taken(cuda::PersistentStep::can_compute, moe),
            (std::set<std::string>{"activation", "attn_out_bias", "attn_scale", "attn_softcap",
                                   "n_active_experts", "n_experts", "qk_norm", "qkv_bias",
                                   "renormalizes_experts", "residual_scale", "rope", "router_bias",
                                   "router_correction", "router_scale", "router_score", "window"}));
}

TEST(DecodeSpec, NoneTakesLayerNormsOfEachHead) {
  DecodeModel model = plain_model();
  for (DecodeLayer& layer : model.layers) layer.spec.qk_norm = QkNorm::LayerOfEachHead;
  EXPECT_FALSE(cuda::DecodeLayers::can_compute(model));
  EXPECT_FALSE(cuda::PersistentStep::can_compute(model));
}

TEST(DecodeSpec, TheOneKernelTakesScalesAndCapsOfEmbeddingAndLogits) {
  for (float EdgeSpec::*field :
       {&EdgeSpec::embedding_scale, &EdgeSpec::logit_scale, &EdgeSpec::logit_softcap}) {
    DecodeModel model = plain_model();
    model.edges.*field = 0.5f;
    EXPECT_FALSE(cuda::DecodeLayers::can_compute(model));
    EXPECT_TRUE(cuda::PersistentStep::can_compute(model));
  }
}

}  // namespace
}  // namespace minfer::test
