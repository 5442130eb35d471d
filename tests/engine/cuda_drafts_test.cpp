#include "tests/engine/cuda_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace minfer::test {
namespace {

namespace fs = std::filesystem;

// Steps of 2 to 8 tokens of one sequence behind a prompt, after each a step of the one kernel or of
// the graph, and the same with other tokens first, as behind a draft that was wrong: as step by
// step.
TEST_F(CudaModel, DecodesSeveralTokensOfOneSequence) {
  for (const int64_t n_kv_heads : {8, 2}) {
    for (const SyntheticType& type : {SyntheticType{DType::F16, 0}, {DType::U4, 64}}) {
      for (const DType kv_dtype : {DType::F16, DType::U8}) {
        for (const int64_t window : {0, 100}) {
          for (const bool persistent : {true, false}) {
            SCOPED_TRACE(cat("8:", n_kv_heads, ' ', type.dtype, ", cache ", kv_dtype, ", window ",
                             window, persistent ? ", one kernel" : ", graph"));
            ModelSpec spec = llama_spec({.dim = 256,
                                         .ffn_dim = 512,
                                         .n_heads = 8,
                                         .n_kv_heads = n_kv_heads,
                                         .head_dim = 128,
                                         .vocab_size = 300,
                                         .trained_seq_len = 700});
            for (LayerSpec& layer : spec.layers) layer.window = window;
            const auto backend = make_cuda_backend({.persistent_decode = persistent});
            const Model model = make_synthetic_model(spec, type, *backend, 1);
            const std::vector<TokenId> ids = some_ids(660, spec.vocab_size);
            for (const size_t n_prompt : {110, 600}) {
              Session session(model, *backend, {.kv_dtype = kv_dtype});
              session.eval(std::span(ids).first(n_prompt));
              std::vector<double> want;
              std::vector<float> got;
              constexpr size_t kTokens = 42;  // 1 + 2, 1 + 3, ..., 1 + 8
              const auto text = std::span(ids).subspan(n_prompt, kTokens);
              for (const TokenId& id : text) {
                const auto logits = session.eval({&id, 1});
                want.insert(want.end(), logits.begin(), logits.end());
              }
              session.truncate(0);
              session.eval(std::span(ids).first(n_prompt));
              const auto decode = [&](size_t begin, size_t n) {
                const auto logits = session.decode(text.subspan(begin, n));
                got.insert(got.end(), logits.begin(), logits.end());
              };
              for (size_t n = 2, done = 0; n <= 8; done += n, ++n) {
                decode(done++, 1);
                const int64_t pos = session.pos();
                session.decode(std::span(ids).first(n));  // other tokens
                ASSERT_EQ(session.truncate(pos), pos);
                decode(done, n);
              }
              ASSERT_EQ(got.size(), want.size());
              EXPECT_LE(relative_error(got, want), 0.01) << n_prompt;
            }
          }
        }
      }
    }
  }
}

// Two tokens at the widths of Llama-2-13B and Llama-2-70B, of which a step stages inputs in parts
// and in turns: as step by step.
TEST_F(CudaModel, DecodesTwoTokensOfWideModels) {
  struct Widths {
    int64_t dim, ffn_dim, n_kv_heads;
  };
  for (const auto& [dim, ffn_dim, n_kv_heads] : {Widths{5120, 13824, 40}, {8192, 28672, 8}}) {
    const ModelSpec spec = llama_spec({.dim = dim,
                                       .ffn_dim = ffn_dim,
                                       .n_layers = 1,
                                       .n_heads = dim / 128,
                                       .n_kv_heads = n_kv_heads,
                                       .head_dim = 128,
                                       .vocab_size = 1000,
                                       .trained_seq_len = 64});
    for (const SyntheticType& type :
         {SyntheticType{DType::U4, 64}, {DType::U4, 32}, {DType::U8, 0}}) {
      SCOPED_TRACE(cat(dim, ' ', type.dtype, ' ', type.group));
      const Model model = make_synthetic_model(spec, type, *backend_, 1);
      const std::vector<TokenId> ids = some_ids(24, spec.vocab_size);
      const auto logits_by = [&](size_t n) {
        Session session(model, *backend_, {});
        session.eval(std::span(ids).first(8));
        std::vector<float> all;
        for (size_t i = 8; i < ids.size(); i += n) {
          const auto logits = session.decode(std::span(ids).subspan(i, n));
          all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
      };
      const std::vector<float> by_two = logits_by(2);
      EXPECT_LE(relative_error(by_two, doubles_of(logits_by(1))), 0.01);
      EXPECT_EQ(logits_by(2), by_two);
    }
  }
}

// A text that repeats itself, whose tokens are all better than the next best by far more than any
// rounding.
TEST_F(CudaModel, DraftsChangeNoTextWhoseTokensAreFarApart) {
  const auto path = fs::path(MINFER_FIXTURES) / "../../models/demo";
  MINFER_NEEDS(path);
  const Model model = load_model(path.string(), *backend_);
  std::string text = "The cat sat on the mat. The dog sat on the log.";
  text += ' ' + text + ' ' + text;
  const std::vector<TokenId> prompt = model.tokenizer->encode(text, {});
  GenerateOptions options;
  options.n_predict = 80;
  options.n_logprobs = 2;
  options.sampler.temperature = 0;
  for (const DType kv_dtype : {DType::F16, DType::U8}) {
    const auto result = [&](bool drafts) {
      options.drafts = drafts;
      Session session(model, *backend_, {.kv_dtype = kv_dtype});
      return generate(session, prompt, options, nullptr);
    };
    const GenerateResult want = result(false), drafted = result(true);
    for (const GeneratedToken& token : want.steps) {
      ASSERT_GT(token.top[0].logprob - token.top[1].logprob, 0.1);
    }
    EXPECT_EQ(drafted.text, want.text) << kv_dtype;
    EXPECT_EQ(drafted.tokens, want.tokens) << kv_dtype;
    EXPECT_GT(drafted.accepted_tokens, 20) << kv_dtype;
    EXPECT_EQ(drafted.decoded_tokens(), want.decode_steps) << kv_dtype;
    for (size_t i = 0; i < want.steps.size(); ++i) {
      EXPECT_NEAR(drafted.steps[i].logprob, want.steps[i].logprob, 0.05) << kv_dtype << ", " << i;
    }
    // Without log-probabilities the card chooses.
    ASSERT_EQ(model.spec.vocab_size % 4, 0);
    options.n_logprobs = 0;
    const GenerateResult chosen = result(true);
    options.n_logprobs = 2;
    EXPECT_EQ(chosen.tokens, want.tokens) << kv_dtype;
    EXPECT_GT(chosen.accepted_tokens, 20) << kv_dtype;
  }
}

// The tokens that a card chooses behind 1 to 8 rows, whose steps are those of one token, of two,
// and of several, are the sampler's of the logits of the same steps.
TEST_F(CudaModel, ChoosesBehindEachRowAsTheSampler) {
  const ModelSpec spec = llama_spec({.dim = 256,
                                     .ffn_dim = 512,
                                     .n_heads = 2,
                                     .n_kv_heads = 2,
                                     .head_dim = 128,
                                     .vocab_size = 1000,
                                     .trained_seq_len = 200});
  const Model model = make_synthetic_model(spec, {DType::U4, 64}, *backend_, 1);
  const std::vector<TokenId> ids = some_ids(60, spec.vocab_size);
  Session session(model, *backend_, {});
  session.eval(std::span(ids).first(20));
  for (const float temperature : {0.0f, 0.8f}) {
    const SamplerOptions options{
        .temperature = temperature, .top_k = 40, .logit_bias = {}, .seed = 3};
    Sampler sampler(options, spec.vocab_size);
    for (size_t n = 1; n <= 8; ++n) {
      session.truncate(20);
      const auto tokens = std::span(ids).subspan(20, n);
      const DecodeSampling sampling{.temperature = temperature,
                                    .top_k = options.top_k,
                                    .top_p = options.top_p,
                                    .min_p = options.min_p,
                                    .seed = options.seed,
                                    .first_draw = 11,
                                    .n_tokens = spec.vocab_size,
                                    .banned = {}};
      const auto on_card = session.choose(tokens, sampling);
      const std::vector<TokenId> chosen(on_card.begin(), on_card.end());
      ASSERT_EQ(chosen.size(), n);
      EXPECT_EQ(session.pos(), int64_t(20 + n));
      session.truncate(20);
      const auto logits = session.decode(tokens);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(chosen[i], sampler.sample(logits.subspan(i * 1000, 1000), {}, 11 + i))
            << "row " << i << " of " << n << ", temperature " << temperature;
      }
    }
  }
}

TEST_F(CudaModel, NamesADraftThatIsNotFinite) {
  const Model model = model_with_a_nan(*backend_);
  Session session(model, *backend_, {});
  session.eval(some_ids(5, 70));
  const std::vector<TokenId> good = {2, 3, 4, 5}, bad = {2, 3, 77, 5};
  const auto first = session.decode(good);
  const std::vector<float> want(first.begin(), first.end());
  session.truncate(5);
  expect_error(ErrorKind::Numeric, "not a finite number after layer 0",
               [&] { session.decode(bad); });
  EXPECT_EQ(session.pos(), 5);
  const auto again = session.decode(good);
  EXPECT_EQ(std::vector<float>(again.begin(), again.end()), want);
}

// The same where the card chooses tokens: of one row, of two, of several. Several rows of a length
// that is no multiple of 4 it leaves to the host.
TEST_F(CudaModel, NamesADraftThatIsNotFiniteWhereItChooses) {
  const std::vector<TokenId> good = {2, 3, 4, 5}, bad = {2, 3, 77, 5};
  for (const int64_t vocab_size : {132, 131}) {
    const Model model = model_with_a_nan(*backend_, vocab_size);
    const DecodeSampling greedy{.n_tokens = vocab_size, .banned = {}};
    Session session(model, *backend_, {});
    session.eval(some_ids(5, 70));
    if (vocab_size % 4 != 0) {
      EXPECT_TRUE(session.choose(good, greedy).empty());
      EXPECT_EQ(session.pos(), 5);
      continue;
    }
    const auto first = session.choose(good, greedy);
    const std::vector<TokenId> want(first.begin(), first.end());
    ASSERT_EQ(want.size(), 4u);
    session.truncate(5);
    for (const auto& [begin, n] : {std::pair{2, 1}, {1, 2}, {0, 4}}) {
      const auto some = std::span(bad).subspan(size_t(begin), size_t(n));
      expect_error(ErrorKind::Numeric, "not a finite number after layer 0",
                   [&] { session.choose(some, greedy); });
      EXPECT_EQ(session.pos(), 5) << n << " rows";
    }
    const auto again = session.choose(good, greedy);
    EXPECT_EQ(std::vector<TokenId>(again.begin(), again.end()), want);
  }
}

}  // namespace
}  // namespace minfer::test
