#include "models/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "loaders/hf_config.h"
#include "models/config_reader.h"
#include "models/families/family.h"
#include "models/hf_config_text.h"
#include "models/model.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_models.h"
#include "tests/support/small_models.h"

namespace minfer::test {
namespace {

using Value = Metadata::Value;
using Texts = std::vector<std::string>;

enum class Kind { HfLlama, HfGpt2, GgufLlama };

MemorySource make_source(Kind kind) {
  switch (kind) {
    case Kind::HfLlama:
      return small_hf_llama();
    case Kind::HfGpt2:
      return small_hf_gpt2();
    case Kind::GgufLlama:
      return small_gguf_llama();
  }
  throw Error(ErrorKind::Internal, "make_source");
}

TEST(ModelSpec, ReadsHuggingFaceLlamaWithItsDefaults) {
  const ModelSpec c = check_model(small_hf_llama());
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.dim, 16);
  EXPECT_EQ(c.layer(1).ffn_dim, 24);
  EXPECT_EQ(c.n_layers(), 2);
  EXPECT_EQ(c.layer(1).n_heads, 4);
  EXPECT_EQ(c.layer(1).n_kv_heads, 2);
  EXPECT_EQ(c.layer(1).head_dim, 4);
  EXPECT_EQ(c.ropes[0].rotary_dim, 4);
  EXPECT_EQ(c.vocab_size, 40);
  EXPECT_EQ(c.trained_seq_len, 64);
  EXPECT_EQ(c.layer(1).norm_eps, 1e-6f);
  EXPECT_EQ(c.ropes[0].theta, 10000);
  EXPECT_EQ(c.ropes[0].scaling, RopeScaling::None);
  LayerSpec expected{.n_heads = 4, .n_kv_heads = 2, .head_dim = 4, .ffn_dim = 24};
  expected.norm_eps = 1e-6f;
  expected.rope = 0;
  EXPECT_EQ(c.layer(0), expected);  // all else is neutral
  EXPECT_EQ(c.edges, EdgeSpec{.output_norm_eps = 1e-6f});
  EXPECT_FALSE(c.tied_output);
}

TEST(ModelSpec, ReadsHuggingFaceGpt2WithItsDefaults) {
  const ModelSpec c = check_model(small_hf_gpt2());
  EXPECT_EQ(c.family, "gpt2");
  EXPECT_EQ(c.layer(1).ffn_dim, 64);
  EXPECT_EQ(c.layer(1).n_kv_heads, 4);
  EXPECT_EQ(c.trained_seq_len, 32);
  EXPECT_EQ(c.layer(1).norm_eps, 1e-5f);
  EXPECT_EQ(c.layer(1).activation, Activation::GeluTanh);
  EXPECT_EQ(c.layer(1).norm, NormKind::Layer);
  EXPECT_FALSE(c.layer(1).gated);
  EXPECT_TRUE(c.layer(1).qkv_bias && c.layer(1).attn_out_bias && c.layer(1).ffn_bias);
  EXPECT_EQ(c.layer(1).rope, -1);
  EXPECT_EQ(c.edges.output_norm, NormKind::Layer);
  EXPECT_TRUE(c.tied_output && c.edges.learned_positions);
}

TEST(ModelSpec, ReadsGgufLlama) {
  const ModelSpec c = check_model(small_gguf_llama());
  EXPECT_EQ(c.vocab_size, 40);  // rows of the embedding
  EXPECT_EQ(c.layer(1).n_kv_heads, 2);
  EXPECT_EQ(c.layer(1).norm_eps, 1e-5f);
  EXPECT_TRUE(c.tied_output);
}

TEST(ModelSpec, ReadsRopeScalingUnderItsOldAndNewNames) {
  for (const std::string prefix : {"rope_scaling.", "rope_parameters."}) {
    MemorySource source = small_hf_llama();
    source.metadata.set(prefix + "rope_type", std::string("llama3"));
    source.metadata.set(prefix + "factor", 8.0);
    source.metadata.set(prefix + "low_freq_factor", int64_t{1});
    source.metadata.set(prefix + "high_freq_factor", 4.0);
    source.metadata.set(prefix + "original_max_position_embeddings", int64_t{32});
    const ModelSpec c = check_model(source);
    EXPECT_EQ(c.ropes[0].scaling, RopeScaling::Llama3);
    EXPECT_EQ(c.ropes[0].factor, 8);
    EXPECT_EQ(c.ropes[0].original_seq_len, 32);
  }
  MemorySource source = small_hf_llama();
  source.metadata.set("rope_scaling.type", std::string("linear"));
  source.metadata.set("rope_scaling.factor", 2.0);
  source.metadata.set("rope_parameters.rope_theta", 5e5);
  const ModelSpec c = check_model(source);
  EXPECT_EQ(c.ropes[0].scaling, RopeScaling::Linear);
  EXPECT_EQ(c.ropes[0].factor, 2);
  EXPECT_EQ(c.ropes[0].theta, 5e5);
}

TEST(ModelSpec, TakesMistralWhereItIsALlama) {
  MemorySource source = small_hf_llama();
  source.metadata.set("architectures", Texts{"MistralForCausalLM"});
  EXPECT_NO_THROW(check_model(source));
  source.metadata.set("sliding_window", int64_t{64});  // no position can look past it
  EXPECT_NO_THROW(check_model(source));
}

TEST(ModelSpec, TakesValuesThatChangeNothing) {
  MemorySource source = small_hf_llama();
  source.metadata.set("logits_scaling", int64_t{1});
  source.metadata.set("attention_multiplier", 0.5);
  source.metadata.set("layer_types", Texts{"full_attention", "full_attention"});
  EXPECT_NO_THROW(check_model(source));
}

struct Refusal {
  const char* name;
  Kind kind;
  const char* key;
  Value value;
  const char* message;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, ByNameBeforeWeightsAreRead) {
  MemorySource source = make_source(GetParam().kind);
  source.metadata.set(GetParam().key, GetParam().value);
  expect_error(ErrorKind::Input, cat("memory: ", GetParam().message), [&] { check_model(source); });
  EXPECT_EQ(source.n_reads, 0);
}

Value text(const char* value) { return std::string(value); }
Value whole(int64_t value) { return value; }

const Refusal kRefusals[] = {
    {"Architecture", Kind::HfLlama, "architectures", Texts{"T5ForConditionalGeneration"},
     "key architectures is \"T5ForConditionalGeneration\": not supported (supported: "
     "MixtralForCausalLM, LlamaForCausalLM, MistralForCausalLM, GPT2LMHeadModel, "
     "Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM, Phi3ForCausalLM, "},
    {"TwoArchitectures", Kind::HfLlama, "architectures", Texts{"A", "B"},
     "key architectures has 2 entries, expected 1"},
    {"NoLayers", Kind::HfLlama, "num_hidden_layers", whole(0),
     "key num_hidden_layers is 0, expected 1 to 1024"},
    {"TooManyLayers", Kind::HfLlama, "num_hidden_layers", whole(1025),
     "key num_hidden_layers is 1025, expected 1 to 1024"},
    {"FractionalLayers", Kind::HfLlama, "num_hidden_layers", 2.0,
     "key num_hidden_layers is a number, expected an integer"},
    {"WideModel", Kind::HfLlama, "hidden_size", whole((1 << 20) + 1),
     "key hidden_size is 1048577, expected 1 to 1048576"},
    {"ManyHeads", Kind::HfLlama, "num_attention_heads", whole(4097),
     "key num_attention_heads is 4097, expected 1 to 4096"},
    {"KvHeadsThatDoNotDivide", Kind::HfLlama, "num_key_value_heads", whole(3),
     "4 heads are no multiple of 3 key/value heads"},
    {"HeadsThatDoNotDivide", Kind::HfLlama, "hidden_size", whole(18),
     "key hidden_size: width 18 is no multiple of 4 heads"},
    {"OddHeadSize", Kind::HfLlama, "head_dim", whole(5),
     "head size 5, expected an even number from 2 to 1024"},
    {"LargeHeadSize", Kind::HfLlama, "head_dim", whole(1026),
     "key head_dim is 1026, expected 2 to 1024"},
    {"LargeFfn", Kind::HfLlama, "intermediate_size", whole((1 << 22) + 1),
     "key intermediate_size is 4194305, expected 1 to 4194304"},
    {"LargeVocabulary", Kind::HfLlama, "vocab_size", whole((1 << 24) + 1),
     "key vocab_size is 16777217, expected 1 to 16777216"},
    {"LongContext", Kind::HfLlama, "max_position_embeddings", whole((int64_t{1} << 31) + 1),
     "key max_position_embeddings is 2147483649, expected 1 to 2147483648"},
    {"ZeroEps", Kind::HfLlama, "rms_norm_eps", 0.0, ""},
    {"EpsOfOne", Kind::HfLlama, "rms_norm_eps", 1.0, ""},
    {"ZeroTheta", Kind::HfLlama, "rope_theta", 0.0, ""},
    {"InfiniteTheta", Kind::HfLlama, "rope_theta", HUGE_VAL, ""},
    {"Activation", Kind::HfLlama, "hidden_act", text("gelu"),
     "key hidden_act is \"gelu\": not supported (supported: silu, swish)"},
    {"RopeType", Kind::HfLlama, "rope_scaling.type", text("su"),
     "key rope_scaling.type is \"su\": not supported (supported: default, linear, llama3, dynamic, "
     "yarn, longrope)"},
    {"YarnRopeWithoutFactor", Kind::HfLlama, "rope_parameters.rope_type", text("yarn"),
     "key rope_parameters.factor is missing"},
    {"LongRopeWithoutFactors", Kind::HfLlama, "rope_scaling.rope_type", text("longrope"),
     "key rope_scaling.short_factor is missing"},
    {"LayersWithoutRope", Kind::HfLlama, "no_rope_layers", std::vector<int64_t>{1, 0},
     "key no_rope_layers is there: not supported"},
    {"RopeWithoutFactor", Kind::HfLlama, "rope_scaling.type", text("linear"),
     "key rope_scaling.factor is missing"},
    {"SlidingWindow", Kind::HfLlama, "sliding_window", whole(63),
     "key sliding_window is 63: attention windows below the context of 64 are not supported "
     "(supported: none)"},
    {"SlidingLayers", Kind::HfLlama, "layer_types", Texts{"full_attention", "sliding_attention"},
     "key layer_types is \"sliding_attention\": not supported (supported: full_attention)"},
    {"PartialRotation", Kind::HfLlama, "partial_rotary_factor", 0.5,
     "key partial_rotary_factor is 0.5: not supported (supported: 1)"},
    {"Experts", Kind::HfLlama, "num_local_experts", whole(8),
     "key num_local_experts is 8: not supported (supported: 0)"},
    {"LogitsScaling", Kind::HfLlama, "logits_scaling", 8.0,
     "key logits_scaling is 8: not supported (supported: 1)"},
    {"ClippedQkv", Kind::HfLlama, "clip_qkv", 8.0,
     "key clip_qkv is 8: not supported (supported: 0)"},
    {"QkNorm", Kind::HfLlama, "use_qk_norm", true,
     "key use_qk_norm is true: not supported (supported: 0)"},
    {"Gpt2Activation", Kind::HfGpt2, "activation_function", text("relu"),
     "key activation_function is \"relu\": not supported (supported: gelu_new, "
     "gelu_pytorch_tanh, gelu_fast, gelu)"},
    {"Gpt2UnscaledAttention", Kind::HfGpt2, "scale_attn_weights", false,
     "key scale_attn_weights is false: not supported (supported: 1)"},
    {"Gpt2ScaleByLayer", Kind::HfGpt2, "scale_attn_by_inverse_layer_idx", true,
     "key scale_attn_by_inverse_layer_idx is true: not supported (supported: 0)"},
    {"Gpt2CrossAttention", Kind::HfGpt2, "add_cross_attention", true,
     "key add_cross_attention is true: not supported (supported: 0)"},
    {"GgufArchitecture", Kind::GgufLlama, "general.architecture", text("rwkv7"),
     "key general.architecture is \"rwkv7\": not supported (supported: llama, gpt2, qwen2, qwen3, "
     "smollm3, phi3, "},
    {"GgufExperts", Kind::GgufLlama, "llama.expert_count", uint64_t{8},
     "key llama.expert_used_count is missing"},
    {"GgufRopeScaling", Kind::GgufLlama, "llama.rope.scaling.type", text("su"),
     "key llama.rope.scaling.type is \"su\": not supported (supported: none, linear, yarn, "
     "longrope)"},
    {"GgufYarnWithoutFactor", Kind::GgufLlama, "llama.rope.scaling.type", text("yarn"),
     "key llama.rope.scale_linear is missing"},
    {"GgufLongRopeWithoutTensors", Kind::GgufLlama, "llama.rope.scaling.type", text("longrope"),
     "key llama.rope.scaling.type is \"longrope\": tensors rope_factors_long.weight and "
     "rope_factors_short.weight are missing"},
    {"GgufAttnFactor", Kind::GgufLlama, "llama.rope.scaling.attn_factor", 1.5,
     "key llama.rope.scaling.attn_factor is 1.5: not supported (supported: 1)"},
    {"GgufValueLength", Kind::GgufLlama, "llama.attention.value_length", uint64_t{8},
     "key llama.attention.value_length is 8: not supported (supported: 4)"},
    {"GgufOddRotation", Kind::GgufLlama, "llama.rope.dimension_count", uint64_t{3},
     "key llama.rope.dimension_count is 3, expected an even number"},
    {"GgufWideRotation", Kind::GgufLlama, "llama.rope.dimension_count", uint64_t{6},
     "key llama.rope.dimension_count is 6, expected 2 to 4"},
    {"GgufBidirectional", Kind::GgufLlama, "llama.attention.causal", false,
     "key llama.attention.causal is false: not supported (supported: 1)"},
    {"GgufSlidingWindow", Kind::GgufLlama, "llama.attention.sliding_window", uint64_t{32},
     "key llama.attention.sliding_window is 32: attention windows below the context of 64 are not "
     "supported (supported: none)"},
    {"GgufUnknownOfPositions", Kind::GgufLlama, "llama.rope.partial_factor", 0.5,
     "key llama.rope.partial_factor is 0.5: not supported"},
    {"GgufUnknownOfAttention", Kind::GgufLlama, "llama.attention.temperature_scale", 0.25,
     "key llama.attention.temperature_scale is 0.25: not supported"},
    {"GgufHeadsPerLayer", Kind::GgufLlama, "llama.attention.head_count", std::vector<int64_t>{4, 2},
     ""},
};

INSTANTIATE_TEST_SUITE_P(Keys, Refused, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(RefusedTensors, AVocabularyIsNoModel) {
  MemorySource source(KeyStyle::Gguf);
  source.metadata = small_gguf_llama().metadata;
  expect_error(ErrorKind::Input, "memory: has no tensors: a vocabulary, not a model",
               [&] { check_model(source); });
}

TEST(RefusedTensors, ABareTensorFileIsNoModel) {
  const MemorySource source(KeyStyle::HuggingFace);
  expect_error(ErrorKind::Input, "memory: has no configuration", [&] { check_model(source); });
}

TEST(RefusedTensors, LongRopeFactors) {
  MemorySource source = small_gguf_llama();
  const auto refuse = [&](const char* message) {
    expect_error(ErrorKind::Input, cat("memory: ", message), [&] { check_model(source); });
  };
  add_random(source, "rope_factors_long.weight", {2});
  refuse("key llama.rope.scaling.original_context_length is missing");
  source.metadata.set("llama.rope.scaling.original_context_length", uint64_t{16});
  refuse("tensor rope_factors_short.weight is missing");
  add_random(source, "rope_factors_short.weight", {3});
  refuse("tensor rope_factors_short.weight: shape [3], expected [2]");
  source.remove("rope_factors_short.weight");
  add_random(source, "rope_factors_short.weight", {2});
  EXPECT_EQ(check_model(source).ropes[0].scaling, RopeScaling::LongRope);
  source.metadata.set("llama.rope.scaling.type", std::string("yarn"));
  refuse("key llama.rope.scaling.type is \"yarn\": not supported with tensors");
}

// As llama.cpp computes it: the scale of cosines and sines from the factor, times attn_factor.
TEST(ModelSpec, ReadsGgufYarn) {
  MemorySource source = small_gguf_llama();
  source.metadata.set("llama.rope.scaling.type", std::string("yarn"));
  source.metadata.set("llama.rope.scaling.factor", 4.0);
  source.metadata.set("llama.rope.scaling.attn_factor", 0.5);
  const double scale = 0.1 * std::log(4.0) + 1;
  const ModelSpec spec = check_model(source);
  EXPECT_DOUBLE_EQ(spec.ropes[0].table_scale, 0.5 * scale);
  EXPECT_EQ(spec.ropes[0].original_seq_len, 64);  // context_length
  EXPECT_EQ(spec.trained_seq_len, 256);
  const std::string key = "llama.rope.scaling.yarn_attn_factor";
  for (const double written : {scale, 1.0}) {
    source.metadata.set(key, written);
    EXPECT_EQ(check_model(source).ropes, spec.ropes);
  }
  source.metadata.set(key, 1.5);
  expect_error(ErrorKind::Input, cat("key ", key, " is 1.5: not supported"),
               [&] { check_model(source); });
}

TEST(ModelSpec, ReadsOllamasNamesOfKeys) {
  MemorySource source = small_gguf_llama();
  const Metadata of_llama = source.metadata;
  for (const auto& [name, value] : of_llama.all()) {
    if (name.starts_with("llama.")) source.metadata.set("gemma3." + name.substr(6), value);
  }
  source.metadata.set("general.architecture", std::string("gemma3"));
  source.metadata.set("gemma3.attention.sliding_window", uint64_t{8});
  source.metadata.set("gemma3.rope.scaling.type", std::string("yarn"));
  source.metadata.set("gemma3.rope.scaling.factor", 4.0);
  const std::pair<const char*, double> keys[] = {{"rope.global.freq_base", 5e5},
                                                 {"rope.local.freq_base", 7e3},
                                                 {"rope.scaling.beta_fast", 16},
                                                 {"rope.scaling.beta_slow", 2},
                                                 {"rope.scaling.extrapolation_factor", 1}};
  for (const auto& [name, value] : keys) source.metadata.set(cat("gemma3.", name), value);
  const ModelSpec spec = read_gguf_spec(source);
  ASSERT_EQ(spec.ropes.size(), 2u);
  EXPECT_EQ(spec.ropes[0].theta, 5e5);
  EXPECT_EQ(spec.ropes[0].beta_fast, 16);
  EXPECT_EQ(spec.ropes[0].beta_slow, 2);
  EXPECT_EQ(spec.ropes[1].theta, 7e3);
  EXPECT_EQ(unknown_gguf_keys(source.metadata, spec), Texts());
  source.metadata.set("gemma3.rope.freq_base", 1e6);
  expect_error(ErrorKind::Input,
               "key gemma3.rope.global.freq_base is 500000, but gemma3.rope.freq_base is",
               [&] { read_gguf_spec(source); });
}

// transformers does not read them; code that does computes the same at 1.
TEST(ModelSpec, TakesWhatTheFirstYarnCheckpointsSay) {
  MemorySource source = small_hf_llama();
  source.metadata.set("rope_scaling.type", std::string("yarn"));
  source.metadata.set("rope_scaling.factor", 4.0);
  const ModelSpec without = check_model(source);
  source.metadata.set("rope_scaling.finetuned", true);
  for (const char* key : {"rope_scaling.attn_factor", "rope_scaling.extrapolation_factor"}) {
    source.metadata.set(key, 1.0);
    EXPECT_EQ(check_model(source).ropes, without.ropes);
    source.metadata.set(key, 2.0);
    expect_error(ErrorKind::Input, cat("key ", key, " is 2: not supported"),
                 [&] { check_model(source); });
    source.metadata.set(key, 1.0);
  }
}

TEST(ModelSpec, LinearScalingStretchesTheContextWhereItIsSaid) {
  MemorySource source = small_hf_llama();
  source.metadata.set("rope_scaling.type", std::string("linear"));
  source.metadata.set("rope_scaling.factor", 4.0);
  const int64_t context = check_model(source).trained_seq_len;
  source.metadata.set("max_sequence_length", 4 * context);
  EXPECT_EQ(check_model(source).trained_seq_len, 4 * context);
  source.metadata.set("max_sequence_length", 5 * context);  // more than the factor gives
  EXPECT_EQ(check_model(source).trained_seq_len, 4 * context);
  source.metadata.set("max_sequence_length", context / 2);
  EXPECT_EQ(check_model(source).trained_seq_len, context);
}

TEST(ModelSpec, MistralHasAWindowUnlessItSaysOtherwise) {
  MemorySource source = small_hf_llama();
  source.metadata.set("architectures", Texts{"MistralForCausalLM"});
  source.metadata.set("max_position_embeddings", int64_t{32768});
  const auto windows = [&] {
    const ModelSpec spec = check_model(source);
    return std::pair(spec.layer(0).window, spec.layer(1).window);
  };
  EXPECT_EQ(windows(), std::pair(int64_t{4096}, int64_t{4096}));  // the default of transformers
  source.metadata.nulls.insert("sliding_window");
  EXPECT_EQ(windows(), std::pair(int64_t{0}, int64_t{0}));
  source.metadata.set("sliding_window", int64_t{1024});
  EXPECT_EQ(windows(), std::pair(int64_t{1024}, int64_t{1024}));
  source.metadata.set("layer_types", Texts{"sliding_attention", "sliding_attention"});
  EXPECT_EQ(windows(), std::pair(int64_t{1024}, int64_t{1024}));
  source.metadata.set("layer_types", Texts{"sliding_attention", "full_attention"});
  expect_error(ErrorKind::Input,
               "key layer_types is \"full_attention\": not supported (supported: "
               "sliding_attention)",
               windows);
}

// Mistral has 8 key/value heads by default, but as many as heads where the key is null.
TEST(ModelSpec, KvHeadsThatAreNullAreAsManyAsHeads) {
  MemorySource source = small_hf_llama();
  Metadata metadata;
  for (const auto& [key, value] : source.metadata.all()) {
    if (key != "num_key_value_heads") metadata.set(key, value);
  }
  metadata.set("architectures", Texts{"MistralForCausalLM"});
  source.metadata = metadata;
  const auto check = [&] { check_model(source); };
  expect_error(ErrorKind::Input, "4 heads are no multiple of 8 key/value heads", check);
  source.metadata.nulls.insert("num_key_value_heads");
  // The weights are those of two.
  expect_error(ErrorKind::Input, "k_proj.weight", check);
}

MemorySource small_hf_qwen(const std::string& hf_class) {
  MemorySource source = small_hf_llama();
  source.metadata.set("architectures", Texts{hf_class});
  source.metadata.set("head_dim", int64_t{4});
  for (int i = 0; i < 2; ++i) {
    const std::string at = cat("model.layers.", i, ".self_attn.");
    if (hf_class == "Qwen3ForCausalLM") {
      for (const char* name : {"q_norm", "k_norm"}) add_random(source, at + name + ".weight", {4});
      continue;
    }
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      add_random(source, at + name + ".bias", {std::string(name) == "q_proj" ? 16 : 8});
    }
  }
  return source;
}

TEST(ModelSpec, ReadsQwen2) {
  MemorySource source = small_hf_qwen("Qwen2ForCausalLM");
  source.metadata.set("sliding_window", int64_t{16});  // off
  const ModelSpec spec = check_model(source);
  EXPECT_EQ(spec.family, "qwen2");
  LayerSpec expected{.n_heads = 4, .n_kv_heads = 2, .head_dim = 4, .ffn_dim = 24};
  expected.norm_eps = 1e-6f;
  expected.rope = 0;
  expected.qkv_bias = true;
  EXPECT_EQ(spec.layer(1), expected);
  source.remove("model.layers.1.self_attn.v_proj.bias");
  expect_error(ErrorKind::Input, "tensor model.layers.1.self_attn.v_proj.bias [8] is missing",
               [&] { check_model(source); });
}

TEST(ModelSpec, ReadsQwensWindows) {
  MemorySource source = small_hf_qwen("Qwen2ForCausalLM");
  source.metadata.set("sliding_window", int64_t{16});
  source.metadata.set("use_sliding_window", true);
  source.metadata.set("max_window_layers", int64_t{1});
  const auto windows = [&] {
    const ModelSpec spec = check_model(source);
    return std::pair(spec.layer(0).window, spec.layer(1).window);
  };
  EXPECT_EQ(windows(), std::pair(int64_t{0}, int64_t{16}));
  source.metadata.set("layer_types", Texts{"sliding_attention", "full_attention"});
  EXPECT_EQ(windows(), std::pair(int64_t{16}, int64_t{0}));
  source.metadata.set("layer_types", Texts{"sliding_attention"});
  expect_error(ErrorKind::Input, "expected one for each of 2 layers", windows);
  source.metadata.set("layer_types", Texts{"sliding_attention", "chunked_attention"});
  expect_error(ErrorKind::Input, "layer_types is \"chunked_attention\": not supported", windows);
}

TEST(ModelSpec, ReadsQwen3) {
  MemorySource source = small_hf_qwen("Qwen3ForCausalLM");
  const ModelSpec spec = check_model(source);
  EXPECT_EQ(spec.family, "qwen3");
  LayerSpec expected{.n_heads = 4, .n_kv_heads = 2, .head_dim = 4, .ffn_dim = 24};
  expected.norm_eps = 1e-6f;
  expected.rope = 0;
  expected.qk_norm = QkNorm::PerHead;
  EXPECT_EQ(spec.layer(1), expected);
  Metadata rest;
  for (const auto& [key, value] : source.metadata.all()) {
    if (key != "head_dim") rest.set(key, value);
  }
  source.metadata = std::move(rest);
  expect_error(ErrorKind::Input, "q_proj.weight: shape [16, 16], expected [512, 16]",
               [&] { check_model(source); });
}

// A key that is null, and one that is not there.
TEST(Gemma2, NullIsNoCapAndNoWindowIsRefused) {
  const std::string path = (fixtures_dir() / "models/gemma2-caps-f16/config.json").string();
  auto config = nlohmann::json::parse(read_file(path));
  const auto read = [&] { return read_hf_spec(parse_hf_config(config.dump())); };
  config.erase("attn_logit_softcapping");
  config.erase("final_logit_softcapping");
  EXPECT_EQ(read().layer(0).attn_softcap, 50);
  EXPECT_EQ(read().edges.logit_softcap, 30);
  config["attn_logit_softcapping"] = config["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(read().layer(0).attn_softcap, 0);
  EXPECT_EQ(read().edges.logit_softcap, 0);
  EXPECT_EQ(read_hf_spec(parse_hf_config(hf_config_text(read(), DType::F16))).layers,
            read().layers);
  config["sliding_window"] = nullptr;
  expect_error(ErrorKind::Input, "key sliding_window is null: not supported", read);
}

// docs/models.md has a line for each family, and each family has a fixture.
TEST(Families, AreInTheDocument) {
  const std::string document = read_file(fixtures_dir() / "../../docs/models.md");
  for (const Family* family : all_families()) {
    const std::string line = cat("\n| `", family->name, "` | `", family->hf_class, "` | `",
                                 family->gguf_architecture, "` |");
    EXPECT_NE(document.find(line), std::string::npos) << line;
    int n_fixtures = 0;
    for (const std::string& name : fixture_models()) {
      const Metadata config = open_source(fixture_model(name).path)->metadata;
      const bool is_hf = config.has("architectures");
      if (is_hf && config.texts("architectures").front() == family->hf_class) ++n_fixtures;
    }
    EXPECT_GT(n_fixtures, 0) << family->name;
  }
}

TEST(RopeFrequencies, LinearDividesAll) {
  RopeSpec c;
  c.rotary_dim = 8;
  c.theta = 10000;
  const std::vector<double> plain = {1, 0.1, 0.01, 0.001};
  const std::vector<double> frequencies = rope_frequencies(c);
  for (size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(frequencies[i], plain[i]);
  c.scaling = RopeScaling::Linear;
  c.factor = 4;
  for (size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(rope_frequencies(c)[i], plain[i] / 4);
}

TEST(RopeFrequencies, DynamicChangesLongerTextsAlone) {
  RopeSpec c{.rotary_dim = 8};
  const std::vector<double> plain = rope_frequencies(c);
  c.scaling = RopeScaling::Dynamic;
  c.factor = 2;
  c.original_seq_len = 100;
  EXPECT_EQ(rope_frequencies(c, 100), plain);
  const std::vector<double> scaled = rope_frequencies(c, 300);
  const double theta = 10000 * std::pow(2.0 * 300 / 100 - 1, 8.0 / 6);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(scaled[i] / std::pow(theta, -double(i) / 4), 1, 1e-14) << i;
  }
}

// The three ranges by wavelength, as the Llama 3.1 reference states them.
TEST(RopeFrequencies, Llama3KeepsShortAndStretchesLongWaves) {
  RopeSpec c;
  c.rotary_dim = 128;
  c.theta = 500000;
  const std::vector<double> plain = rope_frequencies(c);
  c.scaling = RopeScaling::Llama3;
  c.factor = 8;
  c.original_seq_len = 8192;
  const std::vector<double> scaled = rope_frequencies(c);
  int n_kept = 0, n_stretched = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    double expected = plain[i];
    if (wavelength > 8192.0 / 1) {
      expected = plain[i] / 8;
      ++n_stretched;
    } else if (wavelength < 8192.0 / 4) {
      ++n_kept;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
    }
    EXPECT_NEAR(scaled[i], expected, 1e-14 * expected) << i;
  }
  EXPECT_GT(n_kept, 0);
  EXPECT_GT(n_stretched, 0);
}

}  // namespace
}  // namespace minfer::test
