#include <array>
#include <functional>

#include "kernels/base/quant_blocks.h"
#include "tests/engine/cuda_models.h"
#include "tests/support/small_models.h"
#include "tests/support/test_data.h"

// Logits of every position of a long prompt, of trained models, of GPT-2's kind and of GGUF's
// blocks, on a card against those of the CPU.
namespace minfer::test {
namespace {

namespace fs = std::filesystem;

using LoadOn = std::function<Model(Backend&)>;

// In one pass and decoded in every way, against a plain program in half.
void expect_logits_of_the_cpu(const LoadOn& load, std::span<const TokenId> ids) {
  const auto cpu = make_cpu_backend();
  SessionOptions options{.max_seq_len = std::ssize(ids), .prefill_chunk = std::ssize(ids)};
  const auto want = doubles_of(all_logits(load(*cpu), *cpu, ids, options));
  for (const DType compute : {DType::F16, DType::BF16}) {
    HalfBackend plain(compute);
    const double most =
        kMostOfPlain * relative_error(all_logits(load(plain), plain, ids, options), want);
    testing::Test::RecordProperty(cat("most_", compute), cat(most));
    const auto expect_within = [&](const std::string& way, const std::vector<float>& logits) {
      const double error = relative_error(logits, want);
      testing::Test::RecordProperty(cat(way, "_", compute), cat(error));
      EXPECT_LE(error, most) << compute << ", " << way;
    };
    for (const DecodeWay& way : kDecodeWays) {
      const auto card =
          make_cuda_backend({.compute_dtype = compute, .persistent_decode = way.persistent});
      const Model model = load(*card);
      if (way.fused && way.persistent) {
        expect_within("in one pass", all_logits(model, *card, ids, options));
      }
      options.fused_decode = way.fused;
      expect_within(way.name, all_decoded_logits(model, *card, ids, options));
    }
  }
}

// How many tokens of a prompt are taken at a time: one, some, all.
std::array<int64_t, 5> chunks_of(int64_t n_tokens) { return {1, 7, 64, 512, n_tokens}; }

struct TrainedModel {
  const char* name;
  fs::path path;
  int64_t n_tokens;  // of the prompt: no multiple of a chunk
};
void PrintTo(const TrainedModel& model, std::ostream* out) { *out << model.path; }

std::vector<TrainedModel> trained_models() {
  const fs::path llamas = data_dir() / "tinyllamas";
  return {{"Stories260K", llamas / "stories260K/stories260K.gguf", 471},
          {"TinyStories656K", llamas / "TinyStories-656K/hf-bf16", 471},
          {"Demonstration", fixtures_dir() / "../../models/demo", 701},
          {"SmolLM2", smollm2_path(), 701}};
}

// A story, told again and again.
std::vector<TokenId> long_prompt(const Tokenizer& tokenizer, int64_t n_tokens) {
  std::vector<TokenId> ids;
  for (std::string text; std::ssize(ids) < n_tokens; ids = tokenizer.encode(text, {})) {
    text +=
        "Once upon a time there was an old man who lived in a small house by the sea. He had a "
        "boat, a dog and a garden full of apples. One day a girl came to his door and asked for "
        "some bread. \"Come in,\" said the old man, \"and tell me where you are going.\" The girl "
        "sat down by the fire. She told him about the city, the king and the long road through "
        "the forest. In the morning they went to the water, and the dog ran after them.\n";
  }
  ids.resize(size_t(n_tokens));
  return ids;
}

TokenId best_of(std::span<const float> logits) {
  return TokenId(std::ranges::max_element(logits) - logits.begin());
}

struct Choice {
  TokenId token;
  bool is_sure;  // the second best logit is far below
};

// What the CPU chooses greedily behind `ids`. Sure is what six times an error of logits, itself
// hardly ever reached, cannot change.
std::vector<Choice> greedy_choices(const Model& model, Backend& cpu, std::span<const TokenId> ids,
                                   double error, int64_t n) {
  Session session(model, cpu, {.max_seq_len = std::ssize(ids) + n});
  std::vector<Choice> choices;
  std::span<const float> logits = session.eval(ids);
  while (std::ssize(choices) < n) {
    const TokenId best = best_of(logits);
    const double far_below = double(logits[size_t(best)]) - 6 * error * rms(doubles_of(logits));
    const auto n_near = std::ranges::count_if(logits, [&](float x) { return x > far_below; });
    choices.push_back({best, n_near == 1});
    logits = session.eval({&best, 1});
  }
  return choices;
}

class CudaTrainedModels : public testing::TestWithParam<TrainedModel> {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CARD();
    MINFER_NEEDS(GetParam().path);
  }
  static Model load(Backend& backend) { return load_model(GetParam().path.string(), backend); }
};

TEST_P(CudaTrainedModels, HaveTheLogitsOfTheCpu) {
  const auto cpu = make_cpu_backend();
  expect_logits_of_the_cpu(load, long_prompt(*load(*cpu).tokenizer, GetParam().n_tokens));
}

// Logits of all positions, those of the last alone, for which the last block leaves out what it
// can, and what they choose behind them.
TEST_P(CudaTrainedModels, TakeALongPromptInChunks) {
  constexpr int64_t kNewTokens = 40;
  const auto cpu = make_cpu_backend(), card = make_cuda_backend();
  HalfBackend plain(DType::F16);
  const Model on_cpu = load(*cpu), in_plain = load(plain), on_card = load(*card);
  const auto vocab_size = size_t(on_cpu.spec.vocab_size);
  const std::vector<TokenId> ids = long_prompt(*on_cpu.tokenizer, GetParam().n_tokens);
  SessionOptions options{.max_seq_len = std::ssize(ids) + kNewTokens,
                         .prefill_chunk = std::ssize(ids)};
  const auto want = doubles_of(all_logits(on_cpu, *cpu, ids, options));
  const auto want_last = std::span(want).last(vocab_size);
  const auto of_plain = all_logits(in_plain, plain, ids, options);
  const double most = kMostOfPlain * relative_error(of_plain, want);
  const double most_of_last = std::max(
      most, kMostOfPlain * relative_error(std::span(of_plain).last(vocab_size), want_last));
  RecordProperty("most", cat(most));
  const auto choices = greedy_choices(on_cpu, *cpu, ids, most_of_last, kNewTokens);
  EXPECT_GE(std::ranges::count_if(choices, &Choice::is_sure), kNewTokens / 2);
  for (const int64_t chunk : chunks_of(std::ssize(ids))) {
    SCOPED_TRACE(cat("chunks of ", chunk));
    options.prefill_chunk = chunk;
    const double error = relative_error(all_logits(on_card, *card, ids, options), want);
    RecordProperty(cat("chunk_", chunk), cat(error));
    EXPECT_LE(error, most);
    Session session(on_card, *card, options);
    std::span<const float> logits = session.eval(ids);
    EXPECT_LE(relative_error(logits, want_last), most_of_last);
    for (const Choice& choice : choices) {
      if (choice.is_sure) {
        EXPECT_EQ(best_of(logits), choice.token) << "at " << session.pos();
      }
      logits = session.eval({&choice.token, 1});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CudaTrainedModels, testing::ValuesIn(trained_models()),
                         [](const auto& info) { return info.param.name; });

// Its positions are learned, and its attention and products have biases.
TEST(CudaGpt2, TakesALongPromptInChunks) {
  MINFER_NEEDS_CARD();
  const MemorySource source =
      small_hf_gpt2({.dim = 256, .n_heads = 4, .vocab_size = 300, .context = 720});
  const std::vector<TokenId> ids = some_ids(701, 300);
  const auto cpu = make_cpu_backend(), card = make_cuda_backend();
  HalfBackend plain(DType::F16);
  const Model on_card = load_model(source, *card);
  SessionOptions options{.prefill_chunk = std::ssize(ids)};
  const auto want = doubles_of(all_logits(load_model(source, *cpu), *cpu, ids, options));
  const double most =
      kMostOfPlain *
      relative_error(all_logits(load_model(source, plain), plain, ids, options), want);
  for (const int64_t chunk : chunks_of(std::ssize(ids))) {
    options.prefill_chunk = chunk;
    const double error = relative_error(all_logits(on_card, *card, ids, options), want);
    RecordProperty(cat("chunk_", chunk), cat(error));
    EXPECT_LE(error, most) << "chunks of " << chunk;
  }
}

// Random blocks of a type, of values with variance 1 / in_dim or so. Any bits are a block, but for
// those of its F16 numbers.
HostTensor random_blocks(uint64_t seed, DType dtype, const Shape& shape) {
  HostTensor tensor(dtype, shape);
  auto* const bytes = static_cast<uint8_t*>(tensor.view().data);
  std::mt19937_64 engine(seed);
  for (int64_t i = 0; i < tensor.view().n_bytes(); ++i) bytes[i] = uint8_t(engine());
  const double size = 1 / std::sqrt(double(shape.last()));
  bool is_known = false;
  // `rms`: of the codes times the scales beside d.
  const auto set_scales_of = [&]<typename Block>(DType its_type, Block* blocks, double rms) {
    if (dtype != its_type) return;
    is_known = true;
    for (int64_t i = 0; i < shape.n_elements() / Block::kElements; ++i) {
      const double d = size / rms * (0.5 + double(engine() % 1024) / 1024);
      blocks[i].d = to_f16(float(d));
      // What takes the mean of the codes away.
      if constexpr (requires { blocks[i].dmin; }) blocks[i].dmin = to_f16(float(7.5 * d));
      if constexpr (requires { blocks[i].m; }) blocks[i].m = to_f16(float(-7.5 * d));
    }
  };
  set_scales_of(DType::Q8_0, reinterpret_cast<BlockQ8_0*>(bytes), 74);
  set_scales_of(DType::Q4_0, reinterpret_cast<BlockQ4_0*>(bytes), 4.6);
  set_scales_of(DType::Q4_1, reinterpret_cast<BlockQ4_1*>(bytes), 4.6);
  set_scales_of(DType::Q4_K, reinterpret_cast<BlockQ4_K*>(bytes), 258);
  set_scales_of(DType::Q6_K, reinterpret_cast<BlockQ6_K*>(bytes), 1369);
  EXPECT_TRUE(is_known) << dtype;
  return tensor;
}

// All matrices of one type but routers; with Q4_K, those that llama.cpp's Q4_K_M makes Q6_K are
// Q6_K. The embedding is a table alone, or the output matrix too.
TEST(CudaBlocks, HaveTheLogitsOfTheCpu) {
  MINFER_NEEDS_CARD();
  const std::pair<DType, int64_t> cases[] = {{DType::Q8_0, 0}, {DType::Q4_0, 0}, {DType::Q4_1, 0},
                                             {DType::Q4_K, 0}, {DType::Q6_K, 0}, {DType::Q4_K, 4}};
  for (const auto& [dtype, n_experts] : cases) {
    const bool is_tied = dtype == DType::Q6_K || dtype == DType::Q8_0;
    SCOPED_TRACE(cat(dtype, ", ", n_experts, " experts"));
    MemorySource source = small_gguf_llama({.dim = 512,
                                            .ffn_dim = 1536,
                                            .n_heads = 8,
                                            .n_kv_heads = 4,
                                            .vocab_size = 300,
                                            .context = 512,
                                            .n_experts = n_experts});
    if (!is_tied) add_random(source, "output.weight", {300, 512});
    uint64_t seed = 0;
    for (const TensorEntry& entry : std::vector(source.tensors)) {
      if (entry.shape.rank == 1 || entry.name.ends_with("ffn_gate_inp.weight")) {
        source.add(entry.name, random_normal(++seed, entry.shape));
        continue;
      }
      const bool is_larger =
          entry.name == "token_embd.weight" || entry.name.ends_with("attn_v.weight") ||
          entry.name.ends_with("ffn_down.weight") || entry.name.ends_with("ffn_down_exps.weight");
      const DType its_type = is_larger && dtype == DType::Q4_K ? DType::Q6_K : dtype;
      source.add(entry.name, random_blocks(++seed, its_type, entry.shape));
    }
    expect_logits_of_the_cpu([&](Backend& backend) { return load_model(source, backend); },
                             some_ids(300, 300));
  }
}

}  // namespace
}  // namespace minfer::test
