#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"

namespace minfer::test {
namespace {

// Some layers of SmolLM2-135M, whose step is that of one cluster. The third length is past the
// positions where a block attends with one query head.
TEST_F(CudaModel, StepsOfOneClusterAgreeWithTheCpu) {
  const auto cpu = make_cpu_backend();
  HalfBackend plain(DType::F16);
  const ModelSpec spec = llama_spec({.dim = 576,
                                     .ffn_dim = 1536,
                                     .n_layers = 4,
                                     .n_heads = 9,
                                     .n_kv_heads = 3,
                                     .head_dim = 64,
                                     .vocab_size = 1000,
                                     .trained_seq_len = 1024});
  for (const int64_t group : {64, 32}) {
    SCOPED_TRACE(cat("groups of ", group));
    const SyntheticType type{DType::U4, group};
    const Model on_cpu = make_synthetic_model(spec, type, *cpu, 1);
    const Model on_card = make_synthetic_model(spec, type, *backend_, 1);
    const Model in_plain = make_synthetic_model(spec, type, plain, 1);
    for (const int64_t n : {1, 130, 450}) {
      SCOPED_TRACE(cat(n, " positions"));
      const std::vector<TokenId> ids = some_ids(n, spec.vocab_size);
      const SessionOptions options{.prefill_chunk = 512};
      const auto want = doubles_of(last_logits(on_cpu, *cpu, ids, options));
      const double most =
          kMostOfPlain * relative_error(last_logits(in_plain, plain, ids, options), want);
      const auto got = decoded_logits(on_card, *backend_, ids, options);
      const double error = relative_error(got, want);
      RecordProperty(cat("most_", group, "_", n), cat(most));
      RecordProperty(cat("error_", group, "_", n), cat(error));
      EXPECT_LE(error, most);
      for (int repetition = 0; repetition < 20; ++repetition) {
        ASSERT_EQ(decoded_logits(on_card, *backend_, ids, options), got);
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
