#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "models/model.h"
#include "models/quantize/plan.h"
#include "models/weight_names.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_models.h"

// Checkpoints as they are published: what the tensors say counts where a flag says something else,
// names have other beginnings, and configurations are spelled in several ways.
namespace minfer::test {
namespace {

using Texts = std::vector<std::string>;

HostTensor copy_of(const HostTensor& from) {
  HostTensor copy(from.view().dtype, from.view().shape);
  std::memcpy(copy.view().data, from.view().data, static_cast<size_t>(from.view().n_bytes()));
  return copy;
}

class PublishedModel : public testing::Test {
 protected:
  Model load(const TensorSource& source) { return load_model(source, *backend_); }
  void expect_refused(const TensorSource& source, std::string_view message) {
    expect_error(ErrorKind::Input, message, [&] { load(source); });
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

TEST_F(PublishedModel, AStoredOutputLayerIsUsedWhateverTheFlagSays) {
  MemorySource source = small_hf_llama();
  source.metadata.set("tie_word_embeddings", true);
  const Model other = load(source);
  EXPECT_TRUE(other.weights.output);
  EXPECT_FALSE(other.spec.tied_output);
  EXPECT_EQ(other.warnings,
            Texts{"tensor lm_head.weight: is not the embedding, so it is the output "
                  "layer, though tie_word_embeddings is true"});

  source.add("lm_head.weight", copy_of(source.data("model.embed_tokens.weight")));
  const Model same = load(source);
  EXPECT_FALSE(same.weights.output);
  EXPECT_EQ(same.warnings, Texts{});

  // The last element alone, the type alone.
  source.data("lm_head.weight").as<float>()[639] += 1;
  EXPECT_TRUE(load(source).weights.output);
  source.add("lm_head.weight", random_normal(7, {40, 16}, DType::F16, 0.2f));
  EXPECT_TRUE(load(source).weights.output);

  source.remove("lm_head.weight");
  EXPECT_FALSE(load(source).weights.output);
  source.metadata.set("tie_word_embeddings", false);
  const Model absent = load(source);
  EXPECT_FALSE(absent.weights.output);
  EXPECT_EQ(absent.warnings,
            Texts{"tensor lm_head.weight: is not there, so the output layer is the "
                  "embedding, though tie_word_embeddings is false"});

  // Neither is taken for the other where it is there, but cannot be read.
  MemorySource table = small_hf_llama();
  table.metadata.set("tie_word_embeddings", true);
  table.remove("model.embed_tokens.weight");
  table.unusable["model.embed_tokens.weight"] = "has dtype F8_E4M3";
  expect_refused(table, "tensor model.embed_tokens.weight [40, 16] has dtype F8_E4M3");
  source.unusable["lm_head.weight"] = "has dtype F8_E4M3";
  expect_refused(source, "tensor lm_head.weight [40, 16] has dtype F8_E4M3");
}

TEST_F(PublishedModel, AStoredOutputLayerIsQuantizedToo) {
  MemorySource source = small_hf_llama();
  source.metadata.set("tie_word_embeddings", true);
  const auto has_head = [&] {
    const QuantizePlan plan = plan_quantization(source, {.group = 0});
    return std::ranges::any_of(plan.tensors, [](const PlannedTensor& tensor) {
      return tensor.output.name == "lm_head.weight";
    });
  };
  EXPECT_TRUE(has_head());
  source.add("lm_head.weight", copy_of(source.data("model.embed_tokens.weight")));
  EXPECT_FALSE(has_head());
  source.remove("lm_head.weight");
  source.metadata.set("tie_word_embeddings", false);
  EXPECT_FALSE(has_head());
}

TEST_F(PublishedModel, StoredBiasesAreAddedUnlessTheyAreZero) {
  const Texts inputs = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  const auto with_biases = [&](const Texts& modules, float deviation) {
    MemorySource source = small_hf_llama();
    for (int i = 0; i < 2; ++i) {
      for (const std::string& module : modules) {
        const std::string at = cat("model.layers.", i, ".", module);
        const int64_t n = source.find(at + ".weight")->shape[0];
        add_random(source, at + ".bias", {n}, deviation);
      }
    }
    return source;
  };
  const Texts all = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  const Model zeros = load(with_biases(all, 0));
  EXPECT_FALSE(zeros.weights.layers[0].wq.bias || zeros.weights.layers[1].w_down.bias);
  EXPECT_TRUE(zeros.warnings.empty()) << zeros.warnings[0];

  const Model some = load(with_biases(inputs, 0.5f));
  EXPECT_TRUE(some.weights.layers[0].wq.bias && some.weights.layers[1].wv.bias);
  EXPECT_FALSE(some.weights.layers[0].wo.bias || some.weights.layers[0].w_up.bias);
  EXPECT_EQ(some.warnings, Texts{"queries, keys and values have biases, which are added, though "
                                 "attention_bias is false"});

  MemorySource missing = with_biases(inputs, 0.5f);
  missing.remove("model.layers.1.self_attn.k_proj.bias");
  expect_refused(missing, "tensor model.layers.1.self_attn.k_proj.bias [8] is missing");

  MemorySource qwen = with_biases(inputs, 0.5f);  // no bias in the output, one flag for all
  qwen.metadata.set("attention_bias", true);
  const Model without_output = load(qwen);
  EXPECT_TRUE(without_output.weights.layers[0].wq.bias);
  EXPECT_FALSE(without_output.weights.layers[0].wo.bias);
  EXPECT_EQ(without_output.warnings,
            Texts{"attention outputs have no biases, though attention_bias is true"});
}

TEST_F(PublishedModel, NamesMayBeginOtherwise) {
  for (const std::string prefix : {"", "model.model.", "language_model.model.",
                                   "model.language_model.", "base_model.model.model."}) {
    for (const std::string head : {"lm_head.weight", "language_model.lm_head.weight"}) {
      MemorySource usual = small_hf_llama(), source(KeyStyle::HuggingFace);
      source.metadata = usual.metadata;
      for (const TensorEntry& entry : usual.tensors) {
        const std::string name =
            entry.name == "lm_head.weight" ? head : prefix + entry.name.substr(6);
        source.add(name, std::move(usual.data(entry.name)));
      }
      const Model model = load(source);
      EXPECT_TRUE(model.weights.output) << prefix << head;
      EXPECT_TRUE(model.warnings.empty()) << prefix << model.warnings[0];
    }
  }
  // Of two models in one file none is guessed.
  MemorySource two = small_hf_llama();
  two.remove("model.layers.0.input_layernorm.weight");
  add_random(two, "a.layers.0.input_layernorm.weight", {16});
  add_random(two, "b.layers.0.input_layernorm.weight", {16});
  expect_refused(two, "tensor model.layers.0.input_layernorm.weight [16] is missing");
}

TEST_F(PublishedModel, PackedWeightsWithoutTheirSettingsAreNamed) {
  const std::string module = "model.layers.0.self_attn.q_proj";
  for (const char* part : {".qweight", ".weight_packed", ".weight.absmax"}) {
    MemorySource source = small_hf_llama();
    source.remove(module + ".weight");
    source.unusable[module + part] = "has dtype I32";
    expect_refused(source, cat("tensor ", module, ".weight [16, 16] is missing; ", module, part,
                               " is there: packed weights, which need a quantization_config"));
    source.metadata.set("quantization_config.quant_method", std::string("compressed-tensors"));
    expect_refused(source, "which the quantization_config does not describe");
  }
  MemorySource bytes = small_hf_llama();
  bytes.remove(module + ".weight");
  bytes.unusable[module + ".weight"] = "has dtype I8";
  add_random(bytes, module + ".weight_scale", {16, 1});
  expect_refused(bytes, cat(module, ".weight [16, 16] has dtype I8; ", module, ".weight_scale is"));
}

TEST_F(PublishedModel, OtherTensorsOfAGgufLayerAreRefused) {
  for (const std::string name :
       {"blk.1.attn_q_norm.weight", "blk.0.attn_norm.bias", "blk.0.ffn_gate_inp.weight"}) {
    MemorySource source = small_gguf_llama();
    add_random(source, name, {16});
    expect_refused(source, cat("tensor ", name, ": a layer of architecture llama has no such"));
  }
  MemorySource source = small_gguf_llama();
  add_random(source, "blk.2.attn_q.weight", {16});  // of no layer
  add_random(source, "extra.weight", {16});
  source.unusable["other.weight"] = "has type IQ2_XS";
  EXPECT_EQ(load(source).warnings, Texts{"3 tensors that the model does not use: "
                                         "blk.2.attn_q.weight extra.weight other.weight"});
  MemorySource late = small_gguf_llama();
  add_random(late, "blk.1.attn_k.bias", {8});  // the other layer has none
  expect_refused(late, "tensor blk.0.attn_q.bias [16] is missing");
}

TEST_F(PublishedModel, GgufSizesOfEachLayerAreOneNumberWhereTheyAgree) {
  using Integers = std::vector<int64_t>;
  MemorySource source = small_gguf_llama();
  source.metadata.set("llama.attention.head_count", Integers{4, 4});
  source.metadata.set("llama.attention.head_count_kv", Integers{2, 2});
  source.metadata.set("llama.feed_forward_length", Integers{24, 24});
  const LayerSpec layer = check_model(source).layer(1);
  EXPECT_EQ(layer.n_heads, 4);
  EXPECT_EQ(layer.n_kv_heads, 2);
  EXPECT_EQ(layer.ffn_dim, 24);
  EXPECT_TRUE(load(source).warnings.empty());
  for (const char* key :
       {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    MemorySource uneven = small_gguf_llama();
    uneven.metadata.set(cat("llama.", key), Integers{4, 2});
    expect_refused(uneven,
                   cat("key llama.", key,
                       " has 2 values: [4, 2]: layers of different sizes are not supported"));
    uneven.metadata.set(cat("llama.", key), Integers{});
    expect_refused(uneven, cat("key llama.", key, " has no values"));
  }
}

TEST_F(PublishedModel, ATokenizerMayHaveMoreTokensThanTheEmbeddingHasRows) {
  for (const int64_t n_rows : {260, 259, 240, 300}) {
    MemorySource source = small_gguf_llama({.vocab_size = n_rows});
    const Metadata vocabulary = byte_vocabulary({"<s>", "</s>"});
    for (const auto& [key, value] : vocabulary.all()) {
      source.metadata.set(key, value);
    }
    const Model model = load(source);
    EXPECT_EQ(model.n_usable_tokens(), std::min<int64_t>(n_rows, 260));
    const std::string warning =
        cat("the tokenizer has 260 tokens, the embedding ", n_rows, " rows: ids from ", n_rows,
            " on are never produced, and refused in a prompt");
    EXPECT_EQ(model.warnings, n_rows < 260 ? Texts{warning} : Texts{});
  }
}

TEST(PublishedConfig, RopeIsReadAsTransformersReadsIt) {
  const auto rope = [](const std::function<void(Metadata&)>& change) {
    MemorySource source = small_hf_llama();
    change(source.metadata);
    return check_model(source).ropes.front();
  };
  const std::string old_root = "rope_scaling.", new_root = "rope_parameters.";
  EXPECT_EQ(rope([&](Metadata& m) {
              m.set(new_root + "rope_theta", 9.0);
              m.set("rope_theta", 7.0);
            }).theta,
            9);
  // Where both are there, the older one counts.
  const RopeSpec both = rope([&](Metadata& m) {
    m.set(new_root + "rope_type", std::string("default"));
    m.set(old_root + "type", std::string("linear"));
    m.set(old_root + "factor", 2.0);
  });
  EXPECT_EQ(both.scaling, RopeScaling::Linear);
  const RopeSpec llama3 = rope([&](Metadata& m) {
    m.set(new_root + "rope_type", std::string("llama3"));
    for (const char* key : {"factor", "low_freq_factor"}) m.set(new_root + key, 1.5);
    m.set(new_root + "high_freq_factor", 4.0);
  });
  EXPECT_EQ(llama3.original_seq_len, 64);  // max_position_embeddings
  EXPECT_EQ(rope([&](Metadata& m) {
              m.set(old_root + "rope_type", std::string("default"));
              m.set(old_root + "factor", 8.0);
            }).scaling,
            RopeScaling::None);
}

TEST(PublishedConfig, RopeKeysThatAreNotKnownAreRefused) {
  const auto refuse = [](const std::string& key, Metadata::Value value, const char* message) {
    MemorySource source = small_hf_llama();
    source.metadata.set(key, std::move(value));
    expect_error(ErrorKind::Input, message, [&] { check_model(source); });
  };
  refuse("rope_parameters.mscale", 2.0, "key rope_parameters is \"mscale\": not supported");
  refuse("rope_scaling.attention_factor", 2.0, "key rope_scaling is \"attention_factor\"");
  refuse("rope_parameters.full_attention.rope_theta", 1e6,
         "key rope_parameters.full_attention is an object: not supported");
  refuse("rope_scaling.partial_rotary_factor", 0.5, "rope_scaling.partial_rotary_factor is 0.5");
}

TEST(PublishedConfig, ValuesOfUnusedKeysDoNotMatter) {
  MemorySource source = small_hf_llama();
  source.metadata.set("sliding_window", HUGE_VAL);  // "Infinity"
  source.metadata.set("time_step_limit", std::vector<double>{0, HUGE_VAL});
  source.metadata.set("initializer_range", std::nan(""));
  EXPECT_EQ(check_model(source).n_layers(), 2);
  source.metadata.set("rms_norm_eps", std::nan(""));
  expect_error(ErrorKind::Input, "key rms_norm_eps is nan", [&] { check_model(source); });
}

TEST(PublishedConfig, UnknownKeysAreNamed) {
  MemorySource source = small_hf_llama();
  for (const char* key :
       {"use_cache", "pretraining_tp", "_name_or_path", "quantization_config.bits"}) {
    source.metadata.set(key, int64_t{1});
  }
  const ModelSpec config = check_model(source);
  EXPECT_EQ(unknown_config_keys(source, config), Texts{});
  source.metadata.set("novel_attention.kind", int64_t{1});
  source.metadata.set("novel_attention.size", int64_t{1});
  source.metadata.set("xyz", true);
  EXPECT_EQ(unknown_config_keys(source, config), (Texts{"novel_attention", "xyz"}));
}

TEST(PublishedConfig, FlagsMayBeNumbers) {
  MemorySource source = small_hf_llama();
  source.metadata.set("tie_word_embeddings", uint64_t{0});
  EXPECT_FALSE(check_model(source).tied_output);
  source.metadata.set("mlp_bias", int64_t{0});
  EXPECT_FALSE(check_model(source).layer(0).ffn_bias);
  for (const Metadata::Value& value : {Metadata::Value(uint64_t{2}), Metadata::Value(int64_t{-1}),
                                       Metadata::Value(1.0), Metadata::Value(std::string("no"))}) {
    source.metadata.set("mlp_bias", value);
    expect_error(ErrorKind::Input, "expected a boolean", [&] { check_model(source); });
  }
}

}  // namespace
}  // namespace minfer::test
