#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "models/card_memory.h"
#include "models/host_memory.h"
#include "models/model.h"
#include "models/synthetic.h"
#include "models/weight_layout.h"
#include "models/weight_list.h"
#include "tests/support/expect_error.h"
#include "tests/support/half_backend.h"
#include "tests/support/small_models.h"

namespace minfer::test {
namespace {

class LoadModel : public testing::Test {
 protected:
  void expect_refused(const TensorSource& source, std::string_view message) {
    expect_error(ErrorKind::Input, message, [&] { load_model(source, *backend_); });
  }
  // Rows of a packed matrix, looked up as a table.
  std::vector<float> rows_of(const Matrix& matrix) {
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < matrix.out_dim; ++i) ids.push_back(static_cast<TokenId>(i));
    const DeviceTensor out = poisoned(*backend_, {matrix.out_dim, matrix.in_dim});
    backend_->embed(out, matrix, ids);
    return values_of(*backend_, out);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

TEST_F(LoadModel, SaysWhatItLoaded) {
  const MemorySource source = small_hf_llama();
  int64_t last_done = 0, total = 0;
  LoadOptions options;
  options.progress = [&](int64_t done, int64_t of) {
    EXPECT_GT(done, last_done);
    last_done = done;
    total = of;
  };
  const Model model = load_model(source, *backend_, options);
  const int64_t per_layer = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 2 * 16;
  EXPECT_EQ(model.n_params, 2 * 40 * 16 + 2 * per_layer + 16);
  EXPECT_EQ(model.file_bytes, 4 * model.n_params);
  EXPECT_EQ(last_done, model.file_bytes);
  EXPECT_EQ(total, model.file_bytes);
  // All weights once, but of the embedding one row; the backend may pad each of the 15 matrices by
  // less than 16 rows.
  const int64_t n_bytes = 4 * (model.n_params - 39 * 16);
  EXPECT_GE(model.bytes_per_token, n_bytes);
  EXPECT_LT(model.bytes_per_token, n_bytes + 4 * 15 * 16 * 24);
  EXPECT_EQ(model.description, "llama 5K F32");
  EXPECT_EQ(model.weight_types, "F32");
  EXPECT_EQ(model.tokenizer, nullptr);
  EXPECT_TRUE(model.warnings.empty());
  EXPECT_TRUE(source.checked);
}

TEST_F(LoadModel, NamesAMissingTensor) {
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight",
                           "model.norm.weight", "model.layers.0.input_layernorm.weight"}) {
    MemorySource source = small_hf_llama();
    source.remove(name);
    expect_refused(source, cat("memory: tensor ", name, " ["));
    EXPECT_EQ(source.n_reads, 0);
  }
}

TEST_F(LoadModel, SaysWhyATensorIsUnusable) {
  MemorySource source = small_hf_llama();
  source.remove("model.norm.weight");
  source.unusable["model.norm.weight"] = "has dtype I64";
  expect_refused(source, "memory: tensor model.norm.weight [16] has dtype I64");
}

TEST_F(LoadModel, NamesATensorOfAnotherShape) {
  MemorySource source = small_hf_llama();
  add_random(source, "model.layers.1.self_attn.k_proj.weight", {16, 16});
  expect_refused(source,
                 "memory: tensor model.layers.1.self_attn.k_proj.weight: shape [16, 16], expected "
                 "[8, 16]");
  EXPECT_EQ(source.n_reads, 0);
}

TEST_F(LoadModel, NamesTheElementThatIsNotFinite) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    MemorySource source = small_hf_llama();
    source.data("model.layers.0.mlp.up_proj.weight").as<float>()[383] = bad;
    source.data("model.layers.0.mlp.down_proj.weight").as<float>()[0] = bad;  // read meanwhile
    expect_refused(source,
                   "memory: tensor model.layers.0.mlp.up_proj.weight: element 383 is not a finite "
                   "number");
  }
}

TEST_F(LoadModel, NamesSurplusTensorsButNoBuffers) {
  MemorySource source = small_hf_llama();
  add_random(source, "model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  EXPECT_TRUE(load_model(source, *backend_).warnings.empty());
  add_random(source, "model.layers.0.self_attn.q_norm.weight", {4});
  const Model model = load_model(source, *backend_);
  ASSERT_EQ(model.warnings.size(), 1u);
  EXPECT_EQ(model.warnings[0],
            "1 tensors that the model does not use: model.layers.0.self_attn.q_norm.weight");
}

// Converters write one matrix for three in some architectures, or three, whatever is usual there.
TEST_F(LoadModel, TakesQueriesKeysAndValuesInEitherForm) {
  const MemorySource apart = small_gguf_llama();
  MemorySource together = small_gguf_llama();
  for (const char* layer : {"blk.0.", "blk.1."}) {
    HostTensor all(DType::F32, {16 + 8 + 8, 16});
    float* to = all.as<float>();
    for (const char* part : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) {
      const Tensor rows = together.data(cat(layer, part)).view();
      to = std::copy_n(rows.as<const float>(), rows.n_elements(), to);
      together.remove(cat(layer, part));
    }
    together.add(cat(layer, "attn_qkv.weight"), std::move(all));
  }
  const Model want = load_model(apart, *backend_), got = load_model(together, *backend_);
  for (size_t i = 0; i < 2; ++i) {
    const LayerWeights &a = got.weights.layers[i], &b = want.weights.layers[i];
    EXPECT_EQ(rows_of(a.wq.weight), rows_of(b.wq.weight));
    EXPECT_EQ(rows_of(a.wk.weight), rows_of(b.wk.weight));
    EXPECT_EQ(rows_of(a.wv.weight), rows_of(b.wv.weight));
  }
  EXPECT_TRUE(got.warnings.empty());
  // Phi-3's architecture has one matrix, and this file three.
  MemorySource phi3 = small_gguf_llama();
  const Metadata of_llama = phi3.metadata;
  for (const auto& [name, value] : of_llama.all()) {
    if (name.starts_with("llama.")) phi3.metadata.set("phi3." + name.substr(6), value);
  }
  phi3.metadata.set("general.architecture", std::string("phi3"));
  for (const char* layer : {"blk.0.", "blk.1."}) {
    phi3.remove(cat(layer, "ffn_gate.weight"));
    add_random(phi3, cat(layer, "ffn_up.weight"), {48, 16});
  }
  add_random(phi3, "output.weight", {40, 16});
  EXPECT_EQ(rows_of(load_model(phi3, *backend_).weights.layers[1].wv.weight),
            rows_of(want.weights.layers[1].wv.weight));
}

TEST_F(LoadModel, NamesKeysThatItDoesNotKnow) {
  MemorySource source = small_gguf_llama();
  source.metadata.set("llama.rope.scaling.finetuned", true);
  source.metadata.set("tokenizer.ggml.pre", std::string("x"));
  EXPECT_TRUE(load_model(source, *backend_).warnings.empty());
  source.metadata.set("llama.novel_attention", true);
  EXPECT_EQ(load_model(source, *backend_).warnings,
            std::vector<std::string>{"1 keys that minfer does not know: llama.novel_attention"});
}

TEST_F(LoadModel, TakesATiedPairUnderEitherName) {
  MemorySource source = small_hf_llama();
  source.metadata.set("tie_word_embeddings", true);
  source.remove("model.embed_tokens.weight");
  const Model model = load_model(source, *backend_);
  EXPECT_FALSE(model.weights.output);
  EXPECT_EQ(rows_of(model.weights.embedding).size(), 640u);
  source.remove("lm_head.weight");
  expect_refused(source, "memory: tensor model.embed_tokens.weight [40, 16] is missing");
}

// Values count from 0 through the tensor, so that a row's place shows in them.
HostTensor counting(const Shape& shape) {
  HostTensor tensor(DType::F32, shape);
  for (int64_t i = 0; i < shape.n_elements(); ++i) tensor.as<float>()[i] = static_cast<float>(i);
  return tensor;
}

TEST_F(LoadModel, PutsRotaryPairsIntoHalves) {
  MemorySource source = small_gguf_llama();
  source.add("blk.0.attn_q.weight", counting({16, 16}));
  source.add("blk.0.attn_k.weight", counting({8, 16}));
  source.add("blk.0.attn_v.weight", counting({8, 16}));
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    for (int i = 0; i < 2; ++i) {
      source.add(cat("blk.", i, ".", name, ".bias"),
                 counting({std::string(name) == "attn_q" ? 16 : 8}));
    }
  }
  const Model model = load_model(source, *backend_);
  const LayerWeights& layer = model.weights.layers[0];
  // Heads of four rows: 0 1 2 3 become 0 2 1 3.
  const int order[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  const auto q = rows_of(layer.wq.weight), k = rows_of(layer.wk.weight),
             v = rows_of(layer.wv.weight);
  const auto bq = values_of(*backend_, layer.wq.bias), bk = values_of(*backend_, layer.wk.bias),
             bv = values_of(*backend_, layer.wv.bias);
  for (size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(q[row * 16], float(order[row] * 16));
    EXPECT_EQ(bq[row], float(order[row]));
    if (row >= 8) continue;
    EXPECT_EQ(k[row * 16], float(order[row] * 16));
    EXPECT_EQ(bk[row], float(order[row]));
    EXPECT_EQ(v[row * 16], float(row * 16));
    EXPECT_EQ(bv[row], float(row));
  }
}

TEST_F(LoadModel, SplitsAndTransposesGpt2Projections) {
  MemorySource source = small_hf_gpt2();
  source.add("transformer.h.0.attn.c_attn.weight", counting({16, 48}));
  source.add("transformer.h.0.attn.c_attn.bias", counting({48}));
  const Model model = load_model(source, *backend_);
  const LayerWeights& layer = model.weights.layers[0];
  const Linear* const linears[] = {&layer.wq, &layer.wk, &layer.wv};
  for (size_t part = 0; part < 3; ++part) {
    const auto rows = rows_of(linears[part]->weight),
               bias = values_of(*backend_, linears[part]->bias);
    for (size_t out = 0; out < 16; ++out) {
      EXPECT_EQ(bias[out], float(part * 16 + out));
      for (size_t in = 0; in < 16; ++in) {
        EXPECT_EQ(rows[out * 16 + in], float(in * 48 + part * 16 + out));
      }
    }
  }
}

TEST_F(LoadModel, ReadsRopeDivisors) {
  MemorySource source = small_gguf_llama();
  source.add("rope_freqs.weight", from_values({1, 8}, {2}));
  const Model model = load_model(source, *backend_);
  EXPECT_EQ(model.spec.ropes[0].divisors, (std::vector<double>{1, 8}));
  EXPECT_DOUBLE_EQ(rope_frequencies(model.spec.ropes[0])[1], 0.01 / 8);
  source.add("rope_freqs.weight", from_values({1, 0}, {2}));
  expect_refused(source, "memory: tensor rope_freqs.weight: element 1 is 0, expected more than 0");
  source.add("rope_freqs.weight", from_values({1, 1, 1}, {3}));
  expect_refused(source, "memory: tensor rope_freqs.weight: shape [3], expected [2]");
}

TEST(WeightLayout, RotatedPartMovesAndTheRestStays) {
  const HostTensor out = rope_pairs_to_halves(counting({12, 1}), 2, 4);
  const std::vector<float> expected = {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11};
  EXPECT_EQ(std::vector<float>(out.as<float>(), out.as<float>() + 12), expected);
}

TEST(WeightLayout, FindsWhatIsNotFiniteInEveryType) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    HostTensor tensor = random_normal(1, {5000}, dtype);
    const float large = dtype == DType::F16 ? 65504.0f : 3.3e38f;  // the largest finite exponent
    visit_float(dtype, [&]<typename T>() {
      tensor.as<T>()[3] = from_f32<T>(large);
      tensor.as<T>()[4] = from_f32<T>(-large);
    });
    EXPECT_EQ(first_non_finite(tensor), -1) << dtype;
    visit_float(dtype, [&]<typename T>() { tensor.as<T>()[4999] = from_f32<T>(HUGE_VALF); });
    EXPECT_EQ(first_non_finite(tensor), 4999) << dtype;
    visit_float(dtype, [&]<typename T>() { tensor.as<T>()[17] = from_f32<T>(std::nanf("")); });
    EXPECT_EQ(first_non_finite(tensor), 17) << dtype;
  }
}

TEST(WeightLayout, FindsScalesThatAreNotFiniteInEveryBlock) {
  struct Field {
    DType dtype;
    int64_t byte;  // of a scale or min in its block
  };
  for (const Field field :
       {Field{DType::Q8_0, 0}, Field{DType::Q4_0, 0}, Field{DType::Q4_1, 0}, Field{DType::Q4_1, 2},
        Field{DType::Q5_0, 0}, Field{DType::Q5_1, 0}, Field{DType::Q5_1, 2}, Field{DType::Q4_K, 0},
        Field{DType::Q4_K, 2}, Field{DType::Q5_K, 0}, Field{DType::Q5_K, 2},
        Field{DType::Q6_K, 208}}) {
    const DTypeInfo& type = info(field.dtype);
    HostTensor blocks(field.dtype, {3, 2 * type.block_elements});
    std::memset(blocks.view().data, 0, size_t(blocks.view().n_bytes()));
    EXPECT_EQ(first_non_finite(blocks), -1) << field.dtype;
    auto* const bad = static_cast<uint8_t*>(blocks.view().data) + 4 * type.block_bytes + field.byte;
    bad[0] = 0, bad[1] = 0x7c;
    EXPECT_EQ(first_non_finite(blocks), 4 * type.block_elements)
        << field.dtype << ", byte " << field.byte;
  }
}

TEST(HostMemory, KnowsHowAWeightIsKept) {
  TensorEntry entry = {.name = "w", .dtype = DType::Q6_K, .shape = {2, 768}};
  EXPECT_EQ(kept_groups(entry)->bits, 6);
  EXPECT_EQ(kept_groups(entry)->group, 16);
  EXPECT_EQ(weight_memory_bytes(entry), 2 * (768 * 6 / 8 + 48 + 3 * 2));
  EXPECT_EQ(card_kept_groups(entry)->bits, 6);
  EXPECT_EQ(card_kept_groups(entry)->group, 16);
  // Whole tiles of 16 rows.
  EXPECT_EQ(card_memory_bytes(entry), 16 * (768 * 6 / 8 + 48 + 3 * 2));
  entry.shape = {3, 2, 768};  // experts, as others
  EXPECT_EQ(card_memory_bytes(entry), 16 * (768 * 6 / 8 + 48 + 3 * 2));
  entry.shape = {2, 768};
  entry.dtype = DType::U4;
  entry.quant = {.scales = DType::F16, .group = 64, .asymmetric = true};
  EXPECT_EQ(kept_groups(entry)->scales, DType::F32);
  EXPECT_EQ(weight_memory_bytes(entry), 2 * (384 + 12 * 8));
  EXPECT_EQ(card_kept_groups(entry)->scales, DType::F32);
  EXPECT_EQ(card_memory_bytes(entry), 16 * (384 + 12 * 8));
  entry.quant->group = 768;
  EXPECT_EQ(card_memory_bytes(entry), 16 * (384 + 8));
  entry.quant->group = 96;  // a scale for each 32 columns, the largest power of two in 96
  EXPECT_EQ(card_memory_bytes(entry), 16 * (384 + 24 * 8));
  entry.quant->group = 24;  // no panels for these: floats
  EXPECT_FALSE(kept_groups(entry));
  EXPECT_EQ(weight_memory_bytes(entry), 2 * 768 * 4);
  EXPECT_FALSE(card_kept_groups(entry));
  EXPECT_EQ(card_memory_bytes(entry), 2 * 768 * 2);
  entry.dtype = DType::F16;
  entry.quant.reset();
  EXPECT_FALSE(kept_groups(entry));
  EXPECT_EQ(weight_memory_bytes(entry), 2 * 768 * 2);
}

TEST(HostMemory, RefusesWithBothFigures) {
  const int64_t available = available_host_bytes();
  EXPECT_GT(available, 1 << 20);
  EXPECT_NO_THROW(require_host_memory(1 << 20, "a test"));
  expect_error(ErrorKind::Memory, "a test needs 1152921.5 TB of memory, ",
               [] { require_host_memory(int64_t{1} << 60, "a test"); });
}

// A 7B model in F16, and as int4, with a cache of 131072 positions in F16.
TEST(CardMemory, NamesTheTwoCheapestWaysThatSuffice) {
  constexpr int64_t kGb = 1'000'000'000;
  const WeightMemory weights = {13 * kGb, 4 * kGb};
  const SessionMemory session = {131072, 68 * kGb, 34 * kGb, 2 * kGb, "--ctx-size"};
  const std::string parts = "the model needs 83 GB of the card's memory, ";
  const auto refused = [&](int64_t free, const std::string& message) {
    expect_error(ErrorKind::Memory, message, [&] { require_card_memory(free, weights, session); });
  };
  EXPECT_NO_THROW(require_card_memory(83 * kGb, weights, session));
  refused(83 * kGb - 1, parts +
                            "83 GB are free: weights 13 GB, a KV cache of 131072 positions 68 "
                            "GB, activations 2 GB; it fits with --kv-type int8 (49 GB), or "
                            "--ctx-size 130816");
  // 33 of 68 GB are left for the cache.
  refused(48 * kGb, parts +
                        "48 GB are free: weights 13 GB, a KV cache of 131072 positions 68 GB, "
                        "activations 2 GB; it fits with --ctx-size 63488, or --device cpu");
  refused(10 * kGb, parts +
                        "10 GB are free: weights 13 GB, a KV cache of 131072 positions 68 GB, "
                        "activations 2 GB; it fits with --device cpu");
  SessionMemory of_fixed_length = session;
  of_fixed_length.context_option.clear();
  expect_error(ErrorKind::Memory, "activations 2 GB; it fits with --kv-type int8 (49 GB), or ",
               [&] { require_card_memory(83 * kGb - 1, weights, of_fixed_length); });
}

// On the host there is no other device to go to.
TEST(ModelMemory, NamesWhatMakesItFitOnTheHost) {
  constexpr int64_t kGb = 1'000'000'000;
  const WeightMemory weights = {13 * kGb, 4 * kGb};
  const SessionMemory session = {4096, 2 * kGb, kGb, 500'000'000, "--ctx-size"};
  EXPECT_NO_THROW(require_memory_of_model(16 * kGb, weights, session));
  const auto refused = [&](int64_t free, const std::string& message) {
    expect_error(ErrorKind::Memory, message,
                 [&] { require_memory_of_model(free, weights, session); });
  };
  refused(15 * kGb,
          "the model needs 15.5 GB of memory, 15 GB are free: weights 13 GB, a KV cache of 4096 "
          "positions 2 GB, activations 500 MB; it fits with --kv-type int8 (14.5 GB), or "
          "--ctx-size 3072");
  refused(8 * kGb, "activations 500 MB; it fits with `minfer quantize` first (6.5 GB)");
  refused(1000,
          "1 kB are free: weights 13 GB, a KV cache of 4096 positions 2 GB, activations 500 "
          "MB; no option makes it fit");
}

TEST(CardMemory, OfWeightsAlone) {
  EXPECT_NO_THROW(require_card_memory(1000, {1000, 250}, {}));
  expect_error(ErrorKind::Memory,
               "the model needs 14.44 GB of the card's memory, 5.5 GB are free: weights 14.44 GB; "
               "it fits with `minfer quantize` first (3.98 GB), or --device cpu",
               [] {
                 require_card_memory(5'500'000'000, {14'440'000'000, 3'980'000'000}, {});
               });
}

// The session's part is checked when no weight is there.
TEST_F(LoadModel, ChecksTheSessionsMemoryBeforeAnyWeight) {
  const MemorySource source = small_hf_llama();
  LoadOptions options;
  bool is_read = false;
  options.progress = [&](int64_t, int64_t) { is_read = true; };
  options.session = {.n_positions = 8, .kv_bytes = int64_t{1} << 60};
  expect_error(ErrorKind::Memory, "the model needs 1152921.5 TB of memory",
               [&] { load_model(source, *backend_, options); });
  EXPECT_FALSE(is_read);
}

TEST_F(LoadModel, AnOpenedModelHasAllButItsWeights) {
  const MemorySource source = small_hf_llama();
  OpenedModel opened = open_model(source);
  EXPECT_EQ(source.n_reads, 0);
  EXPECT_EQ(opened.model.spec.vocab_size, 40);
  EXPECT_EQ(opened.model.name, "memory");
  EXPECT_TRUE(opened.model.weights.layers.empty());
  const Model model = load_weights(std::move(opened), *backend_);
  EXPECT_GT(source.n_reads, 0);
  EXPECT_EQ(model.weights.layers.size(), 2u);
  EXPECT_EQ(model.n_params, load_model(source, *backend_).n_params);
}

// Says how many matrices it has packed; of a card where it has a number of bytes free.
class CountingBackend : public HalfBackend {
 public:
  CountingBackend() : HalfBackend(DType::F16) {}
  std::optional<int64_t> free_device_bytes() const override { return free; }
  Matrix pack_matrix(const Tensor& host) override {
    ++n_packed;
    return HalfBackend::pack_matrix(host);
  }
  Matrix pack_matrix(const QuantizedMatrix& host) override {
    ++n_packed;
    return HalfBackend::pack_matrix(host);
  }

  int64_t packed_bytes(const StoredMatrix&) const override { return 10'000; }
  int64_t packing_workspace_bytes(const StoredMatrix& w) const override { return w.out_dim; }
  int64_t matmul_workspace_bytes(int64_t n_rows, std::span<const StoredMatrix> w) const override {
    return 100 * n_rows * std::ssize(w);
  }

  std::optional<int64_t> free;
  int n_packed = 0;
};

TEST(SyntheticModel, ChecksMemoryBeforeAnyWeight) {
  CountingBackend backend;
  EXPECT_EQ(synthetic_spec("tiny:f32").vocab_size, 256);
  const auto make = [&](const char* text, int64_t kv_bytes) {
    return make_synthetic_model(text, backend, 1, 0,
                                {.n_positions = 8, .kv_bytes = kv_bytes, .n_rows = 3});
  };
  expect_error(ErrorKind::Memory, "the model needs 1152921.5 TB of memory",
               [&] { make("tiny:f32", int64_t{1} << 60); });
  // As the backend says: of 2 + 2 x 7 matrices the largest has 256 rows; five norms of 64 in its
  // type; q, k and v for 3 rows at once. And the cache.
  const int64_t of_norms = bytes_of(backend.activation_dtype(), 5 * 64);
  const int64_t needed = 16 * 10'000 + of_norms + 256 + 100 * 3 * 3 + 1000;
  backend.free = needed - 1;
  expect_error(ErrorKind::Memory, "of the card's memory", [&] { make("tiny:int4:32", 1000); });
  EXPECT_EQ(backend.n_packed, 0);
  backend.free = needed;
  EXPECT_NO_THROW(make("tiny:int4:32", 1000));
  EXPECT_EQ(backend.n_packed, 2 + 2 * 7);
}

// As the models' cards say, in thousands of millions; Gemma 3 without its vision tower.
TEST(SyntheticModel, HasTheParametersOfThePublishedModel) {
  const std::map<std::string, double> published = {
      {"llama-2-7b", 6.74},   {"llama-3-8b", 8.03},   {"mistral-7b", 7.24}, {"qwen3-8b", 8.19},
      {"olmo-2-7b", 7.30},    {"granite-3-8b", 8.17}, {"gemma-2-9b", 9.24}, {"gemma-3-12b", 11.77},
      {"gemma-3-27b", 27.01}, {"gpt-oss-20b", 20.91}};
  for (const auto& [name, billions] : published) {
    int64_t n = 0;
    for_each_weight(synthetic_spec(name),
                    [&](const WeightInfo& weight) { n += weight.shape.n_elements(); });
    EXPECT_NEAR(double(n) / 1e9, billions, 0.006) << name;
  }
}

TEST_F(LoadModel, SyntheticModelsAreSeededAndTheirOwnShape) {
  const Model a = make_synthetic_model("tiny:f32", *backend_),
              b = make_synthetic_model("tiny:f32", *backend_),
              other = make_synthetic_model("tiny:f32", *backend_, 2);
  EXPECT_EQ(rows_of(a.weights.layers[1].w_down.weight), rows_of(b.weights.layers[1].w_down.weight));
  EXPECT_NE(rows_of(a.weights.layers[1].w_down.weight),
            rows_of(other.weights.layers[1].w_down.weight));
  EXPECT_NE(rows_of(a.weights.layers[1].wk.weight), rows_of(a.weights.layers[1].wv.weight));
  // Uniform with variance 1 / in_dim: 172 * 64 draws are within 5 % of it.
  double sum_sq = 0;
  const auto up = rows_of(a.weights.layers[0].w_up.weight);
  for (const float w : up) sum_sq += double(w) * double(w);
  EXPECT_NEAR(sum_sq / double(up.size()) * 64, 1, 0.05);
  EXPECT_EQ(a.description, cat("llama ", std::llround(double(a.n_params) / 1e3), "K F32"));
  expect_error(ErrorKind::Usage, "no synthetic model \"huge\" (there are: tiny, ",
               [&] { make_synthetic_model("huge", *backend_); });
  for (const char* type : {"int3", "int4:16", "int8:64"}) {
    expect_error(ErrorKind::Usage,
                 cat("no synthetic weight type \"", type,
                     "\" (there are: f16, bf16, f32, int8, int4, int4:32, int4:64, int4:128)"),
                 [&] { make_synthetic_model(cat("tiny:", type), *backend_); });
  }
}

// As `minfer quantize` leaves them: the tokens' matrices and rows of broken groups are int8.
TEST_F(LoadModel, SyntheticModelsCanBeQuantized) {
  const Model model = make_synthetic_model("tiny:int4", *backend_);
  const LayerWeights& layer = model.weights.layers[0];
  EXPECT_EQ(model.weight_types, "int4 g64");
  EXPECT_EQ(layer.w_up.weight.dtype, DType::U4);
  EXPECT_EQ(layer.w_up.weight.group, 64);
  EXPECT_EQ(layer.w_down.weight.dtype, DType::U8);  // 172 columns
  EXPECT_EQ(layer.w_down.weight.group, 172);
  EXPECT_EQ(model.weights.embedding.dtype, DType::U8);
  EXPECT_EQ(model.weights.output_matrix().dtype, DType::U8);
  double sum_sq = 0;
  const auto up = rows_of(layer.w_up.weight);
  for (const float w : up) sum_sq += double(w) * double(w);
  EXPECT_NEAR(sum_sq / double(up.size()) * 64, 1, 0.1);
  EXPECT_EQ(make_synthetic_model("tiny:int4:32", *backend_).weights.layers[0].wq.weight.group, 32);
  EXPECT_EQ(make_synthetic_model("tiny:int8", *backend_).weights.layers[0].wq.weight.group, 64);
}

}  // namespace
}  // namespace minfer::test
