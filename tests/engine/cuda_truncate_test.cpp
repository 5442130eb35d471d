#include "models/synthetic.h"
#include "tests/engine/cuda_models.h"

namespace minfer::test {
namespace {

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

// What a session forgets leaves no trace: a prefill and a decode behind the kept tokens give the
// bits that they give in a session that never had others.
TEST(CudaTruncate, WhatIsForgottenLeavesNoTrace) {
  MINFER_NEEDS_CARD();
  ModelConfig config;
  config.dim = 256;
  config.ffn_dim = 512;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = config.rotary_dim = 64;
  config.vocab_size = 512;
  config.trained_seq_len = 512;
  config.norm_eps = 1e-5f;
  config.rope_theta = 1e4;
  const std::vector<TokenId> ids = some_ids(400, config.vocab_size);
  const std::span<const TokenId> all = ids;
  const std::vector<TokenId> other(150, 7);
  for (const bool persistent : {true, false}) {
    const auto backend = make_cuda_backend({.persistent_decode = persistent});
    const Model model = make_synthetic_model(config, DType::F16, *backend, 1);
    for (const DType kv : {DType::F16, DType::U8}) {
      for (const int64_t kept : {1, 57, 128, 200}) {
        SCOPED_TRACE(cat(persistent ? "one kernel" : "a graph", ", ", kv, ", ", kept));
        Session fresh(model, *backend, {.kv_dtype = kv}), reused(model, *backend, {.kv_dtype = kv});
        fresh.eval(all.first(size_t(kept)));
        reused.eval(all.first(size_t(kept)));
        reused.eval(other);
        {
          auto run = reused.run_from(3, 20, {.n_tokens = config.vocab_size, .banned = {}});
          ASSERT_TRUE(run);
          for (int i = 0; i < 11; ++i) run->next();  // and ends with a step under way
        }
        reused.truncate(kept);
        for (const size_t n : {size_t{40}, size_t{1}, size_t{5}, size_t{1}}) {
          const auto next = all.subspan(size_t(fresh.pos()), n);
          EXPECT_EQ(copy(reused.eval(next)), copy(fresh.eval(next))) << "at " << fresh.pos();
        }
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
