#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"
#include "tests/support/other_value.h"
#include "tests/support/specs.h"

namespace minfer::test {
namespace {

// Each field of a block, and each scale and cap before and after the blocks, that is set to
// something not neutral: the session refuses it, or a fused step gives what the operations one by
// one give.
TEST_F(CudaModel, FusedStepsComputeEveryFieldThatTheyTake) {
  // With these weights roundings of a norm move no token by more than 1.1 % (docs/lab/
  // decode-2026-11.md, "Rows read once"); with others they choose between experts.
  constexpr uint64_t kSeed = 21;
  const ModelSpec plain = llama_spec({.dim = 256,
                                      .ffn_dim = 512,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 64,
                                      .vocab_size = 300,
                                      .trained_seq_len = 64});
  const auto check_model = [&](const std::string& name, const ModelSpec& spec) {
    SCOPED_TRACE(name);
    try {
      session_memory(spec, *backend_, {});
    } catch (const Error&) {
      return;  // refused by name, before any weight is read
    }
    const std::vector<TokenId> ids = some_ids(40, 300);
    for (const bool persistent : {true, false}) {
      const auto backend = make_cuda_backend({.persistent_decode = persistent});
      const Model model = make_synthetic_model(spec, DType::F16, *backend, kSeed);
      const auto fused = all_decoded_logits(model, *backend, ids, {});
      const auto one_by_one = all_decoded_logits(model, *backend, ids, {.fused_decode = false});
      const std::vector<double> want(one_by_one.begin(), one_by_one.end());
      EXPECT_LE(relative_error(fused, want), 0.01) << persistent;
    }
    // Of several sequences side by side.
    const Model model = make_synthetic_model(spec, DType::F16, *backend_, kSeed);
    for (const int64_t n : {8, 5, 2}) {
      const int64_t length = 40 / n;
      std::vector<double> want;
      for (int64_t i = 0; i < n; ++i) {
        const auto sequence = std::span(ids).subspan(size_t(i * length), size_t(length));
        const auto alone = all_decoded_logits(model, *backend_, sequence, {.fused_decode = false});
        want.insert(want.end(), alone.begin(), alone.end());
      }
      EXPECT_LE(relative_error(all_rows_logits(model, *backend_, ids, n), want), 0.01) << n;
    }
    // Of one sequence, several tokens at once.
    const auto alone =
        doubles_of(all_decoded_logits(model, *backend_, ids, {.fused_decode = false}));
    for (const int64_t n : {8, 3}) {
      EXPECT_LE(relative_error(all_draft_logits(model, *backend_, ids, n, {}), alone), 0.01) << n;
    }
  };
  const auto check = [&](const std::string& field, const LayerSpec& changed) {
    ModelSpec spec = plain;
    for (LayerSpec& layer : spec.layers) layer = changed;
    check_model(field, spec);
  };
  check("none", plain.layer(0));
  for_each_changed_spec(plain.layer(0), check);
  LayerSpec gelu = plain.layer(0);
  gelu.gated = false;
  for (const Activation activation : {Activation::GeluErf, Activation::GeluTanh}) {
    gelu.activation = activation;
    check("gelu", gelu);
  }
  LayerSpec whole = plain.layer(0);
  whole.qk_norm = QkNorm::WholeWidth;
  check("qk_norm of the whole width", whole);
  LayerSpec geglu = plain.layer(0);
  for (const Activation activation : {Activation::GeluErf, Activation::GeluTanh}) {
    geglu.activation = activation;
    check("gate of gelu", geglu);
  }
  LayerSpec both = plain.layer(0);
  both.norm_places = NormPlaces::Both;
  check("norms before and behind", both);
  LayerSpec large = plain.layer(0);
  large.head_dim = 256;
  check("heads of 256", large);
  LayerSpec moe = plain.layer(0);
  moe.ffn_dim = 192;
  moe.n_experts = 6;
  moe.n_active_experts = 2;
  moe.renormalizes_experts = true;
  check("experts", moe);
  moe.n_active_experts = 3;
  moe.shared_ffn_dim = 128;
  check("a shared expert", moe);
  moe.shared_gate = true;
  moe.router_score = RouterScore::Sigmoid;
  moe.router_scale = 1.5f;
  check("a shared expert with a gate", moe);
  LayerSpec clamped = plain.layer(0);
  clamped.attn_sinks = true;
  clamped.qkv_bias = clamped.attn_out_bias = clamped.ffn_bias = clamped.router_bias = true;
  clamped.ffn_dim = 192;
  clamped.n_experts = 6;
  clamped.n_active_experts = 2;
  clamped.renormalizes_experts = true;
  clamped.activation = Activation::ClampedSwiGlu;
  clamped.swiglu_alpha = 1.702f;
  clamped.swiglu_limit = 0.7f;
  check("clamped experts with biases, and sinks", clamped);

  ModelSpec kinds = plain;
  kinds.ropes.push_back({.theta = 1e6, .rotary_dim = 64});
  kinds.layers.front().window = 20;
  kinds.layers.front().rope = 1;
  check_model("two kinds of layers", kinds);
  for (float EdgeSpec::*field :
       {&EdgeSpec::embedding_scale, &EdgeSpec::logit_scale, &EdgeSpec::logit_softcap}) {
    ModelSpec scaled = plain;
    scaled.edges.*field = 2.5f;
    check_model("a scale or a cap", scaled);
  }
}

// The blocks of other families go through the one kernel, those of gpt-oss through the graph, in
// every format: the logits are near those of the step operation by operation. A shape whose blocks
// the session refuses is skipped.
TEST_F(CudaModel, FusedStepsComputeTheBlocksOfFamilies) {
  for (const char* name :
       {"mistral-7b", "qwen3-8b", "olmo-2-7b", "granite-3-8b", "gemma-2-9b", "gemma-3-12b",
        "gemma-3-27b", "gpt-oss-20b", "mixtral-8x7b", "qwen3-30b-a3b"}) {
    SCOPED_TRACE(name);
    ModelSpec spec = synthetic_spec(name);
    // The first and the last of its blocks, which are of both kinds, and fewer tokens. Windows end
    // within the text.
    spec.layers = {spec.layers.front(), spec.layers.back()};
    if (std::string(name).starts_with("gemma-3")) {
      spec.layers.back() = synthetic_spec(name).layer(5);
    }
    spec.vocab_size = 3000;
    for (LayerSpec& layer : spec.layers) {
      layer.window = layer.window == 0 ? 0 : 100;
      // Else a rounding decides which of two experts with nearly the same score is chosen.
      layer.n_experts = layer.n_active_experts;
    }
    try {
      session_memory(spec, *backend_, {});
    } catch (const Error&) {
      continue;
    }
    for (const SyntheticType& type : {SyntheticType{DType::F16}, {DType::U8}, {DType::U4, 64}}) {
      for (const DType cache : {DType::F16, DType::U8}) {
        const Model model = make_synthetic_model(spec, type, *backend_, 1);
        const std::vector<TokenId> ids = some_ids(160, 3000);
        const SessionOptions fused{.max_seq_len = 512, .kv_dtype = cache};
        SessionOptions one_by_one = fused;
        one_by_one.fused_decode = false;
        const auto got = all_decoded_logits(model, *backend_, ids, fused);
        const auto want = doubles_of(all_decoded_logits(model, *backend_, ids, one_by_one));
        EXPECT_LE(relative_error(got, want), 0.03) << type.dtype << " " << cache;
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
