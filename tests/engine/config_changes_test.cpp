#include <gtest/gtest.h>

#include "engine/session.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/temp_dir.h"

namespace minfer::test {
namespace {

// What one change of a fixture's config.json does: the logits leave their bound or stay in it, or
// the load is refused with a message.
constexpr const char* kLeaves = "";
constexpr const char* kLeavesBarely = "barely";  // as far as the two forms of GELU are apart
constexpr const char* kStays = "stays";

struct Change {
  const char* fixture;
  const char* patch;    // RFC 7396: null takes a key away
  const char* outcome;  // kLeaves, kStays, or a part of the message
};
void PrintTo(const Change& change, std::ostream* out) {
  *out << change.fixture << ' ' << change.patch;
}

class ConfigChange : public testing::TestWithParam<Change> {};

TEST_P(ConfigChange, ShowsInTheLogitsOrIsRefused) {
  const auto& [name, patch, outcome] = GetParam();
  const FixtureModel fixture = fixture_model(cat("models/", name));
  const std::filesystem::path from = fixture.path;
  auto config = nlohmann::json::parse(read_file(from / "config.json"));
  config.merge_patch(nlohmann::json::parse(patch));
  const TempDir dir;
  dir.write("config.json", config.dump());
  std::filesystem::create_symlink(std::filesystem::absolute(from / "model.safetensors"),
                                  dir.path() / "model.safetensors");
  const auto backend = make_cpu_backend();
  Model model;
  try {
    model = load_model(dir.path().string(), *backend);
  } catch (const Error& error) {
    ASSERT_EQ(error.kind(), ErrorKind::Input) << error.what();
    EXPECT_TRUE(outcome != std::string_view(kLeaves) && outcome != std::string_view(kStays) &&
                std::string_view(error.what()).find(outcome) != std::string_view::npos)
        << error.what();
    return;
  }
  Session session(model, *backend,
                  {.max_seq_len = std::ssize(fixture.ids), .kv_dtype = DType::F32});
  const std::vector<double>& reference = fixture.logits;
  const double error = max_difference(session.eval_all(fixture.ids), reference) / rms(reference);
  if (outcome == std::string_view(kStays)) {
    EXPECT_LE(error, 1e-4);
    EXPECT_TRUE(model.warnings.empty()) << model.warnings.front();
  } else {
    const bool barely = outcome == std::string_view(kLeavesBarely);
    EXPECT_TRUE(barely || outcome == std::string_view(kLeaves)) << "not refused";
    EXPECT_GT(error, barely ? 4e-4 : 1e-3);
  }
}

const Change kChanges[] = {
    {"mistral-window-f16", R"({"sliding_window": 6})", kLeaves},
    {"mistral-window-f16", R"({"sliding_window": 8})", kLeaves},
    {"mistral-window-f16", R"({"sliding_window": null})", kLeaves},
    {"mistral-wide-heads-f16", R"({"head_dim": 10})", "q_proj.weight: shape [64, 40]"},
    {"mistral-wide-heads-f16", R"({"head_dim": null})", "q_proj.weight: shape [64, 40]"},
    {"mistral-wide-heads-f16", R"({"rope_parameters": {"rope_theta": 5e5}})", kLeaves},

    {"qwen2-windows-listed-f16", R"({"sliding_window": 4})", kLeaves},
    {"qwen2-windows-listed-f16", R"({"sliding_window": 6})", kLeaves},
    {"qwen2-windows-listed-f16", R"({"max_window_layers": 0})", kStays},
    {"qwen2-windows-listed-f16", R"({"layer_types": null, "max_window_layers": 1})", kLeaves},
    {"qwen2-windows-listed-f16", R"({"use_sliding_window": false})", "layer_types"},
    {"qwen2-yarn-f16", R"({"sliding_window": 5, "max_window_layers": 0})", kStays},

    {"qwen2-yarn-f16", R"({"rope_theta": 9000.0})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"factor": 4.5}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"beta_fast": 0.15}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"beta_slow": 0.9}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"truncate": false}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"truncate": true}})", kStays},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"attention_factor": 1.0}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"mscale": 2.0}})", kStays},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"original_max_position_embeddings": 130}})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"original_max_position_embeddings": null}})", kStays},
    {"qwen2-yarn-f16", R"({"original_max_position_embeddings": 130})", kLeaves},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"factor": null}})", "rope_scaling.factor is missing"},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"type": "linear"}})",
     "key rope_scaling is \"beta_fast\": not supported with rope type linear"},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"type": "longrope"}})",
     "key rope_scaling is \"beta_fast\": not supported with rope type longrope"},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"type": "proportional"}})",
     "rope_scaling.type is \"proportional\": not supported"},
    {"qwen2-yarn-f16", R"({"rope_scaling": {"long_factor": [1, 1, 1, 1]}})",
     "key rope_scaling is \"long_factor\": not supported with rope type yarn"},
    {"qwen2-yarn-f16", R"({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}})",
     "key rope_parameters.full_attention is an object: not supported"},
    {"qwen2-yarn-f16", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
    {"qwen2-yarn-f16", R"({"no_rope_layers": [1, 0]})", "key no_rope_layers is there"},
    {"qwen3-yarn-attention-factor-bf16", R"({"rope_parameters": {"attention_factor": 1.29}})",
     kLeaves},
    {"qwen3-yarn-attention-factor-bf16", R"({"rope_parameters": {"attention_factor": null}})",
     kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"mscale": 1.1}})", kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"mscale": null}})", kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"mscale_all_dim": 0.8}})", kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"truncate": null}})", kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"beta_fast": 1.5}})", kLeaves},
    {"llama-yarn-mscale-f16", R"({"rope_parameters": {"beta_slow": 0.4}})", kLeaves},
    {"llama-dynamic-f16", R"({"rope_parameters": {"factor": 4.5}})", kLeaves},
    {"llama-dynamic-f16", R"({"rope_parameters": {"factor": 0.5}})", "factor is 0.5"},
    {"llama-dynamic-f16", R"({"max_position_embeddings": 14})", kLeaves},
    {"llama-dynamic-f16", R"({"original_max_position_embeddings": 14})", kStays},

    {"smollm3-tied-f16", R"({"no_rope_layers": [1, 1, 1, 1, 1]})", kLeaves},
    {"smollm3-tied-f16", R"({"no_rope_layers": [1, 1, 0, 1, 1]})", kLeaves},
    {"smollm3-tied-f16", R"({"no_rope_layers": [1, 1, 1, 0, 1, 1]})", kStays},
    {"smollm3-tied-f16", R"({"no_rope_layers": null})", kStays},
    {"smollm3-tied-f16", R"({"no_rope_layer_interval": 3})", kStays},
    {"smollm3-tied-f16", R"({"no_rope_layers": null, "no_rope_layer_interval": 3})", kLeaves},
    {"smollm3-tied-f16", R"({"no_rope_layers": [1, 1]})", "expected one for each of 5 layers"},
    {"smollm3-tied-f16", R"({"no_rope_layers": [1, 1, 1, 2, 1]})", "expected 0 and 1"},
    {"smollm3-tied-f16", R"({"rope_parameters": null})", kLeaves},  // theta 2e6
    {"smollm3-windows-bf16", R"({"sliding_window": 4})", kLeaves},
    {"smollm3-windows-bf16", R"({"sliding_window": 6})", kLeaves},
    {"smollm3-windows-bf16", R"({"layer_types": null})", kStays},
    {"smollm3-windows-bf16", R"({"use_sliding_window": false})", "layer_types"},
    {"smollm3-windows-bf16", R"({"layer_types": null, "use_sliding_window": false})", kLeaves},

    {"phi3-window-bf16", R"({"sliding_window": 6})", kLeaves},
    {"phi3-window-bf16", R"({"sliding_window": 8})", kLeaves},
    {"phi3-window-bf16", R"({"sliding_window": null})", kLeaves},
    {"phi3-window-bf16", R"({"rms_norm_eps": null})", kStays},
    {"phi3-window-bf16", R"({"num_key_value_heads": null})", kStays},
    {"phi3-window-bf16", R"({"num_key_value_heads": 1})", "qkv_proj.weight: shape [144, 48]"},
    {"phi3-partial-f16", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", kLeaves},
    {"phi3-partial-f16", R"({"rope_parameters": {"partial_rotary_factor": null}})", kLeaves},
    {"phi3-partial-f16", R"({"rope_parameters": {"partial_rotary_factor": 0.7}})",
     "11 of 16 elements"},
    {"phi3-partial-f16", R"({"rope_parameters": {"rope_type": "linear", "factor": 2}})",
     "not supported (supported: default, longrope, su, yarn)"},
    {"phi3-longrope-f16", R"({"rope_scaling": {"long_factor": [1, 1.2, 1.7, 2.5, 3.9, 5.5]}})",
     kLeaves},
    {"phi3-longrope-f16", R"({"rope_scaling": {"short_factor": [2, 2, 2, 2, 2, 2]}})", kStays},
    {"phi3-longrope-f16", R"({"rope_scaling": {"long_factor": [1, 1.2, 1.7, 2.5, 4]}})",
     "long_factor has 5 values, expected 6"},
    {"phi3-longrope-f16", R"({"rope_scaling": {"long_factor": null}})", "long_factor is missing"},
    {"phi3-longrope-f16", R"({"rope_scaling": {"long_factor": [1, 1.2, 1.7, 2.5, 4, 0]}})",
     "long_factor has 0, expected more than 0"},
    {"phi3-longrope-f16", R"({"rope_scaling": {"type": "yarn"}})", kStays},
    {"phi3-longrope-f16", R"({"rope_scaling": {"type": "longrope"}})", kStays},
    {"phi3-longrope-f16", R"({"rope_scaling": {"attention_factor": 1.0}})", kLeaves},
    {"phi3-longrope-f16", R"({"rope_scaling": {"factor": 3.5}})", kLeaves},
    {"phi3-longrope-f16", R"({"rope_scaling": {"short_mscale": 1.1}})",
     "key rope_scaling is \"short_mscale\": not supported"},
    {"phi3-longrope-f16", R"({"original_max_position_embeddings": 20})", kLeaves},
    {"phi3-longrope-f16", R"({"original_max_position_embeddings": null})", kLeaves},  // 4096
    {"phi3-longrope-f16", R"({"partial_rotary_factor": 1.0})", "has 6 values, expected 8"},
    {"phi3-longrope-f16", R"({"original_max_position_embeddings": 1})", "expected more than 1"},
    // As the published files of Phi-4-mini and SmolLM3 have them.
    {"phi3-longrope-f16", R"({"sliding_window": 262144, "attention_bias": false, "mlp_bias": false,
                              "lm_head_bias": false, "full_attn_mod": 1, "interpolate_factor": 1,
                              "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}})",
     kStays},
    {"mixtral-bf16", R"({"num_experts_per_tok": 1})", kLeaves},
    {"mixtral-bf16", R"({"num_experts_per_tok": 3})", kLeaves},
    {"mixtral-bf16", R"({"num_experts_per_tok": null})", kStays},
    {"mixtral-bf16", R"({"num_experts_per_tok": 6})", "num_experts_per_tok is 6"},
    {"mixtral-bf16", R"({"num_local_experts": 4})", "gate.weight: shape [5, 32]"},
    {"mixtral-bf16", R"({"num_local_experts": null})", "gate.weight: shape [5, 32]"},
    {"mixtral-bf16", R"({"num_local_experts": null, "num_experts": 5})", kStays},
    {"mixtral-bf16", R"({"num_experts": 6})", "num_local_experts is 5"},
    {"mixtral-bf16", R"({"intermediate_size": 24})", "w1.weight: shape [20, 32]"},
    {"mixtral-bf16", R"({"norm_topk_prob": false})", "norm_topk_prob is false"},
    {"mixtral-bf16", R"({"sliding_window": 7})", kLeaves},
    {"mixtral-bf16", R"({"mlp_only_layers": [0]})", "key mlp_only_layers is there"},
    {"mixtral-bf16", R"({"moe_intermediate_size": 12})", "moe_intermediate_size is 12"},
    {"mixtral-bf16", R"({"rope_parameters": null})", kStays},  // theta 1e6
    {"mixtral-bf16", R"({"architectures": ["MistralForCausalLM"]})", "num_local_experts is 5"},
    {"mixtral-stacked-f16", R"({"sliding_window": null})", kLeaves},
    {"mixtral-stacked-f16", R"({"num_experts_per_tok": 2})", kLeaves},
    {"mixtral-stacked-f16", R"({"intermediate_size": 10})", "gate_up_proj: shape [4, 40, 32]"},
    {"mixtral-stacked-f16", R"({"num_local_experts": 8})", "gate.weight: shape [4, 32]"},

    {"qwen3-moe-f16", R"({"norm_topk_prob": false})", kLeaves},
    {"qwen3-moe-f16", R"({"norm_topk_prob": null})", kLeaves},
    {"qwen3-moe-f16", R"({"num_experts_per_tok": 2})", kLeaves},
    {"qwen3-moe-f16", R"({"mlp_only_layers": []})", "layers.1.mlp.gate.weight [6, 32] is missing"},
    {"qwen3-moe-f16", R"({"mlp_only_layers": null})",
     "layers.1.mlp.gate.weight [6, 32] is missing"},
    {"qwen3-moe-f16", R"({"mlp_only_layers": [0]})", "layers.0.mlp.gate_proj.weight"},
    {"qwen3-moe-f16", R"({"moe_intermediate_size": null})", "gate_proj.weight: shape [12, 32]"},
    {"qwen3-moe-f16", R"({"intermediate_size": 21})", "gate_proj.weight: shape [20, 32]"},
    {"qwen3-moe-f16", R"({"decoder_sparse_step": 2})", "layers.0.mlp.gate_proj.weight"},
    {"qwen3-moe-f16", R"({"use_sliding_window": true, "sliding_window": 5})", kLeaves},
    {"qwen3-moe-f16", R"({"head_dim": null})", "shape [64, 32]"},
    {"qwen3-moe-stacked-bf16", R"({"norm_topk_prob": true})", kLeaves},
    {"qwen3-moe-stacked-bf16", R"({"decoder_sparse_step": 1})", "layers.0.mlp.gate.weight"},
    {"qwen2-moe-f16", R"({"norm_topk_prob": true})", kLeaves},
    {"qwen2-moe-f16", R"({"num_experts_per_tok": 1})", kLeaves},
    {"qwen2-moe-f16", R"({"shared_expert_intermediate_size": 12})", "shape [28, 32]"},
    {"qwen2-moe-f16", R"({"qkv_bias": true})", kStays},
    {"qwen2-moe-f16", R"({"qkv_bias": null})", kStays},
    {"qwen2-moe-f16", R"({"use_sliding_window": true, "sliding_window": 5, "layer_types": null,
                          "max_window_layers": 0})",
     kStays},
    {"qwen2-moe-f16", R"({"use_sliding_window": true, "sliding_window": 5, "layer_types": null})",
     kLeaves},
    {"glm4-moe-f16", R"({"routed_scaling_factor": 1.0})", kLeaves},
    {"glm4-moe-f16", R"({"routed_scaling_factor": null})", kLeaves},
    {"glm4-moe-f16", R"({"norm_topk_prob": false})", kLeaves},
    {"glm4-moe-f16", R"({"norm_topk_prob": null})", kStays},
    {"glm4-moe-f16", R"({"num_experts_per_tok": 1})", kLeaves},
    {"glm4-moe-f16", R"({"n_shared_experts": 1})", "shape [24, 32]"},
    {"glm4-moe-f16", R"({"first_k_dense_replace": 2})", "layers.1.mlp.gate_proj.weight"},
    {"glm4-moe-f16", R"({"first_k_dense_replace": null})", kStays},
    {"glm4-moe-f16", R"({"n_group": 2})", "n_group is 2"},
    {"glm4-moe-f16", R"({"topk_group": 2})", "topk_group is 2"},
    {"glm4-moe-f16", R"({"use_qk_norm": true})", "q_norm.weight [16] is missing"},
    {"glm4-moe-f16", R"({"attention_bias": false})", kLeaves},
    {"glm4-moe-f16", R"({"partial_rotary_factor": 1.0,
                         "rope_parameters": {"partial_rotary_factor": null}})",
     kLeaves},
    {"glm4-moe-f16", R"({"partial_rotary_factor": null,
                         "rope_parameters": {"partial_rotary_factor": null}})",
     kStays},
    {"glm4-moe-f16", R"({"num_nextn_predict_layers": 3})", kStays},
    {"glm4-moe-qk-norm-bf16", R"({"use_qk_norm": false})", kLeaves},
    {"glm4-moe-qk-norm-bf16", R"({"norm_topk_prob": true})", kLeaves},

    {"olmoe-bf16", R"({"norm_topk_prob": true})", kLeaves},
    {"olmoe-bf16", R"({"num_experts_per_tok": 4})", kLeaves},
    {"olmoe-bf16", R"({"clip_qkv": 8.0})", "clip_qkv is 8"},
    {"olmoe-bf16", R"({"num_key_value_heads": null})", "k_proj.weight: shape"},

    {"gpt-oss-bf16", R"({"sliding_window": 4})", kLeaves},
    {"gpt-oss-bf16", R"({"sliding_window": 6})", kLeaves},
    {"gpt-oss-bf16", R"({"sliding_window": null})", kLeaves},  // 128
    {"gpt-oss-bf16", R"({"layer_types": null})", kStays},
    {"gpt-oss-bf16", R"({"layer_types": ["full_attention", "sliding_attention",
                         "full_attention"]})",
     kLeaves},
    {"gpt-oss-bf16", R"({"swiglu_limit": 1.6})", kLeaves},
    {"gpt-oss-bf16", R"({"swiglu_limit": null})", kLeaves},  // 7
    {"gpt-oss-bf16", R"({"swiglu_limit": 0})", "swiglu_limit is 0"},
    {"gpt-oss-bf16", R"({"swiglu_alpha": 1.45})", kLeaves},
    {"gpt-oss-bf16", R"({"swiglu_alpha": null})", kLeaves},  // 1.702
    {"gpt-oss-bf16", R"({"num_experts_per_tok": 1})", kLeaves},
    {"gpt-oss-bf16", R"({"num_experts_per_tok": null})", kLeaves},  // 4
    {"gpt-oss-bf16", R"({"experts_per_token": 3})", "experts_per_token is 3"},
    {"gpt-oss-bf16", R"({"norm_topk_prob": false})", "norm_topk_prob is false"},
    {"gpt-oss-bf16", R"({"rope_parameters": {"truncate": true}})", kLeaves},
    {"gpt-oss-bf16", R"({"rope_parameters": {"truncate": null}})", kLeaves},
    {"gpt-oss-bf16", R"({"rope_parameters": {"factor": 3.5}})", kLeaves},
    {"gpt-oss-bf16", R"({"rope_parameters": null})", kLeaves},
    {"gpt-oss-bf16", R"({"attention_bias": null})", kStays},
    {"gpt-oss-bf16", R"({"attention_bias": false})", kLeaves},
    {"gpt-oss-bf16", R"({"num_local_experts": 4})", "router.weight: shape [5, 32]"},
    {"gpt-oss-bf16", R"({"num_local_experts": null})", "router.weight: shape [5, 32]"},
    {"gpt-oss-bf16", R"({"intermediate_size": 10})", "gate_up_proj: shape [5, 40, 32]"},
    {"gpt-oss-bf16", R"({"head_dim": null})", "q_proj.weight: shape [64, 32]"},
    {"gpt-oss-bf16", R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\""},
    {"gpt-oss-bf16", R"({"moe_intermediate_size": 12})", "moe_intermediate_size is 12"},
    {"gpt-oss-head64-f16", R"({"layer_types": null})", kLeaves},
    {"gpt-oss-head64-f16", R"({"swiglu_limit": 6.5})", kLeaves},
    {"gpt-oss-mxfp4", R"({"swiglu_limit": 6.5})", kLeaves},
    {"gpt-oss-mxfp4", R"({"swiglu_limit": null})", kStays},
    {"gpt-oss-mxfp4", R"({"experts_per_token": 3})", "experts_per_token is 3"},
    {"gpt-oss-mxfp4", R"({"initial_context_length": 99})", kStays},
    {"gpt-oss-mxfp4", R"({"rope_scaling": {"truncate": true}})", kLeaves},
    {"gpt-oss-mxfp4", R"({"quantization_config": {"modules_to_not_convert": null}})", kStays},
    {"gpt-oss-mxfp4", R"({"quantization_config": {"group_size": 32}})",
     "quantization_config is \"group_size\": not supported"},
    {"qwen3-moe-f16", R"({"swiglu_limit": 7.0})", "swiglu_limit is 7"},

    {"phi3-longrope-f16", R"({"full_attn_mod": 2})", "full_attn_mod is 2"},
    {"phi3-longrope-f16", R"({"interpolate_factor": 2})", "interpolate_factor is 2"},
    {"phi3-longrope-f16", R"({"lm_head_bias": true})", "lm_head_bias is true"},
    {"smollm3-tied-f16", R"({"max_window_layers": 28, "pretraining_tp": 2,
                             "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}})",
     kStays},

    // Norms that are stored without their 1, and a scale of the embedding by the width.
    {"gemma-bf16", R"({"hidden_act": "gelu"})", kStays},
    {"gemma-bf16", R"({"hidden_act": null})", kStays},
    {"gemma-bf16", R"({"hidden_act": "silu"})", "hidden_act is \"silu\": not supported"},
    {"gemma-bf16", R"({"hidden_activation": "gelu"})", "hidden_activation is \"gelu\""},
    {"gemma-bf16", R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"})", kLeaves},
    {"gemma-bf16", R"({"rms_norm_eps": null})", kStays},
    {"gemma-bf16", R"({"head_dim": null})", "q_proj.weight: shape [48, 24]"},
    {"gemma-bf16", R"({"tie_word_embeddings": null})", kStays},
    {"gemma-bf16", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention is"},
    {"gemma-bf16", R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping is 50"},
    {"gemma-bf16", R"({"rope_parameters": {"rope_theta": 9000.0}})", kLeaves},

    {"gemma2-caps-f16", R"({"attn_logit_softcapping": null})", kLeaves},  // 50
    {"gemma2-caps-f16", R"({"attn_logit_softcapping": 1.4})", kLeaves},
    {"gemma2-caps-f16", R"({"attn_logit_softcapping": 0})", "attn_logit_softcapping is 0"},
    {"gemma2-caps-f16", R"({"final_logit_softcapping": null})", kLeaves},  // 30
    {"gemma2-caps-f16", R"({"final_logit_softcapping": 3.9})", kLeaves},
    {"gemma2-caps-f16", R"({"query_pre_attn_scalar": 16})", kLeaves},
    {"gemma2-caps-f16", R"({"query_pre_attn_scalar": null})", kLeaves},  // 256
    {"gemma2-caps-f16", R"({"sliding_window": 4})", kLeaves},
    {"gemma2-caps-f16", R"({"sliding_window": 6})", kLeaves},
    {"gemma2-caps-f16", R"({"sliding_window": null})", kLeaves},  // 4096
    {"gemma2-caps-f16", R"({"layer_types": null})", kStays},
    {"gemma2-caps-f16", R"({"layer_types": ["full_attention", "sliding_attention",
                            "full_attention"]})",
     kLeaves},
    {"gemma2-caps-f16", R"({"layer_types": ["full_attention"]})", "one for each of 3 layers"},
    {"gemma2-caps-f16", R"({"layer_types": ["sliding_attention", "chunked_attention",
                            "sliding_attention"]})",
     "\"chunked_attention\": not supported"},

    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"sliding_attention": {"rope_theta": 90.0}}})",
     kLeaves},
    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"sliding_attention": null}})", kLeaves},
    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"full_attention": {"rope_theta": 6e3}}})",
     kLeaves},
    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"full_attention": {"factor": 3.5}}})",
     kLeaves},
    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"rope_theta": 5e3}})",
     "rope_parameters is \"rope_theta\": not supported"},
    {"gemma3-two-bases-bf16", R"({"rope_parameters": {"full_attention": {"beta_fast": 2}}})",
     "rope_parameters.full_attention is \"beta_fast\": not supported with rope type linear"},
    {"gemma3-two-bases-bf16", R"({"layer_types": null})", kStays},
    {"gemma3-two-bases-bf16", R"({"layer_types": null, "sliding_window_pattern": 3})", kLeaves},
    {"gemma3-two-bases-bf16", R"({"sliding_window": 4})", kLeaves},
    {"gemma3-two-bases-bf16", R"({"sliding_window": 6})", kLeaves},
    {"gemma3-two-bases-bf16", R"({"query_pre_attn_scalar": 16})", kLeaves},
    {"gemma3-two-bases-bf16", R"({"attn_logit_softcapping": 50.0})",
     "attn_logit_softcapping is 50"},
    {"gemma3-two-bases-bf16", R"({"final_logit_softcapping": 30.0})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_local_base_freq": 90.0})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_local_base_freq": null})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_theta": 6000.0})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_theta": null})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_scaling": {"factor": 3.5}})", kLeaves},
    {"gemma3-old-keys-f16", R"({"rope_scaling": null})", kLeaves},
    {"gemma3-old-keys-f16", R"({"sliding_window_pattern": 4})", kLeaves},
    {"gemma3-old-keys-f16", R"({"sliding_window_pattern": null})", kLeaves},  // 6
    {"gemma3-old-keys-f16", R"({"final_logit_softcapping": null})", kLeaves},

    {"olmo2-f16", R"({"rms_norm_eps": null})", kStays},
    {"olmo2-f16", R"({"architectures": ["LlamaForCausalLM"]})",
     "input_layernorm.weight [40] is missing"},
    {"olmo2-f16", R"({"rope_parameters": {"rope_theta": 9000.0}})", kLeaves},
    {"olmo2-f16", R"({"clip_qkv": 8.0})", "clip_qkv is 8"},
    {"olmo3-yarn-bf16", R"({"sliding_window": 4})", kLeaves},
    {"olmo3-yarn-bf16", R"({"sliding_window": 6})", kLeaves},
    {"olmo3-yarn-bf16", R"({"layer_types": null})", kStays},
    {"olmo3-yarn-bf16", R"({"layer_types": ["sliding_attention", "sliding_attention",
                            "full_attention", "sliding_attention", "sliding_attention"]})",
     kLeaves},
    {"olmo3-yarn-bf16", R"({"rope_parameters": {"full_attention": {"attention_factor": null}}})",
     kLeaves},
    {"olmo3-yarn-bf16", R"({"rope_parameters": {"full_attention": {"factor": 3.0}}})", kLeaves},
    {"olmo3-yarn-bf16", R"({"rope_parameters": {"sliding_attention": {"rope_type": "yarn",
                            "factor": 4.0, "original_max_position_embeddings": 16}}})",
     kLeaves},
    {"olmo3-yarn-bf16", R"({"rope_parameters": {"sliding_attention": {"rope_theta": 2900.0}}})",
     kLeaves},
    {"olmo3-yarn-bf16", R"({"architectures": ["Olmo2ForCausalLM"]})",
     "rope_parameters.full_attention is an object: not supported"},

    {"granite-f16", R"({"embedding_multiplier": null})", kLeaves},
    {"granite-f16", R"({"embedding_multiplier": 3.1})", kLeaves},
    {"granite-f16", R"({"attention_multiplier": 0.21})", kLeaves},
    {"granite-f16", R"({"attention_multiplier": null})", kLeaves},  // 1
    {"granite-f16", R"({"residual_multiplier": 0.41})", kLeaves},
    {"granite-f16", R"({"residual_multiplier": null})", kLeaves},
    {"granite-f16", R"({"logits_scaling": 2.6})", kLeaves},
    {"granite-f16", R"({"logits_scaling": null})", kLeaves},
    {"granite-f16", R"({"logits_scaling": 0})", "logits_scaling is 0"},
    {"granite-f16", R"({"architectures": ["LlamaForCausalLM"]})", "multiplier is "},

    {"gpt-neox-f16", R"({"use_parallel_residual": false})", kLeaves},
    {"gpt-neox-f16", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", kLeaves},
    {"gpt-neox-f16", R"({"rope_parameters": null})", kStays},
    {"gpt-neox-f16", R"({"rope_parameters": null, "rotary_pct": 0.5})", kLeaves},
    {"gpt-neox-f16", R"({"rope_parameters": null, "rotary_emb_base": 9000})", kLeaves},
    {"gpt-neox-f16", R"({"hidden_act": "gelu_new"})", kLeavesBarely},
    {"gpt-neox-f16", R"({"hidden_act": "relu"})", "hidden_act is \"relu\": not supported"},
    {"gpt-neox-f16", R"({"layer_norm_eps": 0.01})", kLeaves},
    {"gpt-neox-sequential-bf16", R"({"use_parallel_residual": true})", kLeaves},
    {"gpt-neox-sequential-bf16", R"({"num_attention_heads": 4})", kLeaves},
    {"phi-f16", R"({"hidden_act": "gelu"})", kLeavesBarely},
    {"phi-f16", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", kLeaves},
    {"phi-f16", R"({"qk_layernorm": true})", "qk_layernorm is true: not supported"},
    {"stablelm-bf16", R"({"use_parallel_residual": true})", kLeaves},
    {"stablelm-bf16", R"({"qk_layernorm": true})", "qk_layernorm is true: not supported"},
    {"stablelm-bf16", R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", kLeaves},
    {"stablelm-parallel-f16", R"({"use_parallel_residual": null})",
     "post_attention_layernorm.weight [48] is missing"},
    {"falcon-f16", R"({"activation": "gelu_new"})", kLeavesBarely},
    {"falcon-f16", R"({"num_kv_heads": 1})", kStays},
    {"falcon-f16", R"({"multi_query": false})", "multi_query is false: not supported"},
    {"falcon-f16", R"({"parallel_attn": false})", "parallel_attn is false: not supported"},
    {"falcon-f16", R"({"new_decoder_architecture": true})", "new_decoder_architecture is true"},
    {"falcon-f16", R"({"alibi": true})", "alibi is true: not supported"},
    {"falcon-f16", R"({"bias": true})", "bias is true: not supported"},
    {"falcon-f16", R"({"ffn_hidden_size": null})", kStays},
    {"starcoder2-window-f16", R"({"sliding_window": 6})", kLeaves},
    {"starcoder2-window-f16", R"({"sliding_window": 8})", kLeaves},
    {"starcoder2-window-f16", R"({"sliding_window": null})", kLeaves},
    {"starcoder2-window-f16", R"({"norm_epsilon": 0.01})", kLeaves},
    {"starcoder2-window-f16", R"({"hidden_act": "gelu"})", kLeavesBarely},
    {"cohere-bf16", R"({"logit_scale": 0.31})", kLeaves},
    {"cohere-bf16", R"({"logit_scale": null})", kLeaves},     // 0.0625
    {"cohere-bf16", R"({"rope_parameters": null})", kStays},  // 500000
    {"cohere-bf16", R"({"rope_parameters": {"rope_theta": 4e5}})", kLeaves},
    {"cohere-bf16", R"({"use_qk_norm": true})", "q_norm.weight [36] is missing"},
    {"cohere-head-norms-f16", R"({"layer_norm_eps": 0.01})", kLeaves},
    {"cohere2-f16", R"({"sliding_window": 4})", kLeaves},
    {"cohere2-f16", R"({"sliding_window": 6})", kLeaves},
    {"cohere2-f16", R"({"layer_types": null})", kStays},
    {"cohere2-f16", R"({"layer_types": null, "sliding_window_pattern": 5})", kLeaves},
    {"cohere2-f16", R"({"logit_scale": 0.31})", kLeaves},
};

INSTANTIATE_TEST_SUITE_P(Table, ConfigChange, testing::ValuesIn(kChanges));

// What no key says: a field of the blocks, or a weight of theirs, that is left out.
TEST(GptOss, EachPartShowsInTheLogits) {
  const FixtureModel fixture = fixture_model("models/gpt-oss-bf16");
  const auto backend = make_cpu_backend();
  const auto error_of = [&](const auto& change) {
    Model model = load_model(fixture.path, *backend);
    for (size_t i = 0; i < model.spec.layers.size(); ++i) {
      change(model.spec.layers[i], model.weights.layers[i]);
    }
    Session session(model, *backend, {.kv_dtype = DType::F32});
    return max_difference(session.eval_all(fixture.ids), fixture.logits) / rms(fixture.logits);
  };
  EXPECT_LE(error_of([](LayerSpec&, LayerWeights&) {}), 1e-4);
  EXPECT_GT(error_of([](LayerSpec&, LayerWeights& w) { w.sinks = {}; }), 1e-3);
  EXPECT_GT(error_of([](LayerSpec&, LayerWeights& w) { w.moe.router_bias = {}; }), 1e-3);
  EXPECT_GT(error_of([](LayerSpec&, LayerWeights& w) { w.wo.bias = {}; }), 1e-3);
  for (Linear Expert::*part : {&Expert::w_gate, &Expert::w_up, &Expert::w_down}) {
    EXPECT_GT(error_of([part](LayerSpec&, LayerWeights& w) {
                for (Expert& expert : w.moe.experts) (expert.*part).bias = {};
              }),
              1e-3);
  }
  // A softmax of all experts' logits, of which the chosen ones are taken.
  EXPECT_GT(error_of([](LayerSpec& layer, LayerWeights&) { layer.renormalizes_experts = false; }),
            1e-3);
  EXPECT_GT(error_of([](LayerSpec& layer, LayerWeights&) {
              layer.activation = Activation::Silu;
              layer.swiglu_alpha = layer.swiglu_limit = 0;
            }),
            1e-3);
}

// longrope has one list of divisors for texts up to the original context and one for longer ones.
// A session takes the list of its own length.
TEST(LongRope, ChoosesByTheLengthOfTheSession) {
  const FixtureModel fixture = fixture_model("models/phi3-longrope-f16");
  const auto expected =
      nlohmann::json::parse(read_file(std::filesystem::path(fixture.path) / "expected_short.json"));
  const auto ids = expected.at("ids").get<std::vector<TokenId>>();
  std::vector<double> reference;
  for (const auto& row : expected.at("logits")) {
    for (const double logit : row) reference.push_back(logit);
  }
  const auto backend = make_cpu_backend();
  const Model model = load_model(fixture.path, *backend);
  const auto error_with = [&](int64_t max_seq_len) {
    Session session(model, *backend, {.max_seq_len = max_seq_len, .kv_dtype = DType::F32});
    return max_difference(session.eval_all(ids), reference) / rms(reference);
  };
  EXPECT_LE(error_with(13), 1e-4);
  EXPECT_GT(error_with(14), 1e-3);
}

}  // namespace
}  // namespace minfer::test
