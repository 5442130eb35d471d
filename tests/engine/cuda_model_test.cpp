#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/generate_many.h"
#include "models/memory_needed.h"
#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/specs.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;

std::string greedy_text(const Model& model, Backend& backend, const std::string& prompt,
                        int64_t n_predict, const SessionOptions& session_options = {}) {
  Session session(model, backend, session_options);
  GenerateOptions options;
  options.n_predict = n_predict;
  options.sampler.temperature = 0;
  return generate(session, model.tokenizer->encode(prompt, {}), options, nullptr).text;
}

TEST_F(CudaModel, WritesThePublishedTexts) {
  const auto path = data_dir() / "expected/greedy-text.json";
  MINFER_NEEDS(path);
  const auto published = nlohmann::json::parse(read_file(path));
  for (const auto& test_case : published.at("cases")) {
    const auto& files = test_case.at("model");
    const auto& tokenizers = test_case.at("tokenizer");
    const std::string file = files.is_array() ? files[0] : files;
    MINFER_NEEDS(data_dir() / file);
    LoadOptions options;
    if (tokenizers.is_array()) {
      options.tokenizer_path = (data_dir() / tokenizers[0].get<std::string>()).string();
    }
    const Model model = load_model((data_dir() / file).string(), *backend_, options);
    const auto expected = test_case.at("expected_text").get<std::string>();
    for (const int64_t chunk : {1, 7, 64, 512}) {
      EXPECT_EQ(greedy_text(model, *backend_, test_case.at("prompt"), test_case.at("new_tokens"),
                            {.prefill_chunk = chunk}),
                expected)
          << file << ", chunk " << chunk;
    }
    EXPECT_EQ(greedy_text(model, *backend_, test_case.at("prompt"), test_case.at("new_tokens"),
                          {.fused_decode = false}),
              expected)
        << file << ", op by op";
  }
}

TEST_F(CudaModel, RepeatsItselfToTheBit) {
  const auto path = data_dir() / "tinyllamas/stories260K/stories260K.gguf";
  MINFER_NEEDS(path);
  const Model model = load_model(path.string(), *backend_);
  std::vector<float> want;
  for (int run = 0; run < 100; ++run) {
    Session session(model, *backend_, {});
    std::vector<float> all;
    TokenId token = 1;
    for (int i = 0; i < 128; ++i) {
      const auto logits = session.eval({&token, 1});
      token = TokenId(std::ranges::max_element(logits) - logits.begin());
      all.push_back(logits[size_t(token)]);
      all.push_back(logits[7]);
    }
    if (run == 0) want = all;
    ASSERT_EQ(all, want) << "run " << run;
  }
}

// Two layers of Llama-2-7B's width, and of the same with four key/value heads.
TEST_F(CudaModel, AgreesWithTheCpuAtTheWidthOf7B) {
  const auto cpu = make_cpu_backend();
  for (const SyntheticType& type :
       {SyntheticType{DType::F16, 0}, {DType::BF16, 0}, {DType::U8, 0}, {DType::U4, 64}}) {
    const ModelSpec spec = llama_spec({.dim = 4096,
                                       .ffn_dim = 11008,
                                       .n_heads = 32,
                                       .n_kv_heads = type.dtype == DType::U4 ? 8 : 32,
                                       .head_dim = 128,
                                       .vocab_size = 1000,
                                       .trained_seq_len = 1024});
    SCOPED_TRACE(cat(type.dtype));
    const DType compute = type.dtype == DType::BF16 ? DType::BF16 : DType::F16;
    const auto card = make_cuda_backend({.compute_dtype = compute});
    const auto other_card =
        make_cuda_backend({.compute_dtype = compute, .persistent_decode = false});
    HalfBackend plain(compute);
    const Model on_cpu = make_synthetic_model(spec, type, *cpu, 1);
    const Model on_card = make_synthetic_model(spec, type, *card, 1);
    const Model on_other_card = make_synthetic_model(spec, type, *other_card, 1);
    const Model in_plain = make_synthetic_model(spec, type, plain, 1);
    const std::vector<TokenId> ids = some_ids(150, spec.vocab_size);
    for (const DType kv_dtype : {DType::F16, DType::U8}) {
      SCOPED_TRACE(cat("cache ", kv_dtype));
      SessionOptions options{.prefill_chunk = 150, .kv_dtype = kv_dtype};
      const auto want = doubles_of(last_logits(on_cpu, *cpu, ids, options));
      const double most =
          kMostOfPlain * relative_error(last_logits(in_plain, plain, ids, options), want);
      RecordProperty(cat("most_", type.dtype, "_", kv_dtype), cat(most));
      const auto expect_within = [&](const std::string& way, const std::vector<float>& logits) {
        const double error = relative_error(logits, want);
        RecordProperty(cat(way, "_", type.dtype, "_", kv_dtype), cat(error));
        EXPECT_LE(error, most) << way;
      };
      for (const int64_t chunk : {7, 64, 150}) {
        options.prefill_chunk = chunk;
        expect_within(cat("chunk_", chunk), last_logits(on_card, *card, ids, options));
      }
      for (const DecodeWay& way : kDecodeWays) {
        options.fused_decode = way.fused;
        expect_within(way.name, way.persistent
                                    ? decoded_logits(on_card, *card, ids, options)
                                    : decoded_logits(on_other_card, *other_card, ids, options));
      }
    }
  }
}

// One to four query heads a block of the one kernel, heads of 64, 128 and of 80 elements, and so
// many positions that a block has several steps of rows, which begin anywhere in 16 bytes of
// scales.
TEST_F(CudaModel, AttendsOverAnInt8Cache) {
  struct Heads {
    int64_t n, n_kv, dim;
  };
  const auto cpu = make_cpu_backend();
  HalfBackend plain(DType::F16);
  for (const auto& [n_heads, n_kv_heads, head_dim] :
       {Heads{32, 32, 64}, {16, 16, 128}, {64, 32, 64}, {48, 16, 128}, {32, 8, 64}, {16, 16, 80}}) {
    SCOPED_TRACE(cat(n_heads, ":", n_kv_heads, " heads of ", head_dim));
    const ModelSpec spec = llama_spec({.dim = 256,
                                       .ffn_dim = 512,
                                       .n_heads = n_heads,
                                       .n_kv_heads = n_kv_heads,
                                       .head_dim = head_dim,
                                       .vocab_size = 300,
                                       .trained_seq_len = 1408});
    const SyntheticType type{DType::F16, 0};
    const Model on_cpu = make_synthetic_model(spec, type, *cpu, 1);
    const Model on_card = make_synthetic_model(spec, type, *backend_, 1);
    const Model in_plain = make_synthetic_model(spec, type, plain, 1);
    for (const int64_t n : {130, 701, 1401}) {
      SCOPED_TRACE(n);
      const std::vector<TokenId> ids = some_ids(n, spec.vocab_size);
      const SessionOptions options{.prefill_chunk = n, .kv_dtype = DType::U8};
      const auto want = doubles_of(last_logits(on_cpu, *cpu, ids, options));
      EXPECT_LE(relative_error(decoded_logits(on_card, *backend_, ids, options), want),
                kMostOfPlain * relative_error(last_logits(in_plain, plain, ids, options), want));
    }
  }
}

// A few steps behind a prompt in an int8 cache, which other kernels fill; 16 heads of 128.
void expect_steps_behind_a_prompt(Backend& card, int64_t n_prompt, int64_t n_kv_heads) {
  SCOPED_TRACE(cat("16:", n_kv_heads, " heads"));
  constexpr int64_t kDecoded = 4;
  const ModelSpec spec = llama_spec({.dim = 256,
                                     .ffn_dim = 512,
                                     .n_heads = 16,
                                     .n_kv_heads = n_kv_heads,
                                     .head_dim = 128,
                                     .vocab_size = 300,
                                     .trained_seq_len = n_prompt + kDecoded});
  const std::vector<TokenId> ids = some_ids(n_prompt + kDecoded, spec.vocab_size);
  const SessionOptions options{.prefill_chunk = n_prompt, .kv_dtype = DType::U8};
  const auto logits_behind = [&](Backend& backend) {
    const Model model = make_synthetic_model(spec, {DType::F16, 0}, backend, 1);
    Session session(model, backend, options);
    std::span<const float> logits = session.eval(std::span(ids).first(size_t(n_prompt)));
    for (const TokenId id : std::span(ids).last(size_t(kDecoded))) logits = session.eval({&id, 1});
    return std::vector<float>(logits.begin(), logits.end());
  };
  const auto cpu = make_cpu_backend();
  HalfBackend plain(DType::F16);
  const auto want = doubles_of(logits_behind(*cpu));
  EXPECT_LE(relative_error(logits_behind(card), want),
            kMostOfPlain * relative_error(logits_behind(plain), want));
}

// One and two query heads of a key/value head, so that the tensor cores multiply values and that
// they do not.
TEST_F(CudaModel, DecodesBehindAPromptInAnInt8Cache) {
  for (const int64_t n_kv_heads : {16, 8}) {
    expect_steps_behind_a_prompt(*backend_, 1101, n_kv_heads);
  }
}

// So many positions that sums of codes with their zero code are long.
TEST_F(CudaModel, AttendsOverALongInt8Cache) { expect_steps_behind_a_prompt(*backend_, 9001, 16); }

// Prompts of so many tokens that one launch makes q, k and v and fills the cache, in chunks of
// which the last is shorter, and a step of decode behind that; with biases, and with packed
// weights.
TEST_F(CudaModel, TakesLongPrompts) {
  const auto cpu = make_cpu_backend();
  HalfBackend plain(DType::F16);
  ModelSpec spec = llama_spec({.dim = 256,
                               .ffn_dim = 512,
                               .n_heads = 8,
                               .n_kv_heads = 4,
                               .head_dim = 128,
                               .vocab_size = 300,
                               .trained_seq_len = 2200});
  for (LayerSpec& layer : spec.layers) layer.qkv_bias = true;
  const std::vector<TokenId> ids = some_ids(2150, spec.vocab_size);
  for (const SyntheticType& type : {SyntheticType{DType::F16, 0}, {DType::U4, 64}}) {
    SCOPED_TRACE(cat(type.dtype));
    const Model on_cpu = make_synthetic_model(spec, type, *cpu, 1);
    const Model on_card = make_synthetic_model(spec, type, *backend_, 1);
    const Model in_plain = make_synthetic_model(spec, type, plain, 1);
    const SessionOptions whole{.prefill_chunk = 2150};
    const auto want = doubles_of(last_logits(on_cpu, *cpu, ids, whole));
    const double most =
        kMostOfPlain * relative_error(last_logits(in_plain, plain, ids, whole), want);
    for (const int64_t chunk : {2150, 2048, 1070}) {
      const SessionOptions options{.prefill_chunk = chunk};
      EXPECT_LE(relative_error(last_logits(on_card, *backend_, ids, options), want), most) << chunk;
      Session session(on_card, *backend_, options);
      session.eval(std::span(ids).first(2149));
      EXPECT_LE(relative_error(session.eval(std::span(ids).last(1)), want), most) << chunk;
    }
  }
}

// Prompt and 128 tokens, 100 times, or 1,000 with MINFER_LONG_TESTS: greedily and by the sampler,
// always the tokens that the host chooses from the logits of single steps.
TEST_F(CudaModel, RunsAtTheWidthOf7BAreAllAlike) {
  const ModelSpec spec = llama_spec({.dim = 4096,
                                     .ffn_dim = 11008,
                                     .n_heads = 32,
                                     .n_kv_heads = 32,
                                     .head_dim = 128,
                                     .vocab_size = 32000,
                                     .trained_seq_len = 160});
  constexpr int64_t kSteps = 128;
  const int n_runs = std::getenv("MINFER_LONG_TESTS") != nullptr ? 1000 : 100;
  for (const SyntheticType& type :
       {SyntheticType{DType::F16, 0}, {DType::U4, 64}, {DType::U4, 32}, {DType::U8, 0}}) {
    SCOPED_TRACE(cat(type.dtype, " ", type.group));
    const Model model = make_synthetic_model(spec, type, *backend_, 1);
    Session session(model, *backend_, {});
    const std::vector<TokenId> prompt = some_ids(20, spec.vocab_size);
    const auto restart = [&] {
      session.truncate(0);
      session.eval(prompt);
    };
    for (const DecodeSampling& sampling :
         {DecodeSampling{.n_tokens = spec.vocab_size, .banned = {}}, seeded(spec.vocab_size)}) {
      SCOPED_TRACE(sampling.temperature);
      restart();
      const std::vector<TokenId> want = chosen_on_host(session, 2, kSteps, sampling);
      for (int run = 0; run < n_runs; ++run) {
        restart();
        ASSERT_EQ(chosen_by_run(session, 2, kSteps, kSteps, sampling), want) << "run " << run;
      }
    }
  }
}

// Of codes the one kernel gives tiles of gate and up that are left over to several blocks each. On
// 132 multiprocessors: 40 pairs of tiles and no others, in 3 parts; 20, in 3 parts of U4 and 5 of
// U8, which are not alike; and 152 pairs, of which 20 in 2 or 4 parts.
TEST_F(CudaModel, SharesTilesAmongBlocks) {
  struct Widths {
    int64_t dim, ffn_dim;
  };
  const auto cpu = make_cpu_backend();
  HalfBackend plain(DType::F16);
  for (const auto& [dim, ffn_dim] : {Widths{2880, 640}, {2880, 320}, {1856, 2432}}) {
    const ModelSpec spec = llama_spec({.dim = dim,
                                       .ffn_dim = ffn_dim,
                                       .n_heads = dim / 64,
                                       .n_kv_heads = dim / 64,
                                       .head_dim = 64,
                                       .vocab_size = 300,
                                       .trained_seq_len = 64});
    for (const SyntheticType& type :
         {SyntheticType{DType::U8, 0}, {DType::U4, 64}, {DType::U4, 32}}) {
      SCOPED_TRACE(cat(dim, " ", ffn_dim, " ", type.dtype, " ", type.group));
      const Model on_cpu = make_synthetic_model(spec, type, *cpu, 1);
      const Model on_card = make_synthetic_model(spec, type, *backend_, 1);
      const Model in_plain = make_synthetic_model(spec, type, plain, 1);
      const std::vector<TokenId> ids = some_ids(40, spec.vocab_size);
      const SessionOptions by_one{.prefill_chunk = 1};
      const auto got = last_logits(on_card, *backend_, ids, by_one);
      const auto want = doubles_of(last_logits(on_cpu, *cpu, ids, {}));
      EXPECT_LE(relative_error(got, want),
                kMostOfPlain * relative_error(last_logits(in_plain, plain, ids, {}), want));
      for (int run = 0; run < 10; ++run) {
        ASSERT_EQ(last_logits(on_card, *backend_, ids, by_one), got) << "run " << run;
      }
    }
  }
}

// Epochs of the one kernel start again every 1024 steps of 64 layers.
TEST_F(CudaModel, RunsPastTheLastEpoch) {
  const ModelSpec spec = llama_spec({.dim = 64,
                                     .ffn_dim = 128,
                                     .n_layers = 64,
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 16,
                                     .vocab_size = 256,
                                     .trained_seq_len = 1200});
  const Model model = make_synthetic_model(spec, DType::F16, *backend_, 1);
  Session session(model, *backend_, {});
  const int64_t n = session.max_seq_len();
  const std::vector<TokenId> want = chosen_on_host(session, 2, n, seeded(spec.vocab_size));
  for (int repetition = 0; repetition < 3; ++repetition) {
    session.truncate(0);
    ASSERT_EQ(chosen_by_run(session, 2, n, n, seeded(spec.vocab_size)), want);
  }
}

// What is said beforehand is what the card has less afterwards, as a text is generated, as one is
// scored, and as several are generated side by side.
TEST_F(CudaModel, TakesTheMemoryThatWasSaid) {
  const auto free_bytes = [&] {
    backend_->synchronize();
    return backend_->free_device_bytes().value();
  };
  struct Case {
    const char* name;
    SyntheticType type;
  };
  for (const Case& c : {Case{"llama-2-7b", {DType::U4, 64}}, Case{"llama-3-8b", {DType::U8}},
                        Case{"tinyllama-1.1b", {DType::F16}}}) {
    for (const int way : {0, 1, 2}) {
      SCOPED_TRACE(cat(c.name, way == 0 ? " generates" : way == 1 ? " scores" : " side by side"));
      backend_ = make_cuda_backend();
      const ModelSpec spec = synthetic_spec(c.name);
      SessionOptions options = {.max_seq_len = 2048};
      if (way == 1) options.several_sequences = options.all_logits = true;
      if (way == 2) options.n_sequences = 4;
      const SessionMemory session = session_memory(spec, *backend_, options);
      const MemoryNeeded needed = synthetic_memory(spec, c.type, *backend_, session);
      const int64_t before = free_bytes();
      {
        const Model model = make_synthetic_model(spec, c.type, *backend_, 1, session);
        Session run(model, *backend_, options);
        const std::vector<TokenId> ids = some_ids(2000, spec.vocab_size);
        if (way == 1) {
          run.score(ids, 0, ids);
        } else {
          run.eval(ids);
          run.eval({ids.data(), 1});
        }
        const double taken = double(before - free_bytes());
        EXPECT_NEAR(taken, double(needed.bytes()), 0.02 * double(needed.bytes()));
        RecordProperty(cat(c.name, "_", way), cat(taken / double(needed.bytes())));
      }
    }
  }
}

TEST_F(CudaModel, NamesThePositionOfARunThatIsNotFinite) {
  for (const bool persistent : {true, false}) {
    const auto backend = make_cuda_backend({.persistent_decode = persistent});
    const Model model = model_with_a_nan(*backend);
    Session session(model, *backend, {});
    session.eval(some_ids(5, 70));
    auto run = session.run_from(77, 10, {.n_tokens = 131, .banned = {}});
    ASSERT_TRUE(run);
    expect_error(ErrorKind::Numeric, "position 5: not a finite number after layer 0",
                 [&] { run->next(); });
    EXPECT_EQ(session.pos(), 5);
    run.reset();
    const DecodeSampling low_ids{.n_tokens = 70, .banned = {}};
    const std::vector<TokenId> ids = chosen_by_run(session, 2, 3, 10, low_ids);
    session.truncate(5);
    EXPECT_EQ(ids, chosen_on_host(session, 2, 3, low_ids));
  }
}

// Whoever asks for log-probabilities has tokens chosen on the host.
TEST_F(CudaModel, GeneratesTheTextThatTheHostChooses) {
  const auto path = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(path);
  const Model model = load_model(path.string(), *backend_);
  const std::vector<TokenId> prompt = model.tokenizer->encode("Once upon a time", {});
  GenerateOptions options;
  for (const float temperature : {0.0f, 0.8f, 1.5f}) {
    for (const bool ignore_eos : {false, true}) {
      for (const int64_t n_predict : {1, 2, 40, -1}) {
        for (const char* stop : {"", "the"}) {
          options.sampler.temperature = temperature;
          options.sampler.seed = uint64_t(n_predict);
          options.ignore_eos = ignore_eos;
          options.n_predict = n_predict;
          options.stop.clear();
          if (*stop != '\0') options.stop = {stop};
          const auto result = [&](int64_t n_logprobs) {
            options.n_logprobs = n_logprobs;
            Session session(model, *backend_, {.max_seq_len = 200});
            return generate(session, prompt, options, nullptr);
          };
          const GenerateResult by_run = result(0), on_host = result(1);
          EXPECT_EQ(by_run.tokens, on_host.tokens);
          EXPECT_EQ(by_run.text, on_host.text);
          EXPECT_EQ(by_run.stop_reason, on_host.stop_reason);
          EXPECT_EQ(by_run.decode_steps, on_host.decode_steps);
        }
      }
    }
  }
}

// The same for several texts side by side, of which some end before others.
TEST_F(CudaModel, GeneratesTheTextsThatTheHostChooses) {
  const auto path = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(path);
  const Model model = load_model(path.string(), *backend_);
  ASSERT_EQ(model.spec.vocab_size % 4, 0);
  const auto texts = [&](int64_t n_logprobs) {
    Executor executor(model, *backend_, {.max_seq_len = 100, .n_sequences = 4});
    std::map<size_t, std::vector<TokenId>> texts;
    int n_asked = 0;
    const auto next = [&]() -> std::optional<GenerateRequest> {
      if (n_asked == 9) return std::nullopt;
      GenerateRequest request{.prompt = model.tokenizer->encode(cat("Story ", n_asked), {}),
                              .options = {}};
      request.options.n_predict = 20 + 5 * n_asked;
      request.options.n_logprobs = n_logprobs;
      request.options.ignore_eos = n_asked % 2 == 0;
      request.options.sampler.temperature = 0.5f * float(n_asked % 3);
      request.options.sampler.seed = uint64_t(n_asked++);
      return request;
    };
    generate_many(executor, {.n_parallel = 4,
                             .next = next,
                             .on_result = [&](size_t i, const auto& r) { texts[i] = r.tokens; },
                             .on_error = [](size_t, const Error& e) { FAIL() << e.what(); }});
    return texts;
  };
  const auto on_card = texts(0), on_host = texts(1);
  EXPECT_EQ(on_card.size(), 9u);
  EXPECT_EQ(on_card, on_host);
}

}  // namespace
}  // namespace minfer::test
