#include <cstdlib>
#include <random>

#include "kernels/comm/ring.h"
#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"
#include "tests/support/card_ranks.h"
#include "tests/support/fixture_models.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

// Ranks that may share a card upload in a run of its own: an allocation may wait for the card, and
// so for a kernel of another rank, which waits for this one. So may the loading of a kernel, which
// comes with its first launch unless all are loaded at the start.
const bool kLoadsAllKernels = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

class CudaRanks : public testing::TestWithParam<int> {};

TEST_P(CudaRanks, AllReducesHaveTheSumsOfTheDocumentedOrder) {
  MINFER_NEEDS_CARD();
  const int n_ranks = GetParam();
  const auto backend = card_ranks(n_ranks);
  RankGroup& group = *backend->ranks();
  std::mt19937_64 random(5);
  for (const int64_t n : {1, 2, 7, 64, 4096, 131071, 131072, 131076, 131078, 1 << 20, 5'000'004}) {
    for (const AllReduceKind kind :
         {AllReduceKind::OneShot, AllReduceKind::TwoShot, AllReduceKind::Ring}) {
      SCOPED_TRACE(cat(n, " by ", int(kind)));
      std::vector<HostTensor> inputs, outputs(static_cast<size_t>(n_ranks));
      for (int rank = 0; rank < n_ranks; ++rank) inputs.push_back(random_normal(random(), {1, n}));
      const bool has = kind == AllReduceKind::OneShot ? n <= 131072 : n % 4 == 0;
      std::vector<DeviceTensor> on_card(static_cast<size_t>(n_ranks));
      group.run([&](int rank) {
        on_card[size_t(rank)] = group.backend(rank).upload(inputs[size_t(rank)]);
      });
      group.run([&](int rank) {
        const Backend& own = group.backend(rank);
        const DeviceTensor& x = on_card[size_t(rank)];
        EXPECT_EQ(own.communicator()->all_reduce_by(kind, x), has);
        outputs[size_t(rank)] = HostTensor(DType::F32, {1, n});
        group.backend(rank).download_into(outputs[size_t(rank)], x);
      });
      group.check();
      if (!has) continue;
      const bool is_ring = kind == AllReduceKind::Ring;
      int64_t n_wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        int first = 0;
        while (is_ring && chunk_begin(n / 4, n_ranks, first + 1) <= i / 4) ++first;
        float sum = inputs[size_t(first)].at(i);
        for (int k = 1; k < n_ranks; ++k) sum += inputs[size_t((first + k) % n_ranks)].at(i);
        for (const HostTensor& output : outputs) n_wrong += output.at(i) != sum;
      }
      EXPECT_EQ(n_wrong, 0);
    }
  }
}

TEST_P(CudaRanks, GatherColumns) {
  MINFER_NEEDS_CARD();
  ASSERT_TRUE(kLoadsAllKernels);
  const int n_ranks = GetParam();
  const auto backend = card_ranks(n_ranks);
  RankGroup& group = *backend->ranks();
  for (const int64_t n_rows : {1, 3, 64}) {
    const int64_t n = 1003;
    const HostTensor whole = random_normal(3, {n_rows, n});
    std::vector<HostTensor> outputs(static_cast<size_t>(n_ranks));
    std::vector<DeviceTensor> parts(static_cast<size_t>(n_ranks)), outs(parts.size());
    group.run([&](int rank) {
      Backend& own = group.backend(rank);
      const int64_t begin = chunk_begin(n, n_ranks, rank);
      const int64_t width = chunk_begin(n, n_ranks, rank + 1) - begin;
      HostTensor part(DType::F32, {n_rows, width});
      for (int64_t i = 0; i < n_rows * width; ++i) {
        part.as<float>()[i] = whole.at(i / width * n + begin + i % width);
      }
      parts[size_t(rank)] = own.upload(part);
      outs[size_t(rank)] = own.upload(random_normal(1, {n_rows, n}));
    });
    group.run([&](int rank) {
      Backend& own = group.backend(rank);
      const DeviceTensor &part = parts[size_t(rank)], &out = outs[size_t(rank)];
      const int64_t begin = chunk_begin(n, n_ranks, rank);
      for (int again = 0; again < 5; ++again) own.communicator()->all_gather(out, part, begin);
      outputs[size_t(rank)] = HostTensor(DType::F32, {n_rows, n});
      own.download_into(outputs[size_t(rank)], out);
    });
    group.check();
    for (const HostTensor& output : outputs) {
      for (int64_t i = 0; i < n_rows * n; ++i) ASSERT_EQ(output.at(i), whole.at(i)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaRanks, testing::Values(2, 3, 4));

// Whole models run on as many ranks as there are cards: two backends on one card must not launch at
// the same time.
#define MINFER_NEEDS_TWO_CARDS() \
  if (n_cuda_devices() < 2) GTEST_SKIP() << "needs two CUDA cards"

std::vector<std::string> models_for_ranks() {
  return n_cuda_devices() > 1 ? fixture_models() : std::vector<std::string>{"none"};
}

class CudaRankLogits : public testing::TestWithParam<std::string> {};

TEST_P(CudaRankLogits, AgreeWithTransformers) {
  MINFER_NEEDS_TWO_CARDS();
  const FixtureModel fixture = fixture_model(GetParam());
  const auto error_on = [&](Backend& backend) {
    const Model model = load_model(fixture.path, backend);
    Session session(model, backend, {});
    return relative_error(session.eval_all(fixture.ids), fixture.logits);
  };
  HalfBackend plain(DType::F16);
  const double most = kMostOfPlain * error_on(plain);
  for (int n_ranks = 2; n_ranks <= std::min(n_cuda_devices(), 8); n_ranks *= 2) {
    const auto backend = card_ranks(n_ranks);
    try {
      const double error = error_on(*backend);
      RecordProperty(cat("error_", n_ranks), cat(error));
      EXPECT_LE(error, most) << n_ranks;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Usage) << error.what();  // it cannot be cut so
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaRankLogits, testing::ValuesIn(models_for_ranks()),
                         fixture_test_name);

// The demonstration model on two cards: each run writes the same text, and its logits are those of
// one card up to the rounding of BF16.
TEST(CudaRanksText, RepeatsAndIsNearThatOfOneCard) {
  MINFER_NEEDS_TWO_CARDS();
  const auto path = fixtures_dir() / "../../models/demo";
  const auto one = make_cuda_backend({.compute_dtype = DType::BF16});
  const auto two = card_ranks(2, DType::BF16);
  const Model model = load_model(path.string(), *two), whole = load_model(path.string(), *one);
  const std::vector<TokenId> prompt =
      model.tokenizer->encode("The old man went to the sea", {.add_bos = true});
  GenerateOptions options;
  options.n_predict = 40;
  options.n_logprobs = 1;  // tokens are chosen on the host
  std::vector<TokenId> text;
  for (int again = 0; again < 3; ++again) {
    Session session(model, *two, {.max_seq_len = 256});
    const GenerateResult result = generate(session, prompt, options, nullptr);
    if (text.empty()) text = result.tokens;
    EXPECT_EQ(result.tokens, text);
  }
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), text.begin(), text.end());
  const std::vector<float> of_one = all_logits(whole, *one, all, {.max_seq_len = 256});
  const std::vector<double> reference(of_one.begin(), of_one.end());
  // A logit is rounded once a layer on either side; 8 layers of 2^-9, and as much again for sums.
  EXPECT_LE(relative_error(all_logits(model, *two, all, {.max_seq_len = 256}), reference), 0.03);
}

// 50 short generations, or 1000 with MINFER_LONG_TESTS: prompts that go through every all-reduce,
// tokens chosen on the cards, and now and then a session that ends early. Each prompt has the same
// text every time.
TEST(CudaRanksText, ManyShortGenerations) {
  MINFER_NEEDS_TWO_CARDS();
  const auto two = card_ranks(2, DType::BF16);
  const Model model = load_model((fixtures_dir() / "../../models/demo").string(), *two);
  const std::string text = "The old man went to the sea, and the sea came to him in the night.";
  const std::vector<TokenId> all = model.tokenizer->encode(text, {.add_bos = true});
  constexpr int kPrompts = 9;
  std::vector<std::vector<TokenId>> first(kPrompts);
  const int n = std::getenv("MINFER_LONG_TESTS") != nullptr ? 1000 : 50;
  for (int i = 0; i < n; ++i) {
    SCOPED_TRACE(i);
    const int which = i % kPrompts;
    const std::vector<TokenId> prompt(all.begin(), all.begin() + 1 + which * 2);
    Session session(model, *two, {.max_seq_len = 64});
    GenerateOptions options;
    options.n_predict = 3 + which;
    const GenerateResult result = generate(session, prompt, options, nullptr);
    if (first[size_t(which)].empty()) first[size_t(which)] = result.tokens;
    EXPECT_EQ(result.tokens, first[size_t(which)]);
    if (i % 7 == 0 && session.pos() + 9 <= session.max_seq_len()) {
      auto run = session.run_from(prompt[0], 8, {.n_tokens = model.spec.vocab_size, .banned = {}});
      ASSERT_TRUE(run);
      run->next();  // and the step behind it is under way
    }
  }
}

// One kernel a step on two cards, for every format that it takes: its logits are near those of the
// step operation by operation, and a run, which chooses tokens on the cards, writes what steps do
// whose tokens the host chooses.
class CudaRanksDecode : public testing::TestWithParam<const char*> {};

TEST_P(CudaRanksDecode, FusedStepsComputeWhatOperationsDo) {
  MINFER_NEEDS_TWO_CARDS();
  const auto two = card_ranks(2);
  const Model model = make_synthetic_model(GetParam(), *two);
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 150; ++i) prompt.push_back(i * 37 % 1000);
  constexpr int kTokens = 8;
  std::vector<TokenId> chosen = {1};
  const auto logits_of = [&](bool fused) {
    Session session(model, *two, {.max_seq_len = 512, .fused_decode = fused});
    session.eval(prompt);
    std::vector<double> all;
    for (int i = 0; i < kTokens; ++i) {
      const std::span<const float> logits = session.eval({&chosen[size_t(i)], 1});
      all.insert(all.end(), logits.begin(), logits.end());
      if (fused) {
        chosen.push_back(TokenId(std::ranges::max_element(logits) - logits.begin()));
      }
    }
    return all;
  };
  const std::vector<double> fused = logits_of(true), plain = logits_of(false);
  EXPECT_LE(relative_error(std::vector<float>(fused.begin(), fused.end()), plain), 0.03);

  Session session(model, *two, {.max_seq_len = 512});
  session.eval(prompt);
  auto run =
      session.run_from(chosen[0], kTokens, {.n_tokens = model.spec.vocab_size, .banned = {}});
  ASSERT_TRUE(run);
  for (int i = 1; i <= kTokens; ++i) EXPECT_EQ(run->next(), chosen[size_t(i)]) << i;
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaRanksDecode,
                         testing::Values("smollm2-135m:f16", "smollm2-135m:int8",
                                         "smollm2-135m:int4"),
                         [](const auto& info) { return std::string(info.param).substr(13); });

}  // namespace
}  // namespace minfer::test
