#include "kernels/cuda/attention/prefill.h"
#include "tests/kernels/cuda/attention_cases.h"

// Tests only the kernel for Hopper cards, in cases small enough for the CPU (emulated/).
namespace minfer::test {
namespace {

struct WgmmaCase {
  Heads heads;
  DType q_dtype, out_dtype;
};

// For each head: every 7th row, the first and last rows of warpgroups, and the last row of all.
std::vector<std::pair<int64_t, int64_t>> rows_of_each_head(int64_t n_tokens, int64_t n_heads) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (int64_t head = 0; head < n_heads; ++head) {
    for (int64_t t = 0; t < n_tokens; ++t) {
      const bool is_edge = t % 64 == 0 || t % 64 == 63 || t + 1 == n_tokens;
      if (is_edge || t % 7 == head % 7) rows.emplace_back(t, head);
    }
  }
  return rows;
}

void check_case(const WgmmaCase& c, int64_t pos, int64_t n_tokens, int64_t window = 0,
                float softcap = 0, const HostTensor& sinks = {}) {
  const Heads& h = c.heads;
  SCOPED_TRACE(
      cat(h, ", ", c.q_dtype, " to ", c.out_dtype, ", window ", window, ", soft cap ", softcap));
  TestCache cache(1, DType::F16, h, pos + n_tokens + 3);
  cache.poison(pos + n_tokens);
  if (window > 0) cache.poison_pages_before(std::max<int64_t>(0, pos + 1 - window));
  const auto k = cache.all_head_values(true, pos + n_tokens),
             v = cache.all_head_values(false, pos + n_tokens);
  // Scores with a wide range, so that the maximum rises far from one tile of keys to the next.
  const HostTensor q = random_normal(9, {n_tokens, h.n_heads, h.head_dim}, c.q_dtype, 8);
  const DeviceTensor q_dev = to_device(q);
  DeviceTensor sinks_dev;
  if (sinks.view()) sinks_dev = to_device(sinks);
  const DeviceTensor out = poisoned_device(c.out_dtype, {n_tokens + 1, h.n_heads, h.head_dim});
  cuda::attention::prefill_wgmma(nullptr, out.view().rows(0, n_tokens), q_dev, cache.layer.keys,
                                 cache.layer.values, cache.pages_on_card(), pos, scale_of(h),
                                 window, softcap, sinks.view() ? sinks_dev.view() : Tensor());
  PlainErrors errors;
  ASSERT_NO_FATAL_FAILURE(expect_prefill(to_host(out), q, k, v, h, pos, n_tokens, Through::Nothing,
                                         rows_of_each_head(n_tokens, h.n_heads),
                                         sinks.view() ? nullptr : &errors, window, softcap, sinks));
  if (sinks.view()) return;  // the plain code has none
  errors.expect_within(c.out_dtype, cat("pos ", pos, ", ", n_tokens, " tokens"));
}

// Head sizes of each tile width and below; one query, whole tiles, one query more and one less, at
// the first and at later positions; the last position at which a tile of keys needs a mask; enough
// keys for several rounds of their ring.
TEST(PrefillWgmma, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  if (!cuda::attention::has_prefill_wgmma(128)) {
    GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
  for (const WgmmaCase& c : {WgmmaCase{{4, 2, 128}, DType::F16, DType::F16},
                             {{5, 5, 128}, DType::BF16, DType::BF16},
                             {{3, 1, 64}, DType::F16, DType::BF16},
                             {{2, 1, 80}, DType::F16, DType::F16},
                             {{3, 3, 96}, DType::BF16, DType::F16},
                             {{1, 1, 40}, DType::F16, DType::F16}}) {
    for (const auto& [pos, n_tokens] : {std::pair<int64_t, int64_t>{0, 300},
                                        {0, 1},
                                        {0, 128},
                                        {77, 127},
                                        {126, 130},
                                        {128, 129},
                                        {500, 9},
                                        {1200, 130}}) {
      check_case(c, pos, n_tokens);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Windows of less than a tile, of whole tiles, and in between. The first tile of keys that a block
// of queries sees is hidden wholly from its last query, or from no query.
TEST(PrefillWgmma, WindowsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  if (!cuda::attention::has_prefill_wgmma(128)) {
    GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
  for (const WgmmaCase& c :
       {WgmmaCase{{4, 2, 128}, DType::F16, DType::F16}, {{3, 1, 64}, DType::BF16, DType::BF16}}) {
    for (const int64_t window : {1, 100, 128, 129, 256, 300}) {
      for (const auto& [pos, n_tokens] :
           {std::pair<int64_t, int64_t>{0, 300}, {128, 129}, {477, 200}}) {
        check_case(c, pos, n_tokens, window);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Sinks far over the scores, among them, and far under them.
TEST(PrefillWgmma, SinksMatchFloat64) {
  MINFER_NEEDS_CUDA();
  if (!cuda::attention::has_prefill_wgmma(128)) {
    GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
  for (const WgmmaCase& c :
       {WgmmaCase{{4, 2, 128}, DType::F16, DType::F16}, {{3, 1, 64}, DType::BF16, DType::BF16}}) {
    HostTensor sinks = random_normal(4, {c.heads.n_heads}, DType::F32, 3);
    sinks.as<float>()[0] = 60;
    sinks.as<float>()[1] = -200;
    for (const int64_t window : {0, 1, 128}) {
      for (const auto& [pos, n_tokens] :
           {std::pair<int64_t, int64_t>{0, 300}, {128, 129}, {477, 20}}) {
        check_case(c, pos, n_tokens, window, 0, sinks);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Caps that most scores come near and that few do, with a window and without.
TEST(PrefillWgmma, SoftCapsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  if (!cuda::attention::has_prefill_wgmma(128)) {
    GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
  for (const WgmmaCase& c :
       {WgmmaCase{{4, 2, 128}, DType::F16, DType::F16}, {{3, 1, 64}, DType::BF16, DType::BF16}}) {
    for (const auto& [window, softcap] :
         {std::pair<int64_t, float>{0, 2.0f}, {0, 50.0f}, {100, 5.0f}}) {
      for (const auto& [pos, n_tokens] :
           {std::pair<int64_t, int64_t>{0, 300}, {128, 129}, {477, 200}}) {
        check_case(c, pos, n_tokens, window, softcap);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
