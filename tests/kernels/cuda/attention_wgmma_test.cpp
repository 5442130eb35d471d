#include "kernels/cuda/attention/prefill.h"
#include "tests/kernels/cuda/attention_cases.h"

// The kernel for Hopper cards by itself, in cases small enough for the CPU (emulated/).
namespace minfer::test {
namespace {

struct WgmmaCase {
  Heads heads;
  DType q_dtype, out_dtype;
};

// Rows of x in float64, as the kernel rounds queries.
float64::Values query(const HostTensor& x, int64_t row, int64_t head_dim) {
  float64::Values values;
  for (int64_t i = row * head_dim; i < (row + 1) * head_dim; ++i) {
    values.push_back(double(to_f32(to_f16(x.at(i)))));
  }
  return values;
}

// Every 7th row, the first and the last ones of tiles and of warpgroups, and a poisoned row behind
// the last; keys behind the last are poisoned too.
void check_case(const WgmmaCase& c, int64_t pos, int64_t n_tokens) {
  const Heads& h = c.heads;
  SCOPED_TRACE(cat(h, ", ", c.q_dtype, " to ", c.out_dtype, ", pos ", pos, ", ", n_tokens));
  TestCache cache(1, DType::F16, h, pos + n_tokens + 3);
  poison(cache.layer, pos + n_tokens);
  // Scores wide enough for maxima to rise far from one tile of keys to the next.
  const HostTensor q = random_normal(9, {n_tokens, h.n_heads, h.head_dim}, c.q_dtype, 8);
  const DeviceTensor q_dev = to_device(q);
  const DeviceTensor out = poisoned_device(c.out_dtype, {n_tokens + 1, h.n_heads, h.head_dim});
  cuda::attention::prefill_wgmma(nullptr, out.view().rows(0, n_tokens), q_dev, cache.layer.keys,
                                 cache.layer.values, pos, scale_of(h));
  const HostTensor got = to_host(out);
  PlainErrors errors;
  for (int64_t head = 0; head < h.n_heads; ++head) {
    const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
    const float64::Values k = cache.head_values(true, kv_head, pos + n_tokens);
    const float64::Values v = cache.head_values(false, kv_head, pos + n_tokens);
    for (int64_t t = 0; t < n_tokens; ++t) {
      if (t % 7 != head % 7 && t % 64 != 0 && t % 64 != 63 && t + 1 < n_tokens) continue;
      const int64_t row = t * h.n_heads + head;
      std::vector<float> values;
      for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(row * h.head_dim + i));
      ASSERT_NO_FATAL_FAILURE(expect_row(query(q, row, h.head_dim), k, v, h, pos + t, c.out_dtype,
                                         Through::Nothing, values.data(),
                                         cat("token ", t, ", head ", head), &errors));
    }
  }
  errors.expect_within(c.out_dtype, "sampled rows");
  for (int64_t i = 0; i < h.n_heads * h.head_dim; ++i) {
    const int64_t at = n_tokens * h.n_heads * h.head_dim + i;
    ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[at], 0xFFFF) << "past the end";
  }
}

// Head sizes of each kind of tile and less than one; more tiles of queries than blocks, where these
// are few; one query, whole tiles, one more and one less, at the first and at later positions.
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
    for (const auto& [pos, n_tokens] :
         {std::pair<int64_t, int64_t>{0, 300}, {0, 1}, {0, 128}, {77, 127}, {128, 129}, {500, 9}}) {
      check_case(c, pos, n_tokens);
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace minfer::test
