#include "tests/kernels/cuda/attention_cases.h"

// The rotation of heads, and the append of rows to a cache.
namespace minfer::test {
namespace {

TEST(CudaRope, IsThatOfTheHostBitForBit) {
  MINFER_NEEDS_CUDA();
  struct Case {
    int64_t n_heads, head_dim, rotary_dim;
  };
  for (const Case& c : {Case{32, 128, 128}, Case{3, 80, 32}, Case{2, 6, 4}, Case{5, 37, 36},
                        Case{4, 64, 0}, Case{1, 8, 8}, Case{32, 100, 100}}) {
    constexpr int64_t kTokens = 13, kPos = 21;
    const HostTensor table = angles(50, std::max<int64_t>(c.rotary_dim, 2));
    const DeviceTensor table_dev = to_device(table);
    for (const auto& [from, to] :
         {std::pair(DType::F16, DType::F16), std::pair(DType::BF16, DType::BF16),
          std::pair(DType::BF16, DType::F16)}) {
      for (bool in_place : {false, true}) {
        if (in_place && from != to) continue;
        const HostTensor x = random_normal(3, {kTokens, c.n_heads, c.head_dim}, from);
        const DeviceTensor x_dev = to_device(x);
        const DeviceTensor other = poisoned_device(to, x.view().shape);
        const Tensor out = in_place ? x_dev.view() : other.view();
        cuda::rope(nullptr, out, x_dev, c.rotary_dim == 0 ? Tensor() : table_dev.view(), kPos);
        const HostTensor got = to_host(out);
        PlainErrors errors;
        const auto exact =
            float64::rope(doubles(x), doubles(table), c.n_heads, c.head_dim, c.rotary_dim, kPos);
        const auto plain = plain::rope(x, table, c.n_heads, c.head_dim, c.rotary_dim, kPos, to);
        for (int64_t row = 0; row < kTokens * c.n_heads; ++row) {
          const auto want = rotated_row(x, row, c.head_dim, c.rotary_dim == 0 ? nullptr : &table,
                                        kPos + row / c.n_heads);
          for (int64_t i = 0; i < c.head_dim; ++i) {
            const float value = to == DType::F16 ? to_f32(to_f16(want[size_t(i)]))
                                                 : to_f32(to_bf16(want[size_t(i)]));
            const int64_t at = row * c.head_dim + i;
            ASSERT_EQ(got.at(at), value)
                << c.head_dim << ", " << from << " to " << to << ", row " << row << ", " << i;
            errors.add(double(value), plain[size_t(at)], exact[size_t(at)]);
          }
        }
        errors.expect_within(to, cat(c.head_dim, ", ", from, " to ", to));
      }
    }
  }
}

void expect_cache(const TestCache& cache, const std::string& what) {
  expect_same_bytes(cache.layer.keys, cache.keys, what + ": keys");
  expect_same_bytes(cache.layer.values, cache.values, what + ": values");
  expect_same_bytes(cache.layer.key_scales, cache.key_scales, what + ": scales of keys");
  expect_same_bytes(cache.layer.value_scales, cache.value_scales, what + ": scales of values");
}

TEST(CudaKvAppend, RoundsEachRowAndLeavesTheRest) {
  MINFER_NEEDS_CUDA();
  for (const Heads& h :
       {Heads{2, 2, 128}, Heads{3, 3, 37}, Heads{1, 1, 8}, Heads{4, 4, 80}, Heads{9, 9, 256}}) {
    for (DType cache_dtype : {DType::F16, DType::U8}) {
      for (DType dtype : {DType::F16, DType::BF16}) {
        constexpr int64_t kTokens = 17, kPos = 118;  // in two pages
        TestCache cache(1, cache_dtype, h, 140);
        const Shape shape{kTokens, h.n_kv_heads, h.head_dim};
        HostTensor k = random_normal(5, shape, dtype);
        const HostTensor v = random_normal(6, shape, dtype, 0.01f);
        std::memset(k.view().data, 0, size_t(2 * h.head_dim));  // a row of zeros
        cuda::kv_append(nullptr, cache.layer, cache.at(kPos), to_device(k), to_device(v));
        for (int64_t row = 0; row < kTokens * h.n_kv_heads; ++row) {
          const int64_t at = cache.row(row % h.n_kv_heads, kPos + row / h.n_kv_heads);
          put_row(rotated_row(k, row, h.head_dim, nullptr, 0), at, cache.keys, cache.key_scales);
          put_row(rotated_row(v, row, h.head_dim, nullptr, 0), at, cache.values,
                  cache.value_scales);
        }
        expect_cache(cache, cat(h, ", ", dtype, " to ", cache_dtype));
      }
    }
  }
}

// Codes cannot represent NaN, so the scale of the row becomes NaN.
TEST(CudaKvAppend, KeepsThatAKeyIsNotANumber) {
  MINFER_NEEDS_CUDA();
  const Heads h{1, 1, 128};
  TestCache cache(1, DType::U8, h, 40);
  HostTensor k = random_normal(5, {3, 1, 128}, DType::F16);
  const HostTensor v = random_normal(6, {3, 1, 128}, DType::F16);
  k.as<f16>()[128 + 70] = to_f16(NAN);
  cuda::kv_append(nullptr, cache.layer, cache.at(0), to_device(k), to_device(v));
  const HostTensor scales = to_host(cache.layer.key_scales.view());
  EXPECT_TRUE(std::isfinite(scales.at(cache.row(0, 0))));
  EXPECT_TRUE(std::isnan(scales.at(cache.row(0, 1))));
  EXPECT_TRUE(std::isfinite(scales.at(cache.row(0, 2))));
}

// Shapes that one launch can compute, and others.
TEST(CudaRopeAppend, HasTheBitsOfRopeAndAppend) {
  MINFER_NEEDS_CUDA();
  struct Case {
    Heads heads;
    int64_t rotary_dim;
  };
  for (const Case& c :
       {Case{{32, 32, 128}, 128}, Case{{8, 2, 128}, 32}, Case{{3, 1, 80}, 80}, Case{{6, 3, 64}, 48},
        Case{{2, 2, 16}, 16}, Case{{40, 40, 256}, 256}, Case{{2, 1, 80}, 24}, Case{{3, 3, 37}, 36},
        Case{{2, 2, 8}, 8}, Case{{40, 40, 512}, 512}}) {
    const Heads& h = c.heads;
    const DeviceTensor table = to_device(angles(150, c.rotary_dim));
    for (DType cache_dtype : {DType::F16, DType::U8}) {
      for (DType dtype : {DType::F16, DType::BF16}) {
        constexpr int64_t kTokens = 17, kPos = 118;  // in two pages
        TestCache want(1, cache_dtype, h, 140), got(1, cache_dtype, h, 140);
        const HostTensor q = random_normal(4, {kTokens, h.n_heads, h.head_dim}, dtype);
        const Shape shape{kTokens, h.n_kv_heads, h.head_dim};
        const HostTensor k = random_normal(5, shape, dtype), v = random_normal(6, shape, dtype);
        const DeviceTensor want_q = to_device(q), got_q = to_device(q), want_k = to_device(k);
        cuda::rope(nullptr, want_q, want_q, table, kPos);
        cuda::rope(nullptr, want_k, want_k, table, kPos);
        cuda::kv_append(nullptr, want.layer, want.at(kPos), want_k, to_device(v));
        cuda::rope_append(nullptr, got.layer, got.at(kPos), got_q, to_device(k), to_device(v),
                          table);
        const std::string what = cat(h, ", ", dtype, " to ", cache_dtype);
        expect_same_bytes(got_q, to_host(want_q), what + ": q");
        expect_same_bytes(got.layer.keys, to_host(want.layer.keys), what + ": keys");
        expect_same_bytes(got.layer.values, to_host(want.layer.values), what + ": values");
        if (cache_dtype == DType::F16) continue;
        expect_same_bytes(got.layer.key_scales, to_host(want.layer.key_scales), what + ": scales");
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
