#include <gtest/gtest.h>

#include <map>

#include "loaders/compressed_tensors.h"
#include "loaders/tensor_source.h"
#include "models/hf_config_text.h"
#include "models/quantize/plan.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using namespace test;

// "int4 16", "int8 24", "F32", by name.
std::map<std::string, std::string> types_of(const QuantizePlan& plan) {
  std::map<std::string, std::string> types;
  for (const PlannedTensor& tensor : plan.tensors) {
    const TensorEntry& output = tensor.output;
    types[output.name] =
        !output.quant ? cat(output.dtype)
                      : cat(output.dtype == DType::U4 ? "int4 " : "int8 ", output.quant->group,
                            output.quant->asymmetric ? " asymmetric" : "",
                            tensor.fallback ? " fallback" : "");
  }
  return types;
}

// dim 16, ffn_dim 24: a group of 8 divides both.
TEST(QuantizePlan, TypesByDefault) {
  auto types = types_of(plan_quantization(small_hf_llama(), {.group = 8}));
  EXPECT_EQ(types.at("model.embed_tokens.weight"), "int8 16");
  EXPECT_EQ(types.at("lm_head.weight"), "int8 16");
  EXPECT_EQ(types.at("model.norm.weight"), "F32");
  EXPECT_EQ(types.at("model.layers.1.mlp.down_proj.weight"), "int4 8");
  EXPECT_EQ(types.size(), 21u);

  types = types_of(plan_quantization(small_hf_llama(), {.type = StoredType::Int8, .group = 0}));
  EXPECT_EQ(types.at("model.layers.1.mlp.down_proj.weight"), "int8 24");
  types = types_of(plan_quantization(small_hf_llama(), {.group = 0, .asymmetric = true}));
  EXPECT_EQ(types.at("model.layers.1.mlp.down_proj.weight"), "int4 24 asymmetric");
}

TEST(QuantizePlan, RowsThatAreNoWholeGroupsBecomeInt8) {
  const auto types = types_of(plan_quantization(small_hf_llama(), {.group = 16}));
  EXPECT_EQ(types.at("model.layers.0.mlp.up_proj.weight"), "int4 16");
  EXPECT_EQ(types.at("model.layers.0.mlp.down_proj.weight"), "int8 24 fallback");
}

TEST(QuantizePlan, TiedPairKeepsItsTypeUnlessAsked) {
  EXPECT_EQ(
      types_of(plan_quantization(small_gguf_llama(), {.group = 8})).at("model.embed_tokens.weight"),
      "F32");
  for (const bool head : {false, true}) {
    QuantizeOptions options = {.group = 8};
    (head ? options.head : options.embedding) = StoredType::Int8;
    EXPECT_EQ(
        types_of(plan_quantization(small_gguf_llama(), options)).at("model.embed_tokens.weight"),
        "int8 16");
  }
}

TEST(QuantizePlan, RulesHoldInOrder) {
  QuantizeOptions options = {.group = 8};
  options.rules = {{"*layers.?.mlp*", StoredType::Int8},
                   {"*.1.mlp.up_proj.weight", StoredType::F16},
                   {"*layernorm*", StoredType::BF16},
                   {"lm_head*", StoredType::Int4}};
  const auto types = types_of(plan_quantization(small_hf_llama(), options));
  EXPECT_EQ(types.at("model.layers.0.mlp.up_proj.weight"), "int8 16");
  EXPECT_EQ(types.at("model.layers.1.mlp.up_proj.weight"), "F16");
  EXPECT_EQ(types.at("model.layers.1.input_layernorm.weight"), "BF16");
  EXPECT_EQ(types.at("model.layers.1.self_attn.q_proj.weight"), "int4 8");
  EXPECT_EQ(types.at("lm_head.weight"), "int4 8");
  options.rules = {{"*.9.*", StoredType::Int8}};
  expect_error(ErrorKind::Usage, "*.9.*: fits no tensor",
               [&] { plan_quantization(small_hf_llama(), options); });
}

TEST(QuantizePlan, RefusesWhatTheDirectoryCannotSay) {
  expect_error(ErrorKind::Input, "architecture gpt2",
               [] { plan_quantization(small_hf_gpt2(), {}); });
  MemorySource divisors = small_gguf_llama();
  add_random(divisors, "rope_freqs.weight", {2});
  expect_error(ErrorKind::Input, "rope_freqs.weight", [&] { plan_quantization(divisors, {}); });
  MemorySource partial = small_gguf_llama();
  partial.metadata.set("llama.rope.dimension_count", uint64_t{2});
  expect_error(ErrorKind::Input, "rotates 2 of 4", [&] { plan_quantization(partial, {}); });
  MemorySource biased = small_gguf_llama();
  add_random(biased, "blk.0.attn_q.bias", {16});
  for (const char* name : {"blk.0.attn_k.bias", "blk.0.attn_v.bias"}) add_random(biased, name, {8});
  for (const char* name : {"blk.1.attn_k.bias", "blk.1.attn_v.bias"}) add_random(biased, name, {8});
  add_random(biased, "blk.1.attn_q.bias", {16});
  expect_error(ErrorKind::Input, "biases", [&] { plan_quantization(biased, {}); });
}

// Of a GGUF file, the configuration that is written says what its keys said.
TEST(QuantizePlan, ConfigOfAGgufFileSaysTheSame) {
  for (const char* name : {"gguf-qwen2-yarn", "gguf-smollm3", "gguf-phi3-window", "gguf-mixtral",
                           "gguf-qwen3-moe", "gguf-qwen2-moe", "gguf-olmoe", "gguf-gpt-oss"}) {
    SCOPED_TRACE(name);
    const auto source = open_source(fixtures_dir() / "models" / name / "model.gguf");
    const ModelSpec spec = plan_quantization(*source, {}).spec;
    const TempDir dir;
    const std::string path = dir.write("config.json", hf_config_text(spec, DType::F16));
    const ModelSpec read = plan_quantization(path, {}).spec;
    EXPECT_EQ(read.layers, spec.layers);
    EXPECT_EQ(read.ropes, spec.ropes);
    EXPECT_EQ(read.trained_seq_len, spec.trained_seq_len);
  }
  const auto longrope = open_source(fixtures_dir() / "models/gguf-phi3-longrope/model.gguf");
  expect_error(ErrorKind::Input, "rotates 12 of 16 elements",
               [&] { plan_quantization(*longrope, {}); });
}

// config.json goes along as it is.
TEST(QuantizePlan, TakesPartialRotationFromADirectory) {
  const auto source = open_source(fixtures_dir() / "models/phi3-partial-f16");
  const auto types = types_of(plan_quantization(*source, {.group = 16}));
  EXPECT_EQ(types.at("model.layers.1.self_attn.qkv_proj.weight"), "int4 16");
  EXPECT_EQ(types.at("model.layers.1.mlp.gate_up_proj.weight"), "int4 16");
}

int64_t stored_bytes(const QuantizePlan& plan) {
  const CompressedTensorsLayout layout(plan.outputs());
  int64_t n_bytes = 0;
  for (const TensorEntry& tensor : plan.outputs()) n_bytes += layout.stored_bytes(tensor);
  return n_bytes;
}

TEST(QuantizePlan, Llama2Of7BillionParametersFrom13To4Gigabytes) {
  const TempDir dir;
  const std::string path = dir.write(
      "config.json",
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
          "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "float16"})");
  const QuantizePlan g64 = plan_quantization(path, {});
  int64_t before = 0;
  for (const PlannedTensor& tensor : g64.tensors) before += tensor.source_bytes;
  EXPECT_EQ(before, 13'476'831'232);
  EXPECT_LE(stored_bytes(g64), 3'750'000'000);
  EXPECT_LE(stored_bytes(plan_quantization(path, {.group = 128})), 3'610'000'000);
}

}  // namespace
}  // namespace minfer
