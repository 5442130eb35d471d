#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/prefill.h"
#include "tests/support/cuda_tensors.h"
#include "tests/support/float64_ops.h"

namespace minfer::test {
namespace {

struct Heads {
  int64_t n_heads, n_kv_heads, head_dim;
};
std::ostream& operator<<(std::ostream& out, const Heads& h) {
  return out << h.n_heads << ":" << h.n_kv_heads << " heads of " << h.head_dim;
}

float scale_of(const Heads& h) { return 1 / std::sqrt(float(h.head_dim)); }

// Positions from `begin` on become bytes of 0xFF: NaN, or level 255 with a scale of NaN.
void poison(const KvLayer& layer, int64_t begin) {
  for (const DeviceTensor* x :
       {&layer.keys, &layer.values, &layer.key_scales, &layer.value_scales}) {
    if (!*x || begin >= layer.capacity) continue;
    const int64_t row_bytes = x->view().n_bytes() / (layer.n_kv_heads * layer.capacity);
    MINFER_CUDA_CHECK(cudaMemset2D(
        static_cast<char*>(x->view().data) + begin * row_bytes, size_t(layer.capacity * row_bytes),
        0xFF, size_t((layer.capacity - begin) * row_bytes), size_t(layer.n_kv_heads)));
  }
}

// A cache on the card and the values that it holds, random in every row.
struct TestCache {
  TestCache(uint64_t seed, DType dtype, const Heads& heads, int64_t capacity) {
    const Shape shape{heads.n_kv_heads, capacity, heads.head_dim};
    layer.n_kv_heads = heads.n_kv_heads;
    layer.head_dim = heads.head_dim;
    layer.capacity = capacity;
    layer.dtype = dtype;
    const auto fill = [&](uint64_t s, DeviceTensor& rows, DeviceTensor& scales,
                          HostTensor& host_rows, HostTensor& host_scales) {
      host_rows.reset(dtype, shape);
      const HostTensor normal = random_normal(s, shape);
      if (dtype == DType::F16) {
        for (int64_t i = 0; i < shape.n_elements(); ++i)
          host_rows.as<f16>()[i] = to_f16(normal.at(i));
      } else {
        host_scales = random_normal(s + 1, {shape[0], shape[1]});
        for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
          float& scale = host_scales.as<float>()[i];
          scale = 0.005f + std::abs(scale) / 50;
        }
        for (int64_t i = 0; i < shape.n_elements(); ++i) {
          const float level = std::clamp(std::nearbyint(normal.at(i) * 50), -127.0f, 127.0f);
          static_cast<uint8_t*>(host_rows.view().data)[i] = uint8_t(int(level) + 128);
        }
        scales = to_device(host_scales);
      }
      rows = to_device(host_rows);
    };
    fill(seed, layer.keys, layer.key_scales, keys, key_scales);
    fill(seed + 2, layer.values, layer.value_scales, values, value_scales);
  }

  void restore() {
    const auto copy = [](const Tensor& to, const HostTensor& from) {
      if (!to) return;
      MINFER_CUDA_CHECK(
          cudaMemcpy(to.data, from.view().data, size_t(to.n_bytes()), cudaMemcpyHostToDevice));
    };
    copy(layer.keys, keys);
    copy(layer.values, values);
    copy(layer.key_scales, key_scales);
    copy(layer.value_scales, value_scales);
  }

  // Rows of a head in float64, [capacity, head_dim].
  float64::Values head_values(bool is_k, int64_t head) const {
    const int64_t n = layer.capacity * layer.head_dim;
    float64::Values x(static_cast<size_t>(n));
    const HostTensor& rows = is_k ? keys : values;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = head * n + i;
      x[size_t(i)] = layer.dtype == DType::F16
                         ? double(rows.at(at))
                         : (double(static_cast<const uint8_t*>(rows.view().data)[at]) - 128) *
                               double((is_k ? key_scales : value_scales).at(at / layer.head_dim));
    }
    return x;
  }

  KvLayer layer;
  HostTensor keys, values, key_scales, value_scales;
};

// One row of attention: q of `head` at position `last` over keys 0 ... last.
//
// A product of f16 is exact in f32; tensor cores may truncate their sums, so a score is off by 2 u
// for each of head_dim terms, its distance from the maximum by twice that and 4 u of itself, the
// weight by 4 u more. Sums over n keys, weighted or not, are off by 2 u for each key and the
// factors between their blocks, of 16 keys or more, by 4 u. A weight rounded to F16 is off by 2^-11
// of itself or by 2^-25, of which there are at most n for a total of 1 or more; so is a value that
// passes from U8 through F16. Then one rounding of the output.
void expect_row(const float64::Values& q, const float64::Values& k, const float64::Values& v,
                const Heads& heads, int64_t last, DType out_dtype, bool rounds_values,
                const float* got, const std::string& what) {
  const auto want =
      float64::attention(q, k, v, 1, 1, heads.head_dim, last, double(scale_of(heads)));
  const double n = double(last + 1);
  double largest = 0;
  for (int64_t i = 0; i < (last + 1) * heads.head_dim; ++i)
    largest = std::max(largest, std::abs(v[size_t(i)]));
  const double relative = kU * (8 * double(heads.head_dim + 2) * want.scores[0] +
                                8 * want.spreads[0] + 4 * n + n / 2 + 32) +
                          (rounds_values ? 2.01 : 1.0) * 0x1p-11;
  for (int64_t i = 0; i < heads.head_dim; ++i) {
    const double inexact = relative * want.magnitudes[size_t(i)] + n * 0x1p-25 * largest;
    const double bound =
        inexact + unit_roundoff(out_dtype) * (std::abs(want.out[size_t(i)]) + inexact) + 0x1p-25;
    ASSERT_NEAR(double(got[i]), want.out[size_t(i)], bound) << what << ", element " << i;
  }
}

float64::Values row_of(const HostTensor& x, int64_t row) {
  const int64_t n = x.view().shape.last();
  float64::Values values;
  for (int64_t i = row * n; i < (row + 1) * n; ++i) {
    values.push_back(double(to_f32(to_f16(x.at(i)))));  // as the kernels round q
  }
  return values;
}

enum class Path { Launcher, Mma };

void prefill(Path path, Tensor out, Tensor q, const KvLayer& cache, int64_t pos, float scale) {
  if (path == Path::Launcher) {
    cuda::attention_prefill(nullptr, out, q, cache, pos, scale);
  } else {
    cuda::attention::prefill_mma(nullptr, out, q, cache, pos, scale);
  }
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

// Some rows: the ends, the ends of tiles, and others; every head in turn.
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
  std::vector<float64::Values> k, v;
  for (int64_t i = 0; i < h.n_kv_heads; ++i) {
    k.push_back(cache.head_values(true, i));
    v.push_back(cache.head_values(false, i));
  }
  const HostTensor q = random_normal(9, {kMostTokens, h.n_heads, h.head_dim}, q_dtype(), 2);
  const DeviceTensor q_dev = to_device(q);
  for (int64_t pos : {0, 1, 77, 128, 500}) {
    for (int64_t n_tokens : {1, 3, 31, 127, 128, 129, 300}) {
      cache.restore();
      poison(cache.layer, pos + n_tokens);
      const DeviceTensor out = poisoned_device(out_dtype(), {n_tokens + 1, h.n_heads, h.head_dim});
      prefill(path(), out.view().rows(0, n_tokens), q_dev.view().rows(0, n_tokens), cache.layer,
              pos, scale_of(h));
      const HostTensor got = to_host(out);
      for (const auto& [t, head] : sampled_rows(n_tokens, h.n_heads)) {
        const int64_t row = t * h.n_heads + head, kv_head = head / (h.n_heads / h.n_kv_heads);
        std::vector<float> values;
        for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(row * h.head_dim + i));
        ASSERT_NO_FATAL_FAILURE(
            expect_row(row_of(q, row), k[size_t(kv_head)], v[size_t(kv_head)], h, pos + t,
                       out_dtype(), cache_dtype() == DType::U8, values.data(),
                       cat("pos ", pos, ", ", n_tokens, " tokens, token ", t, ", head ", head)));
      }
      for (int64_t i = 0; i < n_tokens * h.n_heads * h.head_dim; ++i)
        ASSERT_FALSE(std::isnan(got.at(i))) << "element " << i << " of " << n_tokens << " tokens";
      for (int64_t i = 0; i < h.n_heads * h.head_dim; ++i) {
        const int64_t at = n_tokens * h.n_heads * h.head_dim + i;
        ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[at], 0xFFFF) << "past the end";
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
      prefill(path(), out.view().rows(pos, n), q.view().rows(pos, n), cache.layer, pos,
              scale_of(h));
    }
    return to_host(out);
  };
  const HostTensor want = run(kTokens);
  for (int64_t chunk : {1, 7, 64, 128, 150}) {
    const HostTensor got = run(chunk);
    EXPECT_EQ(0, std::memcmp(got.view().data, want.view().data, size_t(want.view().n_bytes())))
        << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Prefill,
    testing::Combine(testing::Values(Heads{1, 1, 64}, Heads{4, 2, 128}, Heads{8, 1, 80},
                                     Heads{9, 3, 96}, Heads{32, 32, 128}, Heads{2, 1, 8},
                                     Heads{4, 2, 40}, Heads{2, 2, 256}, Heads{3, 1, 37}),
                     testing::Values(std::pair(DType::F16, DType::F16),
                                     std::pair(DType::BF16, DType::BF16),
                                     std::pair(DType::F16, DType::BF16)),
                     testing::Values(std::pair(DType::F16, Path::Launcher),
                                     std::pair(DType::F16, Path::Mma),
                                     std::pair(DType::U8, Path::Launcher))));

TEST(PrefillLong, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kTokens = 8192;
  const Heads h{8, 4, 128};
  TestCache cache(1, DType::F16, h, kTokens + 100);
  poison(cache.layer, kTokens);
  const HostTensor q = random_normal(9, {kTokens, h.n_heads, h.head_dim}, DType::F16, 2);
  const DeviceTensor q_dev = to_device(q), out = poisoned_device(DType::F16, q.view().shape);
  cuda::attention_prefill(nullptr, out, q_dev, cache.layer, 0, scale_of(h));
  const HostTensor got = to_host(out);
  for (int64_t kv_head = 0; kv_head < h.n_kv_heads; ++kv_head) {
    const float64::Values k = cache.head_values(true, kv_head);
    const float64::Values v = cache.head_values(false, kv_head);
    for (int64_t t : {0, 1, 127, 128, 1000, 3333, 4095, 4096, 6000, 8063, 8064, 8191}) {
      const int64_t row = t * h.n_heads + 2 * kv_head + t % 2;
      std::vector<float> values;
      for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(row * h.head_dim + i));
      ASSERT_NO_FATAL_FAILURE(expect_row(row_of(q, row), k, v, h, t, DType::F16, false,
                                         values.data(), cat("token ", t, ", head ", kv_head)));
    }
  }
}

// ---- rotation, append
// ----------------------------------------------------------------------------

HostTensor angles(int64_t max_seq_len, int64_t rotary_dim) {
  HostTensor table(DType::F32, {max_seq_len, rotary_dim / 2, 2});
  for (int64_t pos = 0; pos < max_seq_len; ++pos)
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle = double(pos) * std::pow(10000.0, -2.0 * double(i) / double(rotary_dim));
      float* const at = table.as<float>() + (pos * (rotary_dim / 2) + i) * 2;
      at[0] = float(std::cos(angle));
      at[1] = float(std::sin(angle));
    }
  return table;
}

// A row of x in f32, turned as rotate.cuh says: the same bits.
std::vector<float> rotated_row(const HostTensor& x, int64_t row, int64_t head_dim,
                               const HostTensor* table, int64_t pos) {
  std::vector<float> out;
  for (int64_t i = 0; i < head_dim; ++i) out.push_back(x.at(row * head_dim + i));
  if (table == nullptr) return out;
  const int64_t n_pairs = table->view().shape[1];
  for (int64_t i = 0; i < n_pairs; ++i) {
    const float c = table->at((pos * n_pairs + i) * 2), s = table->at((pos * n_pairs + i) * 2 + 1);
    const float a = out[size_t(i)], b = out[size_t(i + n_pairs)];
    out[size_t(i)] = std::fma(a, c, -(b * s));
    out[size_t(i + n_pairs)] = std::fma(b, c, a * s);
  }
  return out;
}

TEST(CudaRope, IsThatOfTheHostBitForBit) {
  MINFER_NEEDS_CUDA();
  struct Case {
    int64_t n_heads, head_dim, rotary_dim;
  };
  for (const Case& c : {Case{32, 128, 128}, Case{3, 80, 32}, Case{2, 6, 4}, Case{5, 37, 36},
                        Case{4, 64, 0}, Case{1, 8, 8}}) {
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
        for (int64_t row = 0; row < kTokens * c.n_heads; ++row) {
          const auto want = rotated_row(x, row, c.head_dim, c.rotary_dim == 0 ? nullptr : &table,
                                        kPos + row / c.n_heads);
          for (int64_t i = 0; i < c.head_dim; ++i) {
            const float value = to == DType::F16 ? to_f32(to_f16(want[size_t(i)]))
                                                 : to_f32(to_bf16(want[size_t(i)]));
            ASSERT_EQ(got.at(row * c.head_dim + i), value)
                << c.head_dim << ", " << from << " to " << to << ", row " << row << ", " << i;
          }
        }
      }
    }
  }
}

// Writes `row` as position `at` (of all heads' rows in a line) of what the cache should hold.
void put_row(const std::vector<float>& row, int64_t at, HostTensor& rows, HostTensor& scales) {
  const auto head_dim = int64_t(row.size());
  float largest = 0;
  for (float x : row) largest = std::max(largest, std::abs(x));
  const float inverse = largest == 0 ? 0 : 127 / largest;
  for (int64_t i = 0; i < head_dim; ++i) {
    const float x = row[size_t(i)];
    if (rows.view().dtype == DType::F16) {
      rows.as<f16>()[at * head_dim + i] = to_f16(x);
    } else {
      static_cast<uint8_t*>(rows.view().data)[at * head_dim + i] =
          uint8_t(128 + int(std::nearbyint(x * inverse)));
    }
  }
  if (rows.view().dtype != DType::F16) scales.as<float>()[at] = largest / 127;
}

void expect_same_bytes(const Tensor& device, const HostTensor& want, const std::string& what) {
  if (!device) return;
  const HostTensor got = to_host(device);
  if (std::memcmp(got.view().data, want.view().data, size_t(want.view().n_bytes())) == 0) return;
  const auto* a = static_cast<const uint8_t*>(got.view().data);
  const auto* b = static_cast<const uint8_t*>(want.view().data);
  for (int64_t i = 0; i < want.view().n_bytes(); ++i)
    ASSERT_EQ(a[i], b[i]) << what << ", byte " << i;
}

void expect_cache(const TestCache& cache, const std::string& what) {
  expect_same_bytes(cache.layer.keys, cache.keys, what + ": keys");
  expect_same_bytes(cache.layer.values, cache.values, what + ": values");
  expect_same_bytes(cache.layer.key_scales, cache.key_scales, what + ": scales of keys");
  expect_same_bytes(cache.layer.value_scales, cache.value_scales, what + ": scales of values");
}

TEST(CudaKvAppend, RoundsEachRowAndLeavesTheRest) {
  MINFER_NEEDS_CUDA();
  for (const Heads& h : {Heads{2, 2, 128}, Heads{3, 3, 37}, Heads{1, 1, 8}, Heads{4, 4, 80}}) {
    for (DType cache_dtype : {DType::F16, DType::U8}) {
      for (DType dtype : {DType::F16, DType::BF16}) {
        constexpr int64_t kTokens = 17, kPos = 5;
        TestCache cache(1, cache_dtype, h, 40);
        const Shape shape{kTokens, h.n_kv_heads, h.head_dim};
        HostTensor k = random_normal(5, shape, dtype);
        const HostTensor v = random_normal(6, shape, dtype, 0.01f);
        std::memset(k.view().data, 0, size_t(2 * h.head_dim));  // a row of zeros
        cuda::kv_append(nullptr, cache.layer, to_device(k), to_device(v), kPos);
        for (int64_t row = 0; row < kTokens * h.n_kv_heads; ++row) {
          const int64_t at = row % h.n_kv_heads * 40 + kPos + row / h.n_kv_heads;
          put_row(rotated_row(k, row, h.head_dim, nullptr, 0), at, cache.keys, cache.key_scales);
          put_row(rotated_row(v, row, h.head_dim, nullptr, 0), at, cache.values,
                  cache.value_scales);
        }
        expect_cache(cache, cat(h, ", ", dtype, " to ", cache_dtype));
      }
    }
  }
}

// ---- decode
// --------------------------------------------------------------------------------------

using DecodeParam = std::tuple<Heads, DType, DType>;
class Decode : public testing::TestWithParam<DecodeParam> {};

// The launcher's choice, and others: one block or cluster, several of each, blocks with nothing to
// do in a cluster that has. A cluster of blocks is what only sm_90 has.
std::vector<cuda::attention::DecodeSplits> splits_of(const Heads& h, int64_t capacity) {
  const auto chosen = cuda::attention::decode_splits(h.n_heads, h.n_kv_heads, capacity);
  std::vector<cuda::attention::DecodeSplits> all = {
      chosen, {1, 1, 0, 64}, {1, 5, 256, 128}, {1, 40, 16, 16}};
  if (chosen.cluster > 1) {
    all.push_back({2, 1, 0, 16});
    all.push_back({4, 3, 16, 16});
    all.push_back({8, 1, 0, 16});
    all.push_back({8, 4, 64, 64});
  }
  return all;
}

TEST_P(Decode, MatchesFloat64AndAppendsExactly) {
  MINFER_NEEDS_CUDA();
  const auto [h, dtype, cache_dtype] = GetParam();
  constexpr int64_t kCapacity = 4100;
  TestCache cache(1, cache_dtype, h, kCapacity);
  const int64_t rotary_dim = h.head_dim % 16 == 0 ? h.head_dim : h.head_dim / 4 * 2;
  const bool rotates = h.n_heads != 9;
  const HostTensor table = angles(kCapacity, rotary_dim);
  const DeviceTensor table_dev = to_device(table);
  const HostTensor* const used = rotates ? &table : nullptr;
  const auto all_splits = splits_of(h, kCapacity);
  std::vector<DeviceTensor> workspaces;
  for (const auto& splits : all_splits) {
    const int64_t n_bytes =
        cuda::attention::decode_workspace(h.n_heads, h.n_kv_heads, h.head_dim, splits);
    workspaces.push_back(cuda::allocate_device(DType::U8, {n_bytes}));
    MINFER_CUDA_CHECK(cudaMemset(workspaces.back().view().data, 0, size_t(n_bytes)));
  }
  const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});

  for (int pos : {0, 1, 63, 64, 127, 255, 256, 257, 500, 1999, 4095}) {
    const Shape q_shape{h.n_heads, h.head_dim}, kv_shape{h.n_kv_heads, h.head_dim};
    const HostTensor q = random_normal(uint64_t(pos) + 7, q_shape, dtype, 2);
    const HostTensor k = random_normal(uint64_t(pos) + 8, kv_shape, dtype);
    const HostTensor v = random_normal(uint64_t(pos) + 9, kv_shape, dtype);
    const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
    const DeviceTensor out = poisoned_device(dtype, {h.n_heads + 1, h.head_dim});
    MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
    std::vector<float64::Values> k_rows, v_rows;
    // The first choice is what the launcher makes; of the others only the output is looked at.
    for (size_t choice = 0; choice < all_splits.size(); ++choice) {
      const DeviceTensor& workspace = workspaces[choice];
      MINFER_CUDA_CHECK(cudaMemset(out.view().data, 0xFF, size_t(out.view().n_bytes())));
      const cuda::AttentionDecode step{.out = out.view().rows(0, h.n_heads),
                                       .q = q_dev,
                                       .k = k_dev,
                                       .v = v_dev,
                                       .rope = rotates ? table_dev.view() : Tensor(),
                                       .cache = &cache.layer,
                                       .pos = static_cast<const int*>(pos_dev.view().data),
                                       .scale = scale_of(h),
                                       .workspace = workspace.view().data};
      const auto& splits = all_splits[choice];
      const std::string where = cat("position ", pos, ", ", splits.n_clusters, " clusters of ",
                                    splits.cluster, " blocks");
      HostTensor got;
      for (int again = 0; again < 3; ++again) {
        if (choice == 0) cache.restore();
        poison(cache.layer, pos);
        if (choice == 0) {
          cuda::attention_decode(nullptr, step);
        } else {
          cuda::attention::decode(nullptr, step, splits);
        }
        HostTensor result = to_host(out);
        if (again > 0) {
          ASSERT_EQ(
              0, std::memcmp(got.view().data, result.view().data, size_t(result.view().n_bytes())))
              << where << ", run " << again;
        }
        got = std::move(result);
      }
      const HostTensor counters = to_host(workspace.view().rows(0, 4 * h.n_kv_heads));
      for (int64_t i = 0; i < 4 * h.n_kv_heads; ++i)
        ASSERT_EQ(static_cast<const uint8_t*>(counters.view().data)[i], 0) << where;

      // Row pos is as it should be, the rows before are as they were, those behind still poisoned.
      if (choice == 0) {
        for (int64_t head = 0; head < h.n_kv_heads; ++head) {
          const int64_t at = head * kCapacity + pos;
          put_row(rotated_row(k, head, h.head_dim, used, pos), at, cache.keys, cache.key_scales);
          put_row(rotated_row(v, head, h.head_dim, nullptr, pos), at, cache.values,
                  cache.value_scales);
        }
        KvLayer want;
        want.n_kv_heads = h.n_kv_heads;
        want.capacity = kCapacity;
        want.keys = to_device(cache.keys);
        want.values = to_device(cache.values);
        if (cache_dtype == DType::U8) {
          want.key_scales = to_device(cache.key_scales);
          want.value_scales = to_device(cache.value_scales);
        }
        poison(want, pos + 1);
        expect_same_bytes(cache.layer.keys, to_host(want.keys), where + ": keys");
        expect_same_bytes(cache.layer.values, to_host(want.values), where + ": values");
        if (cache_dtype == DType::U8) {
          expect_same_bytes(cache.layer.key_scales, to_host(want.key_scales), where);
          expect_same_bytes(cache.layer.value_scales, to_host(want.value_scales), where);
        }
        for (int64_t head = 0; head < h.n_kv_heads; ++head) {
          k_rows.push_back(cache.head_values(true, head));
          v_rows.push_back(cache.head_values(false, head));
        }
      }
      for (int64_t head = 0; head < h.n_heads; ++head) {
        const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
        if (h.n_heads > 16 && head % 5 != 0) continue;
        float64::Values turned;
        for (float x : rotated_row(q, head, h.head_dim, used, pos))
          turned.push_back(double(to_f32(to_f16(x))));
        std::vector<float> values;
        for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(head * h.head_dim + i));
        ASSERT_NO_FATAL_FAILURE(expect_row(turned, k_rows[size_t(kv_head)], v_rows[size_t(kv_head)],
                                           h, pos, dtype, false, values.data(),
                                           cat(where, ", head ", head)));
      }
      for (int64_t i = 0; i < h.head_dim; ++i)
        ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[h.n_heads * h.head_dim + i], 0xFFFF)
            << "past the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Decode,
    testing::Combine(testing::Values(Heads{1, 1, 64}, Heads{4, 2, 128}, Heads{8, 1, 80},
                                     Heads{9, 3, 96}, Heads{32, 32, 128}, Heads{32, 8, 128},
                                     Heads{2, 1, 8}, Heads{4, 2, 40}, Heads{2, 2, 256},
                                     Heads{3, 1, 37}, Heads{20, 2, 64}),
                     testing::Values(DType::F16, DType::BF16),
                     testing::Values(DType::F16, DType::U8)));

TEST(CudaAttention, RefusesWhatItCannotDo) {
  MINFER_NEEDS_CUDA();
  const Heads h{2, 1, 64};
  const TestCache cache(1, DType::F16, h, 16);
  const DeviceTensor q = poisoned_device(DType::F16, {4, 2, 64});
  const DeviceTensor f32 = poisoned_device(DType::F32, {4, 2, 64});
  EXPECT_THROW(cuda::attention_prefill(nullptr, q, q, cache.layer, 13, 1), Error);  // past the end
  EXPECT_THROW(cuda::attention_prefill(nullptr, q, f32, cache.layer, 0, 1), Error);
  EXPECT_THROW(cuda::attention_prefill(nullptr, q, q, cache.layer, 0, -1), Error);
}

}  // namespace
}  // namespace minfer::test
