#include "kernels/cuda/attention/prefill.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace minfer::test {
namespace {

enum class Path { Launcher, Mma };

// The workspace that the launcher needs for this cache, if any.
DeviceTensor workspace_of(const KvLayer& cache) {
  const int64_t n_bytes = cuda::attention_prefill_workspace(cache.dtype, cache.n_kv_heads,
                                                            cache.head_dim, cache.n_pages);
  return n_bytes > 0 ? poisoned_device(DType::U8, {n_bytes}) : DeviceTensor();
}

void prefill(Path path, Tensor out, Tensor q, const TestCache& cache, int64_t pos, float scale,
             int64_t window = 0, float softcap = 0, Tensor sinks = {}) {
  if (path == Path::Launcher) {
    const DeviceTensor workspace = workspace_of(cache.layer);
    cuda::attention_prefill(nullptr, out, q, cache.layer, cache.at(pos), scale, window,
                            workspace.view().data, softcap, sinks);
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());  // before the workspace is freed
  } else {
    cuda::attention::prefill_mma(nullptr, out, q, cache.layer, cache.at(pos), scale, window,
                                 softcap, sinks);
  }
}

// Which values of a U8 cache this path rounds to F16.
Through through(Path path, const KvLayer& cache, int64_t n_tokens) {
  if (cache.dtype != DType::U8) return Through::Nothing;
  if (path == Path::Mma) return Through::ValuesF16;
  if (n_tokens <= cuda::kMaxGemvTokens) return Through::Nothing;
  return cuda::attention::has_prefill_wgmma(cache.head_dim) ? Through::KeysAndValuesF16
                                                            : Through::ValuesF16;
}

using PrefillParam = std::tuple<Heads, std::pair<DType, DType>, std::pair<DType, Path>>;
class Prefill : public testing::TestWithParam<PrefillParam> {
 protected:
  Heads heads() const { return std::get<0>(GetParam()); }
  DType q_dtype() const { return std::get<1>(GetParam()).first; }
  DType out_dtype() const { return std::get<1>(GetParam()).second; }
  DType cache_dtype() const { return std::get<2>(GetParam()).first; }
  Path path() const { return std::get<2>(GetParam()).second; }
};

// Some rows: the first and last ones, those at edges of tiles, and others; the heads take turns.
std::vector<std::pair<int64_t, int64_t>> sampled_rows(int64_t n_tokens, int64_t n_heads) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  int64_t head = 0;
  for (int64_t t : {0, 1, 2, 30, 62, 63, 64, 65, 99, 126, 127, 128, 129, 200, 255, 256, 299}) {
    if (t < n_tokens) rows.emplace_back(t, head++ % n_heads);
  }
  for (int64_t h = 0; h < std::min<int64_t>(n_heads, 9); ++h) rows.emplace_back(n_tokens - 1, h);
  return rows;
}

TEST_P(Prefill, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 811, kMostTokens = 300;
  const Heads h = heads();
  TestCache cache(1, cache_dtype(), h, kCapacity);
  const auto k = cache.all_head_values(true, kCapacity),
             v = cache.all_head_values(false, kCapacity);
  const HostTensor q = random_normal(9, {kMostTokens, h.n_heads, h.head_dim}, q_dtype(), 2);
  const DeviceTensor q_dev = to_device(q);
  for (int64_t pos : {0, 1, 77, 128, 500}) {
    for (int64_t n_tokens : {1, 3, 8, 9, 31, 127, 128, 129, 300}) {
      cache.restore();
      cache.poison(pos + n_tokens);
      const DeviceTensor out = poisoned_device(out_dtype(), {n_tokens + 1, h.n_heads, h.head_dim});
      prefill(path(), out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache, pos,
              scale_of(h));
      const HostTensor got = to_host(out);
      PlainErrors errors;
      ASSERT_NO_FATAL_FAILURE(
          expect_prefill(got, q, k, v, h, pos, n_tokens, through(path(), cache.layer, n_tokens),
                         sampled_rows(n_tokens, h.n_heads), pos == 77 ? &errors : nullptr));
      errors.expect_within(out_dtype(), cat("pos ", pos, ", ", n_tokens, " tokens"));
    }
  }
}

// Windows smaller and larger than a tile and a page, at positions where they are whole and where
// they are cut off. The pages before a window belong to other sequences.
TEST_P(Prefill, WindowsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 811, kMostTokens = 300;
  const Heads h = heads();
  TestCache cache(1, cache_dtype(), h, kCapacity);
  const auto k = cache.all_head_values(true, kCapacity),
             v = cache.all_head_values(false, kCapacity);
  const HostTensor q = random_normal(9, {kMostTokens, h.n_heads, h.head_dim}, q_dtype(), 2);
  const DeviceTensor q_dev = to_device(q);
  for (int64_t window : {1, 5, 64, 127, 200, 1000}) {
    for (int64_t pos : {0, 77, 500}) {
      for (int64_t n_tokens : {1, 8, 9, 129, 300}) {
        cache.restore();
        cache.poison(pos + n_tokens);
        cache.poison_pages_before(std::max<int64_t>(0, pos + 1 - window));
        const DeviceTensor out =
            poisoned_device(out_dtype(), {n_tokens + 1, h.n_heads, h.head_dim});
        prefill(path(), out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache, pos,
                scale_of(h), window);
        SCOPED_TRACE(cat("window ", window));
        ASSERT_NO_FATAL_FAILURE(expect_prefill(to_host(out), q, k, v, h, pos, n_tokens,
                                               through(path(), cache.layer, n_tokens),
                                               sampled_rows(n_tokens, h.n_heads), nullptr, window));
      }
    }
  }
}

// Caps that most scores come near and that few do, with a window and without, by every kernel: few
// queries over a U8 cache have one of their own.
TEST_P(Prefill, SoftCapsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 811, kMostTokens = 129;
  const Heads h = heads();
  TestCache cache(1, cache_dtype(), h, kCapacity);
  const auto k = cache.all_head_values(true, kCapacity),
             v = cache.all_head_values(false, kCapacity);
  const HostTensor q = random_normal(9, {kMostTokens, h.n_heads, h.head_dim}, q_dtype(), 2);
  const DeviceTensor q_dev = to_device(q);
  for (const auto& [window, softcap] :
       {std::pair<int64_t, float>{0, 1.0f}, {0, 30.0f}, {64, 3.0f}}) {
    for (int64_t pos : {0, 77, 500}) {
      for (int64_t n_tokens : {1, 8, 9, 129}) {
        cache.restore();
        cache.poison(pos + n_tokens);
        const DeviceTensor out =
            poisoned_device(out_dtype(), {n_tokens + 1, h.n_heads, h.head_dim});
        prefill(path(), out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache, pos,
                scale_of(h), window, softcap);
        SCOPED_TRACE(cat("window ", window, ", soft cap ", softcap));
        ASSERT_NO_FATAL_FAILURE(expect_prefill(
            to_host(out), q, k, v, h, pos, n_tokens, through(path(), cache.layer, n_tokens),
            sampled_rows(n_tokens, h.n_heads), nullptr, window, softcap));
      }
    }
  }
}

// Sinks over the scores, among them and under them, by every kernel.
TEST_P(Prefill, SinksMatchFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 811, kMostTokens = 129;
  const Heads h = heads();
  TestCache cache(1, cache_dtype(), h, kCapacity);
  const auto k = cache.all_head_values(true, kCapacity),
             v = cache.all_head_values(false, kCapacity);
  const HostTensor q = random_normal(9, {kMostTokens, h.n_heads, h.head_dim}, q_dtype(), 2);
  const HostTensor sinks = random_normal(4, {h.n_heads}, DType::F32, 8);
  const DeviceTensor q_dev = to_device(q), sinks_dev = to_device(sinks);
  for (const int64_t window : {0, 64}) {
    for (int64_t pos : {0, 77, 500}) {
      for (int64_t n_tokens : {1, 8, 9, 129}) {
        cache.restore();
        cache.poison(pos + n_tokens);
        const DeviceTensor out =
            poisoned_device(out_dtype(), {n_tokens + 1, h.n_heads, h.head_dim});
        prefill(path(), out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache, pos,
                scale_of(h), window, 0, sinks_dev);
        SCOPED_TRACE(cat("window ", window));
        ASSERT_NO_FATAL_FAILURE(expect_prefill(
            to_host(out), q, k, v, h, pos, n_tokens, through(path(), cache.layer, n_tokens),
            sampled_rows(n_tokens, h.n_heads), nullptr, window, 0, sinks));
      }
    }
  }
}

TEST_P(Prefill, BitsDoNotDependOnChunks) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kTokens = 300;
  const Heads h = heads();
  const TestCache cache(1, cache_dtype(), h, kTokens);
  const Shape shape{kTokens, h.n_heads, h.head_dim};
  const DeviceTensor q = to_device(random_normal(9, shape, q_dtype(), 2));
  const auto run = [&](int64_t chunk) {
    const DeviceTensor out = poisoned_device(out_dtype(), shape);
    for (int64_t pos = 0; pos < kTokens; pos += chunk) {
      const int64_t n = std::min(chunk, kTokens - pos);
      prefill(path(), out.view().rows(pos, n), q.view().rows(pos, n), cache, pos, scale_of(h));
    }
    return to_host(out);
  };
  const HostTensor want = run(kTokens);
  const auto of_whole = through(path(), cache.layer, kTokens);
  for (int64_t chunk : {1, 7, 64, 128, 150}) {
    if (through(path(), cache.layer, chunk) != of_whole) continue;  // another kernel
    const HostTensor got = run(chunk);
    EXPECT_EQ(0, std::memcmp(got.view().data, want.view().data, size_t(want.view().n_bytes())))
        << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Prefill,
    testing::Combine(
        testing::Values(Heads{1, 1, 64}, Heads{4, 2, 128}, Heads{8, 1, 80}, Heads{9, 3, 96},
                        Heads{32, 32, 128}, Heads{2, 1, 8}, Heads{4, 2, 40}, Heads{2, 2, 256},
                        Heads{3, 1, 37}),
        testing::Values(std::pair(DType::F16, DType::F16), std::pair(DType::BF16, DType::BF16),
                        std::pair(DType::F16, DType::BF16)),
        testing::Values(std::pair(DType::F16, Path::Launcher), std::pair(DType::F16, Path::Mma),
                        std::pair(DType::U8, Path::Launcher), std::pair(DType::U8, Path::Mma))));

// ---- few queries over a long U8 cache -----------------------------------------------------------

class FewQueries : public testing::TestWithParam<std::tuple<Heads, DType>> {};

// Positions at the edges of splits and tiles, so that the last split has positions that the first
// query does not see, or a single position. The bits are the same each time, whatever the workspace
// held.
TEST_P(FewQueries, MatchFloat64) {
  MINFER_NEEDS_CUDA();
  const auto& [h, dtype] = GetParam();
  constexpr int64_t kCapacity = 6200;
  TestCache cache(1, DType::U8, h, kCapacity);
  const HostTensor q = random_normal(9, {8, h.n_heads, h.head_dim}, dtype, 2);
  const DeviceTensor q_dev = to_device(q);
  for (int64_t pos : {127, 128, 250, 255, 256, 1023, 1024, 4091, 6100, 6192}) {
    const auto k = cache.all_head_values(true, pos + 8), v = cache.all_head_values(false, pos + 8);
    for (int64_t n_tokens : {1, 2, 5, 8}) {
      cache.restore();
      cache.poison(pos + n_tokens);
      HostTensor got;
      for (int again = 0; again < 3; ++again) {
        const DeviceTensor out = poisoned_device(dtype, {n_tokens + 1, h.n_heads, h.head_dim});
        prefill(Path::Launcher, out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache,
                pos, scale_of(h));
        HostTensor result = to_host(out);
        if (again > 0) {
          ASSERT_EQ(
              0, std::memcmp(got.view().data, result.view().data, size_t(result.view().n_bytes())))
              << "pos " << pos << ", " << n_tokens << " tokens, run " << again;
        }
        got = std::move(result);
      }
      std::vector<std::pair<int64_t, int64_t>> rows;  // not all: float64 is slow
      for (int64_t t = 0; t < n_tokens; ++t) rows.emplace_back(t, (pos + 5 * t) % h.n_heads);
      PlainErrors errors;
      ASSERT_NO_FATAL_FAILURE(
          expect_prefill(got, q, k, v, h, pos, n_tokens, Through::Nothing, rows, &errors));
      errors.expect_within(dtype, cat("pos ", pos, ", ", n_tokens, " tokens"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, FewQueries,
                         testing::Combine(testing::Values(Heads{32, 32, 128}, Heads{32, 8, 128},
                                                          Heads{9, 3, 64}, Heads{4, 2, 40},
                                                          Heads{2, 2, 256}, Heads{3, 1, 37}),
                                          testing::Values(DType::F16, DType::BF16)));

// ---- U8 caches as F16 --------------------------------------------------------------------------

// The value of a cached code as F16: one multiplication in f32, then one rounding.
f16 as_half(const TestCache& cache, bool is_k, int64_t i) {
  const HostTensor& codes = is_k ? cache.keys : cache.values;
  const HostTensor& scales = is_k ? cache.key_scales : cache.value_scales;
  const int code = static_cast<const uint8_t*>(codes.view().data)[i];
  return to_f16(float(code - 128) * scales.at(i / cache.layer.head_dim));
}

TEST(CudaDequantizeKv, IsThatOfTheHostBitForBit) {
  MINFER_NEEDS_CUDA();
  for (const Heads& h : {Heads{2, 2, 128}, Heads{1, 1, 8}, Heads{3, 3, 40}, Heads{5, 5, 96}}) {
    constexpr int64_t kCapacity = 811;
    for (int64_t kv_len : {1, 2, 9, 63, 64, 300, 511, 810, 811}) {
      TestCache cache(1, DType::U8, h, kCapacity);
      cache.key_scales.as<float>()[0] = 0;      // a row of zeros
      cache.key_scales.as<float>()[1] = 3e-9f;  // its values are subnormal or 0 in F16
      cache.value_scales.as<float>()[0] = 600;  // its values overflow to infinity
      cache.restore();
      cache.poison(kv_len);
      const Shape shape{pages_for(kv_len), h.n_kv_heads, kPagePositions, h.head_dim};
      // One row more than there are. It stays poisoned, and so do the rows from kv_len on in the
      // last page.
      const DeviceTensor both = poisoned_device(DType::F16, {2 * shape.n_elements() + h.head_dim});
      const Tensor keys{both.view().data, DType::F16, shape};
      const Tensor values{static_cast<f16*>(both.view().data) + shape.n_elements(), DType::F16,
                          shape};
      cuda::attention::dequantize_kv(nullptr, keys, values, cache.layer, cache.at(0), 0, kv_len);
      const HostTensor got = to_host(both);
      for (int64_t i = 0; i < 2 * shape.n_elements() + h.head_dim; ++i) {
        const bool is_k = i < shape.n_elements();
        const int64_t in_part = is_k ? i : i - shape.n_elements();
        const int64_t row = in_part / h.head_dim, head = row / kPagePositions % h.n_kv_heads;
        const int64_t pos =
            row / kPagePositions / h.n_kv_heads * kPagePositions + row % kPagePositions;
        const bool is_there = i < 2 * shape.n_elements() && pos < kv_len;
        const int64_t at = is_there ? cache.row(head, pos) * h.head_dim + in_part % h.head_dim : 0;
        const uint16_t want = is_there ? as_half(cache, is_k, at).bits : uint16_t{0xFFFF};
        ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[i], want)
            << h << ", kv_len " << kv_len << ", element " << i;
      }
    }
  }
}

// With a workspace, a U8 cache gives the same bits as an F16 cache that holds its values.
TEST(PrefillU8, IsThatOfItsValuesInF16) {
  MINFER_NEEDS_CUDA();
  for (const Heads& h : {Heads{1, 1, 64}, Heads{8, 2, 128}, Heads{8, 1, 80}, Heads{9, 3, 96}}) {
    constexpr int64_t kCapacity = 1500;
    TestCache codes(1, DType::U8, h, kCapacity), halves(1, DType::F16, h, kCapacity);
    if (!cuda::attention::has_prefill_wgmma(h.head_dim)) {
      GTEST_SKIP() << "needs a card with the kernel of F16 caches";
    }
    for (int64_t i = 0; i < codes.keys.view().n_elements(); ++i) {
      halves.keys.as<f16>()[i] = as_half(codes, true, i);
      halves.values.as<f16>()[i] = as_half(codes, false, i);
    }
    halves.restore();
    const DeviceTensor workspace = workspace_of(codes.layer);
    for (DType dtype : {DType::F16, DType::BF16}) {
      const Shape shape{kCapacity, h.n_heads, h.head_dim};
      const DeviceTensor q = to_device(random_normal(9, shape, dtype, 2));
      // Chunks of one prompt: with each, the workspace holds more positions.
      const DeviceTensor got = poisoned_device(dtype, shape), want = poisoned_device(dtype, shape);
      int64_t pos = 0;
      for (int64_t n : {9, 128, 300, 17, 512, 401, 133}) {
        const auto run = [&](const DeviceTensor& out, const TestCache& cache, void* memory) {
          cuda::attention_prefill(nullptr, out.view().rows(pos, n), q.view().rows(pos, n),
                                  cache.layer, cache.at(pos), scale_of(h), 0, memory);
        };
        run(got, codes, workspace.view().data);
        run(want, halves, nullptr);
        pos += n;
      }
      ASSERT_EQ(pos, kCapacity);
      expect_same_bytes(got, to_host(want), cat(h, ", ", dtype));
    }
  }
}

class PrefillLong : public testing::TestWithParam<std::tuple<Heads, int64_t, DType>> {};

// For each key/value head: the first and last rows, edges of tiles, and some random rows.
std::vector<std::pair<int64_t, int64_t>> rows_of_long(int64_t n_tokens, const Heads& h) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  std::mt19937_64 engine(3);
  const int64_t n = n_tokens, heads_per_kv = h.n_heads / h.n_kv_heads;
  for (int64_t kv_head = 0; kv_head < h.n_kv_heads; ++kv_head) {
    std::vector<int64_t> tokens = {0,         1,     127,     128,     n / 4 - 1, n / 4,
                                   n / 2 - 1, n / 2, n - 129, n - 128, n - 1};
    for (int i = 0; i < 4; ++i) tokens.push_back(int64_t(engine() % uint64_t(n)));
    for (const int64_t t : tokens) {
      rows.emplace_back(t, kv_head * heads_per_kv + std::ssize(rows) % heads_per_kv);
    }
  }
  return rows;
}

TEST_P(PrefillLong, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  const auto& [h, n_tokens, cache_dtype] = GetParam();
  const auto rows = rows_of_long(n_tokens, h);
  const HostTensor q = random_normal(9, {n_tokens, h.n_heads, h.head_dim}, DType::F16, 2);
  TestCache cache(1, cache_dtype, h, n_tokens + 100);
  // The bound would hide an error in one key of thousands. So the last key that a row may see has a
  // large weight, and so would the next key.
  for (const int64_t behind : {1, 0}) {
    for (const auto& [t, head] : rows) {
      if (t + behind == n_tokens) continue;
      std::vector<float> key = rotated_row(q, t * h.n_heads + head, h.head_dim, nullptr, 0);
      for (float& x : key) x *= 0.2f;
      const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
      put_row(key, cache.row(kv_head, t + behind), cache.keys, cache.key_scales);
    }
  }
  cache.restore();
  cache.poison(n_tokens);
  const DeviceTensor out = poisoned_device(DType::F16, {n_tokens + 1, h.n_heads, h.head_dim});
  prefill(Path::Launcher, out.view().rows(0, n_tokens), to_device(q), cache, 0, scale_of(h));
  const auto k = cache.all_head_values(true, n_tokens), v = cache.all_head_values(false, n_tokens);
  PlainErrors errors;
  ASSERT_NO_FATAL_FAILURE(expect_prefill(to_host(out), q, k, v, h, 0, n_tokens,
                                         through(Path::Launcher, cache.layer, n_tokens), rows,
                                         &errors));
  errors.expect_within(DType::F16, cat(n_tokens, " tokens"));
}

INSTANTIATE_TEST_SUITE_P(Lengths, PrefillLong,
                         testing::Values(std::tuple(Heads{8, 4, 128}, 8192, DType::F16),
                                         std::tuple(Heads{8, 2, 128}, 32768, DType::F16),
                                         std::tuple(Heads{8, 2, 128}, 32768, DType::U8)));

TEST(CudaAttention, RefusesWhatItCannotDo) {
  MINFER_NEEDS_CUDA();
  const Heads h{2, 1, 64};
  const TestCache cache(1, DType::F16, h, 16);
  const DeviceTensor q = poisoned_device(DType::F16, {4, 2, 64});
  const DeviceTensor f32 = poisoned_device(DType::F32, {4, 2, 64});
  const auto refuses = [&](Tensor x, int64_t pos, float scale) {
    EXPECT_THROW(cuda::attention_prefill(nullptr, q, x, cache.layer, cache.at(pos), scale), Error);
  };
  refuses(q, 125, 1);  // past the pages
  refuses(f32, 0, 1);
  refuses(q, 0, -1);
}

}  // namespace
}  // namespace minfer::test
