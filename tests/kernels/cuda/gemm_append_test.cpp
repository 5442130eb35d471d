#include "tests/kernels/cuda/attention_cases.h"
#include "tests/kernels/cuda/gemm_cases.h"

namespace minfer::test {
namespace {

struct AppendCase {
  int64_t m, k, n_heads, n_kv_heads, pos;
  bool has_bias = false;
};
std::ostream& operator<<(std::ostream& out, const AppendCase& c) {
  return out << "m " << c.m << " k " << c.k << ", " << c.n_heads << ":" << c.n_kv_heads
             << " heads at " << c.pos << (c.has_bias ? ", bias" : "");
}

constexpr int64_t kHeadDim = cuda::kFusedHeadDim, kPairs = kHeadDim / 2;

KvLayer poisoned_cache(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t capacity) {
  KvLayer cache;
  cache.n_kv_heads = n_kv_heads;
  cache.head_dim = head_dim;
  cache.capacity = capacity;
  cache.dtype = dtype;
  cache.keys = poisoned_device(dtype, {n_kv_heads, capacity, head_dim});
  cache.values = poisoned_device(dtype, {n_kv_heads, capacity, head_dim});
  return cache;
}

// One element of q or k, turned: the sums' errors, and two roundings of f32 besides that of out.
// The plain program rounds the sums to half, and then what it has turned in f32.
BoundedSum expected_turned(const GemmTensors& t, size_t part, int64_t row, int64_t column,
                           const HostTensor& table, int64_t pos) {
  const int64_t i = column % kHeadDim, pair = i % kPairs, first = column - i + pair;
  const BoundedSum low = exact_sum(t, part, row, first);
  const BoundedSum high = exact_sum(t, part, row, first + kPairs);
  const int64_t angle = ((pos + row) * kPairs + pair) * 2;
  const float cosine = table.at(angle), sine = table.at(angle + 1);
  const bool is_low = i < kPairs;
  const BoundedSum& own = is_low ? low : high;
  const BoundedSum& other = is_low ? high : low;
  const float sign = is_low ? -sine : sine;
  const double a = own.value * double(cosine), b = other.value * double(sign), value = a + b;
  double error = std::abs(double(cosine)) * own.error + std::abs(double(sine)) * other.error;
  error += 2 * kU * (std::abs(a) + std::abs(b) + error);
  const auto half = [](float x) { return to_f32(to_f16(x)); };
  const float plain = half(half(own.plain) * cosine + half(other.plain) * sign);
  return {value, error + round_off(t, value, error), plain};
}

void check_append(const AppendCase& c) {
  SCOPED_TRACE(cat(c));
  const int64_t n_q = c.n_heads * kHeadDim, n_kv = c.n_kv_heads * kHeadDim;
  const GemmCase product{.m = c.m, .k = c.k, .n = {n_q, n_kv, n_kv}, .has_bias = c.has_bias};
  const GemmTensors t(product);
  const KvLayer untouched = poisoned_cache(DType::F16, c.n_kv_heads, kHeadDim, c.pos + c.m + 3);
  KvLayer cache = poisoned_cache(DType::F16, c.n_kv_heads, kHeadDim, c.pos + c.m + 3);
  const HostTensor table = angles(c.pos + c.m, kHeadDim);
  const DeviceTensor table_device = to_device(table);
  ASSERT_TRUE(cuda::gemm_appends(t.x_device, cache, table_device));
  const std::vector<cuda::GemmPart> parts = t.parts();
  cuda::gemm_append(nullptr, cache, t.x_device, std::span<const cuda::GemmPart, 3>(parts),
                    table_device, c.pos);
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());

  const HostTensor q = to_host(t.out_device[0]);
  const HostTensor rows[] = {to_host(cache.keys), to_host(cache.values)};
  const HostTensor poison = to_host(untouched.keys);
  // Nothing but the rows of q and the positions of the cache is written.
  for (size_t part : {1, 2}) {
    expect_same_bytes(t.out_device[part], t.before[part], cat("out of part ", part));
  }
  for (int64_t column = 0; column < n_q; ++column) {
    ASSERT_TRUE(std::isnan(q.at(column)) && std::isnan(q.at((c.m + 1) * n_q + column)));
  }
  for (int64_t head = 0; head < c.n_kv_heads; ++head) {
    for (int64_t at = 0; at < cache.capacity; ++at) {
      if (at >= c.pos && at < c.pos + c.m) continue;
      for (const HostTensor& of : rows) {
        const size_t begin = size_t((head * cache.capacity + at) * kHeadDim * 2);
        ASSERT_EQ(std::memcmp(static_cast<const char*>(of.view().data) + begin,
                              static_cast<const char*>(poison.view().data) + begin, kHeadDim * 2),
                  0)
            << "head " << head << ", position " << at;
      }
    }
  }

  const bool all = double(c.m) * double(n_q) * double(c.k) < 2e6;
  for (size_t part = 0; part < 3; ++part) {
    PlainErrors errors;
    const int64_t n = product.n[part];
    const auto got_at = [&](int64_t row, int64_t column) {
      if (part == 0) return double(q.at((row + 1) * n_q + column));
      const int64_t cache_row = column / kHeadDim * cache.capacity + c.pos + row;
      return double(rows[part - 1].at(cache_row * kHeadDim + column % kHeadDim));
    };
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        ASSERT_TRUE(std::isfinite(got_at(row, column)))
            << "part " << part << ", row " << row << ", column " << column;
      }
    }
    for (int64_t row : sampled(c.m, all)) {
      for (int64_t column : sampled(n, all)) {
        const BoundedSum want = part < 2 ? expected_turned(t, part, row, column, table, c.pos)
                                         : expected(t, part, row, column);
        const double got = got_at(row, column);
        ASSERT_NEAR(got, want.value, want.error)
            << "part " << part << ", row " << row << ", column " << column;
        errors.add(got, double(want.plain), want.value);
      }
    }
    errors.expect_within(DType::F16, cat("part ", part));
  }
}

class CudaGemmAppend : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CUDA();
    cuda::GemmArgs args;
    args.k = 8;
    if (!cuda::hgemm_takes(args)) GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
};

// Odd numbers of heads leave half of a tile's columns; other numbers of rows than whole tiles.
TEST_F(CudaGemmAppend, TurnsQAndKAndAppends) {
  for (const AppendCase& c : {AppendCase{1024, 8, 1, 1, 0}, {1061, 72, 3, 1, 5, true}}) {
    check_append(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaGemmAppend, SizesOfModels) {
  for (const AppendCase& c : {AppendCase{1024, 256, 2, 2, 7},
                              {1100, 200, 4, 2, 1000},
                              {2047, 1032, 5, 5, 1, true},
                              {1500, 4096, 32, 8, 300}}) {
    check_append(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaGemmAppend, SaysWhatItTakes) {
  const auto takes = [](DType dtype, int64_t m, DType cache, int64_t head_dim, int64_t rotary_dim) {
    const DeviceTensor x = poisoned_device(dtype, {m, 64}),
                       table = to_device(angles(8, rotary_dim));
    return cuda::gemm_appends(x, poisoned_cache(cache, 1, head_dim, 16), table);
  };
  EXPECT_TRUE(takes(DType::F16, 1024, DType::F16, 128, 128));
  EXPECT_FALSE(takes(DType::BF16, 1024, DType::F16, 128, 128));
  EXPECT_FALSE(takes(DType::F16, 100, DType::F16, 128, 128));
  EXPECT_FALSE(takes(DType::F16, 1024, DType::U8, 128, 128));
  EXPECT_FALSE(takes(DType::F16, 1024, DType::F16, 64, 64));
  EXPECT_FALSE(takes(DType::F16, 1024, DType::F16, 128, 64));
  EXPECT_FALSE(cuda::gemm_appends(poisoned_device(DType::F16, {1024, 64}),
                                  poisoned_cache(DType::F16, 1, 128, 16), {}));
}

TEST_F(CudaGemmAppend, RefusesWhatDoesNotFit) {
  const GemmCase product{.m = 1024, .k = 64, .n = {256, 128, 128}};
  const GemmTensors t(product);
  const std::vector<cuda::GemmPart> parts = t.parts();
  const std::span<const cuda::GemmPart, 3> qkv(parts);
  const DeviceTensor table = to_device(angles(1100, 128));
  KvLayer fits = poisoned_cache(DType::F16, 1, 128, 1100);
  KvLayer other_heads = poisoned_cache(DType::F16, 2, 128, 1100);
  EXPECT_THROW(cuda::gemm_append(nullptr, fits, t.x_device, qkv, table, 77), Error);  // too late
  EXPECT_THROW(cuda::gemm_append(nullptr, other_heads, t.x_device, qkv, table, 0), Error);
}

}  // namespace
}  // namespace minfer::test
