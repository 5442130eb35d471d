#include <set>

#include "tests/engine/cuda_models.h"
#include "tests/support/fixture_models.h"

namespace minfer::test {
namespace {

std::vector<std::string> models_for_a_card() {
  return n_cuda_devices() > 0 ? fixture_models() : std::vector<std::string>{"none"};
}

class CudaFixtures : public testing::TestWithParam<std::string> {};

// The same small models as the CPU, with logits that transformers gave in float64: all tokens in
// one pass, then one by one in every way, against a plain program in half.
TEST_P(CudaFixtures, AgreeWithTransformers) {
  MINFER_NEEDS_CARD();
  const FixtureModel fixture = fixture_model(GetParam());
  const std::string& file = fixture.path;
  const std::vector<TokenId>& ids = fixture.ids;
  const std::vector<double>& reference = fixture.logits;
  const auto error_of_all = [&](Backend& backend) {
    const Model model = load_model(file, backend);
    Session session(model, backend, {});
    return relative_error(session.eval_all(ids), reference);
  };
  // Of the last logits alone, for which the last block leaves out what it can.
  const auto error_of_last = [&](Backend& backend) {
    const Model model = load_model(file, backend);
    return relative_error(last_logits(model, backend, ids, {}),
                          std::span(reference).last(static_cast<size_t>(model.spec.vocab_size)));
  };
  for (const DType compute : {DType::F16, DType::BF16}) {
    HalfBackend plain(compute);
    const double most = kMostOfPlain * error_of_all(plain);
    RecordProperty(cat("most_", compute), cat(most));
    const auto expect_within = [&](const std::string& way, double error) {
      RecordProperty(cat(way, "_", compute), cat(error));
      EXPECT_LE(error, most) << compute << ", " << way;
    };
    expect_within("in one", error_of_all(*make_cuda_backend({.compute_dtype = compute})));
    EXPECT_LE(error_of_last(*make_cuda_backend({.compute_dtype = compute})),
              kMostOfPlain * std::max(error_of_last(plain), error_of_all(plain)))
        << compute << ", the last";
    for (const DecodeWay& way : kDecodeWays) {
      const auto backend =
          make_cuda_backend({.compute_dtype = compute, .persistent_decode = way.persistent});
      const Model model = load_model(file, *backend);
      const auto by_one = all_decoded_logits(model, *backend, ids, {.fused_decode = way.fused});
      expect_within(way.name, relative_error(by_one, reference));
    }
  }
}

// Families whose every block the graph takes. Those of others, and experts of few elements, may be
// computed operation by operation.
bool always_has_a_plan(const std::string& family) {
  return std::set<std::string>{"llama", "mistral", "gpt2", "qwen2", "qwen3", "smollm3", "phi3"}
      .contains(family);
}

// A run gives the tokens that the sampler chooses from the logits of the same steps one by one:
// stopped in the middle, begun anew behind it, and to the end of the cache.
TEST_P(CudaFixtures, ChooseTheirTokensAsTheSamplerDoes) {
  MINFER_NEEDS_CARD();
  const std::string path = fixture_model(GetParam()).path;
  for (const bool persistent : {true, false}) {
    SCOPED_TRACE(persistent ? "one kernel" : "a graph");
    const auto backend = make_cuda_backend({.persistent_decode = persistent});
    const Model model = load_model(path, *backend);
    const int64_t n_tokens = model.spec.vocab_size;
    const int64_t n_prompt = 5, n = std::min<int64_t>(model.spec.trained_seq_len, 64) - n_prompt;
    Session session(model, *backend, {.max_seq_len = n_prompt + n});
    session.eval(some_ids(n_prompt, n_tokens));
    if (session.executor().decode_plan() == nullptr) {
      EXPECT_FALSE(always_has_a_plan(model.spec.family)) << model.spec.family;
      EXPECT_FALSE(session.run_from(2, 1, {.n_tokens = n_tokens, .banned = {}}));
      continue;
    }
    for (const DecodeSampling& sampling :
         {DecodeSampling{.n_tokens = n_tokens, .banned = {}},
          DecodeSampling{.n_tokens = n_tokens - 3, .banned = {1}}, seeded(n_tokens)}) {
      SCOPED_TRACE(sampling.temperature);
      const auto restart = [&] { session.truncate(n_prompt); };
      restart();
      const std::vector<TokenId> want = chosen_on_host(session, 2, n, sampling);
      restart();
      EXPECT_EQ(chosen_by_run(session, 2, n, n, sampling), want);
      EXPECT_EQ(session.pos(), session.max_seq_len());
      for (const int64_t n_first : {1, 2, 7}) {
        const std::vector<TokenId> first(want.begin(), want.begin() + n_first);
        const std::vector<TokenId> second(want.begin() + n_first, want.end());
        DecodeSampling later = sampling;
        later.first_draw += uint64_t(n_first);
        for (const int64_t n_steps : {n_first, n}) {
          restart();
          EXPECT_EQ(chosen_by_run(session, 2, n_first, n_steps, sampling), first);
          EXPECT_EQ(chosen_by_run(session, first.back(), n - n_first, n - n_first, later), second);
        }
        restart();
        EXPECT_EQ(chosen_by_run(session, 2, n_first, n, sampling), first);
        EXPECT_EQ(chosen_on_host(session, first.back(), n - n_first, later), second);
      }
    }
    session.truncate(n_prompt);
    EXPECT_FALSE(session.run_from(2, 1, {.n_tokens = n_tokens + 1, .banned = {}}));
    EXPECT_EQ(session.pos(), n_prompt);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaFixtures, testing::ValuesIn(models_for_a_card()),
                         fixture_test_name);

}  // namespace
}  // namespace minfer::test
