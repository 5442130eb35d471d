#include "engine/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/scratch.h"
#include "models/synthetic.h"
#include "tests/support/expect_error.h"
#include "tests/support/half_backend.h"
#include "tests/support/specs.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

enum class Kind { Llama, Gpt2 };

// Both kinds of block, with shapes that no tile divides: head sizes 20 at dim 80, FFN 93.
ModelSpec odd_spec(Kind kind, int64_t dim = 80) {
  const BlockSizes sizes = {.dim = dim,
                            .ffn_dim = 93,
                            .n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = dim / 4,
                            .vocab_size = 131,
                            .trained_seq_len = 640};
  ModelSpec spec = kind == Kind::Llama ? llama_spec(sizes) : gpt2_spec(sizes);
  for (LayerSpec& layer : spec.layers) {
    layer.qkv_bias = layer.attn_out_bias = layer.ffn_bias = true;
  }
  return spec;
}

std::vector<TokenId> some_tokens(size_t n) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>((i * i * 7 + i) % 131));
  return ids;
}

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

class SessionTest : public testing::TestWithParam<Kind> {
 protected:
  Model make_model(Backend& backend, const SyntheticType& type = DType::F16) {
    return make_synthetic_model(odd_spec(GetParam()), type, backend, 7);
  }
};

TEST_P(SessionTest, LogitsHaveTheSameBitsForAnyChunkAndAnyNumberOfThreads) {
  const std::vector<TokenId> ids = some_tokens(600);
  for (const std::string& isa : supported_isas()) {
    std::vector<float> expected;
    for (const int n_threads : {1, 2, 3}) {
      const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = isa});
      const Model model = make_model(*backend);
      for (const int64_t chunk : {600, 512, 64, 7, 1}) {
        Session session(model, *backend, {.prefill_chunk = chunk});
        const std::vector<float> logits = copy(session.eval(ids));
        if (expected.empty()) expected = logits;
        EXPECT_EQ(logits, expected) << isa << ", " << n_threads << " threads, chunk " << chunk;
      }
    }
  }
}

TEST_P(SessionTest, SoHaveThoseOfQuantizedWeightsInputsAndCache) {
  const std::vector<TokenId> ids = some_tokens(150);
  for (const std::string& isa : supported_isas()) {
    std::vector<float> expected;
    for (const int n_threads : {1, 2}) {
      const auto backend =
          make_cpu_backend({.n_threads = n_threads, .isa = isa, .activations = Activations::Int8});
      const Model model = make_model(*backend, {DType::U4, 32});
      for (const int64_t chunk : {150, 64, 1}) {
        Session session(model, *backend, {.prefill_chunk = chunk, .kv_dtype = DType::U8});
        const std::vector<float> logits = copy(session.eval(ids));
        if (expected.empty()) expected = logits;
        EXPECT_EQ(logits, expected) << isa << ", " << n_threads << " threads, chunk " << chunk;
      }
    }
  }
}

TEST_P(SessionTest, AllLogitsAreThoseOfEachPrefix) {
  const auto backend = make_cpu_backend();
  const Model model = make_model(*backend);
  const std::vector<TokenId> ids = some_tokens(40);
  Session all(model, *backend, {}), one_by_one(model, *backend, {});
  const std::vector<float> logits = copy(all.eval_all(ids));
  ASSERT_EQ(logits.size(), 40u * 131u);
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto expected = one_by_one.eval({&ids[t], 1});
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), logits.begin() + int64_t(t) * 131))
        << "token " << t;
  }
}

TEST_P(SessionTest, SequencesOfOnePassAreEachAsAlone) {
  const auto backend = make_cpu_backend({.isa = "", .activations = Activations::Int8});
  const Model model = make_model(*backend, {DType::U4, 32});
  const std::vector<TokenId> ids = some_tokens(60);
  const std::span<const TokenId> all = ids;
  const std::vector<Session::Text> texts = {
      {all.subspan(3, 9), 4}, {all.subspan(20, 1)}, {all.subspan(5, 30), 29}, {all.first(7), 7}};
  const SessionOptions options = {
      .max_seq_len = 30, .prefill_chunk = 47, .kv_dtype = DType::U8, .several_sequences = true};
  Session together(model, *backend, options), alone(model, *backend, options);
  together.eval(all.first(2));
  std::vector<float> expected;
  for (const Session::Text& text : texts) {
    alone.truncate(0);
    const auto logits = alone.eval_all(text.tokens, text.first);
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(expected.size(), (5u + 1 + 1) * 131);
  EXPECT_EQ(copy(together.eval_texts(texts)), expected);
  EXPECT_EQ(together.pos(), 0);
  expect_error(ErrorKind::Usage, "logits of 48 tokens at once, the prefill chunk is 47", [&] {
    together.eval_texts(std::vector<Session::Text>{{all.first(30)}, {all.first(18)}});
  });
  expect_error(ErrorKind::Usage, "31 tokens after 0 do not fit the context of 30",
               [&] { together.eval_texts(std::vector<Session::Text>{{all.first(31)}}); });
}

TEST_P(SessionTest, DecodesSeveralTokensWithTheBitsOfEach) {
  const auto backend = make_cpu_backend();
  const Model model = make_model(*backend);
  const std::vector<TokenId> ids = some_tokens(45);
  for (const DType kv_dtype : {DType::F16, DType::U8}) {
    Session session(model, *backend, {.kv_dtype = kv_dtype});
    const std::vector<float> want = copy(session.eval_all(ids));
    session.truncate(0);
    std::vector<float> got;
    for (size_t n = 1; size_t(session.pos()) < ids.size(); ++n) {
      const auto some = std::span(ids).subspan(size_t(session.pos()), n);
      const auto logits = session.decode(some);
      got.insert(got.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(got, want);
  }
}

// A step that a backend has for rows of one sequence or of several: here it only tells what it was
// asked for. The logits, and the token chosen from them, are the row's position, but NaN and none
// at token 77. It does not choose by temperature.
struct RecordingPlan final : RowsPlan {
  explicit RecordingPlan(std::vector<std::string>& steps) : steps_(steps) {}
  int64_t max_rows() const override { return 4; }
  std::span<const float> step(std::span<const DecodeRow> rows) override {
    return record("sequences", rows);
  }
  std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) override {
    return record("sequence", rows);
  }
  std::span<const TokenId> choose(std::span<const DecodeRow> rows,
                                  std::span<const DecodeSampling> samplings) override {
    EXPECT_EQ(samplings.size(), rows.size());
    for (const DecodeSampling& sampling : samplings) {
      if (sampling.temperature > 0) return {};
    }
    return choice("choice of sequences", rows);
  }
  std::span<const TokenId> choose_of_sequence(std::span<const DecodeRow> rows,
                                              const DecodeSampling& sampling) override {
    return sampling.temperature > 0 ? std::span<const TokenId>() : choice("choice", rows);
  }
  std::span<const TokenId> choice(const std::string& what, std::span<const DecodeRow> rows) {
    record(what, rows);
    chosen_.clear();
    for (const DecodeRow& row : rows) chosen_.push_back(row.token == 77 ? -1 : TokenId(row.pos));
    return chosen_;
  }
  std::span<const float> record(std::string what, std::span<const DecodeRow> rows) {
    logits_.clear();
    for (const DecodeRow& row : rows) {
      what += cat(' ', row.token, '@', row.pos, '/', row.pages.size());
      const float logit = row.token == 77 ? std::nanf("") : float(row.pos);
      logits_.insert(logits_.end(), 131, logit);
    }
    steps_.push_back(what);
    return logits_;
  }
  std::vector<std::string>& steps_;
  std::vector<float> logits_;
  std::vector<TokenId> chosen_;
};
struct RecordingBackend final : HalfBackend {
  RecordingBackend() : HalfBackend(DType::F16) {}
  std::unique_ptr<RowsPlan> plan_rows(const DecodeModel&) override {
    return std::make_unique<RecordingPlan>(steps);
  }
  std::vector<std::string> steps;
};

TEST_P(SessionTest, DecodesSeveralTokensByAFusedStep) {
  RecordingBackend backend;
  const Model model = make_model(backend);
  Session session(model, backend, {});
  session.eval(some_tokens(126));
  const std::vector<TokenId> ids = {3, 1, 4, 2, 5};
  const auto four = std::span(ids).first(4);
  const auto logits = session.decode(four);
  ASSERT_EQ(logits.size(), 4u * 131);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(logits[i * 131 + 7], float(126 + i));
  EXPECT_EQ(session.pos(), 130);
  session.truncate(127);
  session.decode(four.first(1));
  EXPECT_EQ(session.decode(ids).size(), 5u * 131);  // more rows than the step takes
  EXPECT_EQ(session.pos(), 133);
  const std::vector<TokenId> bad = {3, 77, 2};
  expect_error(ErrorKind::Numeric, "position 134: a logit is not a finite number",
               [&] { session.decode(bad); });
  EXPECT_EQ(session.pos(), 133);
  EXPECT_EQ(backend.steps,
            (std::vector<std::string>{"sequence 3@126/2 1@127/2 4@128/2 2@129/2",
                                      "sequence 3@127/1", "sequence 3@133/2 77@134/2 2@135/2"}));
  Session unfused(model, backend, {.fused_decode = false});
  unfused.decode(four);
  EXPECT_EQ(backend.steps.size(), 3u);
}

TEST_P(SessionTest, ChoosesTokensByAFusedStep) {
  RecordingBackend backend;
  const Model model = make_model(backend);
  Session session(model, backend, {});
  session.eval(some_tokens(126));
  const std::vector<TokenId> ids = {3, 1, 4, 2, 5}, bad = {3, 77, 2};
  const auto choose = [&](std::span<const TokenId> tokens, float temperature) {
    const auto chosen = session.choose(tokens, {.temperature = temperature, .banned = {}});
    return std::vector<TokenId>(chosen.begin(), chosen.end());
  };
  EXPECT_EQ(choose(std::span(ids).first(3), 0), (std::vector<TokenId>{126, 127, 128}));
  EXPECT_EQ(session.pos(), 129);
  EXPECT_EQ(choose(std::span(ids).first(1), 0), std::vector<TokenId>{129});
  EXPECT_EQ(session.pos(), 130);
  expect_error(ErrorKind::Numeric, "position 131: a logit is not a finite number",
               [&] { choose(bad, 0); });
  EXPECT_EQ(choose(std::span(ids).first(3), 1), std::vector<TokenId>());
  EXPECT_EQ(choose(ids, 0), std::vector<TokenId>());  // more rows than the step takes
  EXPECT_EQ(session.pos(), 130);
  EXPECT_EQ(backend.steps,
            (std::vector<std::string>{"choice 3@126/2 1@127/2 4@128/2", "choice 3@129/2",
                                      "choice 3@130/2 77@131/2 2@132/2"}));
  // Of two sequences.
  Executor& executor = session.executor();
  Sequence other = executor.make_sequence();
  Sequence third = executor.make_sequence();
  const std::vector<TokenId> good_ids = {4}, bad_ids = {77};
  const auto choose_of_two = [&](std::span<const TokenId> second, float temperature) {
    const SequenceTokens parts[] = {{&other, good_ids, 1}, {&third, second, 1}};
    const DecodeSampling samplings[] = {{.banned = {}}, {.temperature = temperature, .banned = {}}};
    const auto chosen = executor.choose(parts, samplings);
    return std::vector<TokenId>(chosen.begin(), chosen.end());
  };
  EXPECT_EQ(choose_of_two(good_ids, 0), (std::vector<TokenId>{0, 0}));
  expect_error(ErrorKind::Numeric, "position 1: a logit is not a finite number",
               [&] { choose_of_two(bad_ids, 0); });
  EXPECT_EQ(choose_of_two(good_ids, 1), std::vector<TokenId>());
  EXPECT_EQ(other.pos(), 1);
  EXPECT_EQ(third.pos(), 1);
  EXPECT_EQ(std::vector(backend.steps.end() - 2, backend.steps.end()),
            (std::vector<std::string>{"choice of sequences 4@0/1 4@0/1",
                                      "choice of sequences 4@1/1 77@1/1"}));
  const auto cpu = make_cpu_backend();
  const Model on_cpu = make_model(*cpu);
  Session without_steps(on_cpu, *cpu, {});
  EXPECT_TRUE(without_steps.choose(ids, {.banned = {}}).empty());
  EXPECT_EQ(without_steps.pos(), 0);
}

TEST_P(SessionTest, TruncatedAndEvaluatedAgainEqualsFresh) {
  const auto backend = make_cpu_backend();
  const Model model = make_model(*backend);
  const std::vector<TokenId> ids = some_tokens(50), other(20, 5);
  Session fresh(model, *backend, {}), reused(model, *backend, {});
  const std::vector<float> expected = copy(fresh.eval(ids));
  reused.eval(std::span(ids).first(30));
  reused.eval(other);
  reused.truncate(30);
  EXPECT_EQ(reused.pos(), 30);
  EXPECT_EQ(copy(reused.eval(std::span(ids).subspan(30))), expected);
}

TEST_P(SessionTest, RefusesWhatDoesNotFit) {
  const auto backend = make_cpu_backend();
  const Model model = make_model(*backend);
  Session session(model, *backend, {.max_seq_len = 16, .prefill_chunk = 8});
  EXPECT_GE(session.kv_bytes(), 2 * 2 * model.spec.layer(0).kv_dim() * 16 * 2);
  session.eval(some_tokens(10));
  expect_error(ErrorKind::Usage, "7 tokens after 10 do not fit the context of 16",
               [&] { session.eval(some_tokens(7)); });
  EXPECT_EQ(session.pos(), 10);
  session.eval(some_tokens(6));
  EXPECT_EQ(session.pos(), 16);
  session.truncate(0);
  const std::vector<TokenId> bad = {3, 131};
  expect_error(ErrorKind::Usage, "token id 131 is not below the vocabulary size 131",
               [&] { session.eval(bad); });
  expect_error(ErrorKind::Usage, "no tokens to evaluate", [&] { session.eval({}); });
  expect_error(ErrorKind::Usage, "logits of 9 tokens at once, the prefill chunk is 8",
               [&] { session.eval_all(some_tokens(9)); });
  expect_error(ErrorKind::Usage, "a context of 641 tokens, the model was trained for 640",
               [&] { Session(model, *backend, {.max_seq_len = 641}); });
  expect_error(ErrorKind::Usage, "a prefill chunk of -1 tokens, expected 1 or more",
               [&] { Session(model, *backend, {.prefill_chunk = -1}); });
  expect_error(ErrorKind::Usage, "a KV cache of BF16 (supported: F16, F32, U8)",
               [&] { Session(model, *backend, {.kv_dtype = DType::BF16}); });
}

// What is said beforehand is what is taken, where the CPU's panels of 16 need no padding.
TEST_P(SessionTest, KnowsItsMemoryBeforehand) {
  const auto backend = make_cpu_backend();
  const ModelSpec spec = odd_spec(GetParam(), 64);
  const Model model = make_synthetic_model(spec, DType::F16, *backend, 7);
  for (const DType kv_dtype : {DType::F32, DType::F16, DType::U8}) {
    const SessionOptions options = {.max_seq_len = 96, .prefill_chunk = 30, .kv_dtype = kv_dtype};
    const SessionMemory memory = session_memory(spec, *backend, options);
    EXPECT_EQ(memory.n_positions, 96);
    EXPECT_EQ(memory.kv_bytes, Session(model, *backend, options).kv_bytes());
    EXPECT_EQ(memory.kv_bytes_as_int8,
              Session(model, *backend, {.max_seq_len = 96, .kv_dtype = DType::U8}).kv_bytes());
    const Scratch s = make_scratch(*backend, spec, 30);
    const std::vector<DeviceTensor> rope_tables = make_rope_tables(*backend, spec, 96);
    int64_t n_bytes = 0;
    for (const DeviceTensor* buffer :
         {&s.x, &s.positions, &s.normed, &s.q, &s.k, &s.v, &s.attended, &s.hidden, &s.logits}) {
      if (*buffer) n_bytes += buffer->view().n_bytes();
    }
    for (const DeviceTensor& table : rope_tables) n_bytes += table.view().n_bytes();
    const LayerSpec& layer = spec.layers.front();
    if (layer.gated) n_bytes += backend->ffn_workspace_bytes(30, layer.ffn_dim);
    EXPECT_EQ(memory.activation_bytes, n_bytes);
    SessionOptions with_logits = options;
    with_logits.all_logits = true;
    EXPECT_EQ(session_memory(spec, *backend, with_logits).activation_bytes,
              n_bytes + 30 * spec.vocab_size * 4);
  }
  expect_error(ErrorKind::Usage, "a context of 641 tokens, the model was trained for 640",
               [&] { session_memory(spec, *backend, {.max_seq_len = 641}); });
}

// The place is named, whichever chunk it is in.
TEST_P(SessionTest, NamesTheFirstPositionThatIsNotFinite) {
  const auto backend = make_cpu_backend();
  Model model = make_model(*backend);
  HostTensor embedding = random_normal(1, {131, 80});
  embedding.as<float>()[77 * 80 + 3] = std::nanf("");
  model.weights.embedding = backend->pack_matrix(embedding);
  std::vector<TokenId> ids(30, 5);
  ids[17] = 77;
  for (const int64_t chunk : {30, 8, 1}) {
    SCOPED_TRACE(chunk);
    Session session(model, *backend, {.prefill_chunk = chunk});
    expect_error(ErrorKind::Numeric, "position 17: not a finite number after layer 0",
                 [&] { session.eval(ids); });
  }
}

// The blocks are sound, and the output layer leaves the range of f32 behind one token alone.
TEST_P(SessionTest, NamesTheFirstPositionOfALogitThatIsNotFinite) {
  const auto backend = make_cpu_backend();
  Model model = make_model(*backend);
  const std::vector<TokenId> ids = some_tokens(30);
  HostTensor output = random_normal(3, {131, 80}, DType::F32, 0.1f);
  model.weights.output = backend->pack_matrix(output);
  Session sound(model, *backend, {});
  const std::vector<float> logits = copy(sound.eval_all(ids));
  std::vector<float> peaks(ids.size());  // the largest magnitude of each position's logits
  for (size_t i = 0; i < logits.size(); ++i) {
    peaks[i / 131] = std::max(peaks[i / 131], std::abs(logits[i]));
  }
  const auto position = std::ranges::max_element(peaks) - peaks.begin();
  std::ranges::sort(peaks, std::ranges::greater{});
  // Between the two highest peaks lies the end of the range.
  const float scale = std::numeric_limits<float>::max() / std::sqrt(peaks[0] * peaks[1]);
  float* const weights = output.as<float>();
  for (int64_t i = 0; i < 131 * 80; ++i) weights[i] *= scale;
  model.weights.output = backend->pack_matrix(output);
  Session session(model, *backend, {});
  ASSERT_GT(position, 0);
  expect_error(ErrorKind::Numeric, cat("position ", position, ": a logit is not a finite number"),
               [&] { session.eval_all(ids); });
  session.eval_all(std::span(ids).first(1));
  expect_error(ErrorKind::Numeric, cat("position ", position, ": a logit is not a finite number"),
               [&] { session.eval_all(std::span(ids).subspan(1), position - 1); });
}

INSTANTIATE_TEST_SUITE_P(Architectures, SessionTest, testing::Values(Kind::Llama, Kind::Gpt2),
                         [](const auto& info) {
                           return info.param == Kind::Llama ? "Llama" : "Gpt2";
                         });

}  // namespace
}  // namespace minfer::test
