#include "kernels/cuda/attention/prefill.h"
#include "tests/kernels/cuda/attention_cases.h"

// Tests only the kernels for all cards, in cases small enough for the CPU (emulated/).
namespace minfer::test {
namespace {

struct MmaCase {
  Heads heads;
  DType half, cache;
};

enum class Kernel { Mma, FewQueries };

void check_mma(Kernel kernel, const MmaCase& c, int64_t pos, int64_t n_tokens, int64_t window,
               const HostTensor& sinks) {
  const Heads& h = c.heads;
  SCOPED_TRACE(cat(h, ", ", c.half, ", a cache of ", c.cache, ", window ", window,
                   sinks.view() ? ", sinks" : ""));
  TestCache cache(1, c.cache, h, pos + n_tokens + 3);
  cache.poison(pos + n_tokens);
  if (window > 0) cache.poison_pages_before(std::max<int64_t>(0, pos + 1 - window));
  const auto k = cache.all_head_values(true, pos + n_tokens),
             v = cache.all_head_values(false, pos + n_tokens);
  const HostTensor q = random_normal(9, {n_tokens, h.n_heads, h.head_dim}, c.half, 4);
  const DeviceTensor q_dev = to_device(q);
  DeviceTensor sinks_dev;
  if (sinks.view()) sinks_dev = to_device(sinks);
  const DeviceTensor out = poisoned_device(c.half, {n_tokens + 1, h.n_heads, h.head_dim});
  const Tensor rows_of_out = out.view().rows(0, n_tokens);
  const int64_t n_bytes = cuda::attention::decode_queries_workspace(h.head_dim);
  const DeviceTensor workspace = poisoned_device(DType::U8, {n_bytes});
  if (kernel == Kernel::Mma) {
    cuda::attention::prefill_mma(nullptr, rows_of_out, q_dev, cache.layer, cache.at(pos),
                                 scale_of(h), window, 0, sinks_dev);
  } else {
    cuda::attention::decode_queries(nullptr, rows_of_out, q_dev, cache.layer, cache.at(pos),
                                    scale_of(h), window, workspace.view().data, 0, sinks_dev);
  }
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (int64_t t = 0; t < n_tokens; t += t % 16 == 15 ? 1 : 5) {
    for (int64_t head = 0; head < h.n_heads; ++head) rows.emplace_back(t, head);
  }
  ASSERT_NO_FATAL_FAILURE(expect_prefill(
      to_host(out), q, k, v, h, pos, n_tokens,
      c.cache == DType::U8 && kernel == Kernel::Mma ? Through::ValuesF16 : Through::Nothing, rows,
      nullptr, window, 0, sinks));
}

// Sinks far over the scores, among them and far under them, and none; one query, whole tiles and
// one query more, with a window and without.
TEST(PrefillMma, SinksMatchFloat64) {
  MINFER_NEEDS_CUDA();
  for (const MmaCase& c : {MmaCase{{4, 2, 64}, DType::F16, DType::F16},
                           {{3, 1, 128}, DType::BF16, DType::F16},
                           {{3, 3, 37}, DType::F16, DType::U8},
                           {{2, 1, 256}, DType::BF16, DType::U8}}) {
    HostTensor sinks = random_normal(4, {c.heads.n_heads}, DType::F32, 3);
    sinks.as<float>()[0] = 40;
    sinks.as<float>()[1] = -100;
    for (const int64_t window : {0, 1, 50}) {
      for (const auto& [pos, n_tokens] : {std::pair<int64_t, int64_t>{0, 65}, {0, 1}, {130, 64}}) {
        check_mma(Kernel::Mma, c, pos, n_tokens, window, sinks);
        check_mma(Kernel::Mma, c, pos, n_tokens, window, {});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// The same for few queries over a U8 cache, whose positions are split over blocks.
TEST(FewQueries, SinksMatchFloat64) {
  MINFER_NEEDS_CUDA();
  for (const MmaCase& c : {MmaCase{{4, 2, 64}, DType::F16, DType::U8},
                           {{9, 1, 128}, DType::BF16, DType::U8},
                           {{3, 3, 37}, DType::F16, DType::U8}}) {
    HostTensor sinks = random_normal(4, {c.heads.n_heads}, DType::F32, 3);
    sinks.as<float>()[0] = 40;
    sinks.as<float>()[1] = -100;
    for (const int64_t window : {0, 1, 50}) {
      for (const auto& [pos, n_tokens] : {std::pair<int64_t, int64_t>{0, 1}, {130, 8}, {600, 3}}) {
        check_mma(Kernel::FewQueries, c, pos, n_tokens, window, sinks);
        check_mma(Kernel::FewQueries, c, pos, n_tokens, window, {});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
