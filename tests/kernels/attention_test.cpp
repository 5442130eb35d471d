#include <cstring>

#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"
#include "tests/support/test_pages.h"

namespace minfer::test {
namespace {

struct Heads {
  int64_t n_heads, n_kv_heads, head_dim;
};

class Attention : public testing::TestWithParam<std::tuple<std::string, DType, Heads>> {
 protected:
  Attention() : heads_(std::get<2>(GetParam())), dtype_(std::get<1>(GetParam())) {}

  std::unique_ptr<Backend> backend(int n_threads) const {
    return make_cpu_backend({.n_threads = n_threads, .isa = std::get<0>(GetParam())});
  }
  float scale() const { return 1 / std::sqrt(float(heads_.head_dim)); }
  Shape q_shape(int64_t n) const { return {n, heads_.n_heads, heads_.head_dim}; }
  Shape kv_shape(int64_t n) const { return {n, heads_.n_kv_heads, heads_.head_dim}; }

  // Runs rows [0, n_tokens) of q, k and v through a fresh cache, in chunks.
  std::vector<float> run(Backend& backend, const HostTensor& q, const HostTensor& k,
                         const HostTensor& v, int64_t chunk, int64_t window = 0, float softcap = 0,
                         const HostTensor& sinks = {}) const {
    const int64_t n_tokens = q.view().shape[0];
    const TestPages pages(n_tokens + 5);
    KvLayer cache =
        backend.make_kv_layer(dtype_, heads_.n_kv_heads, heads_.head_dim, pages.n_in_pool());
    const DeviceTensor q_dev = backend.upload(q), k_dev = backend.upload(k);
    const DeviceTensor v_dev = backend.upload(v), out = poisoned(backend, q.view().shape);
    DeviceTensor sinks_dev;
    if (sinks.view()) sinks_dev = backend.upload(sinks);
    for (int64_t pos = 0; pos < n_tokens; pos += chunk) {
      const int64_t n = std::min(chunk, n_tokens - pos);
      const SequenceRows rows = pages.rows(n, pos);
      backend.kv_append(cache, k_dev.view().rows(pos, n), v_dev.view().rows(pos, n), {&rows, 1});
      backend.attention({.out = out.view().rows(pos, n),
                         .q = q_dev.view().rows(pos, n),
                         .cache = cache,
                         .batch = {&rows, 1},
                         .scale = scale(),
                         .window = window,
                         .softcap = softcap,
                         .sinks = sinks_dev});
    }
    return values_of(backend, out);
  }

  // The values of x as the cache holds them, in float64.
  float64::Values rounded(const HostTensor& x) const {
    float64::Values values = doubles(x);
    const int64_t n = x.view().shape.last();
    for (int64_t row = 0; row < x.view().n_elements(); row += n) {
      float largest = 0;
      for (int64_t i = row; i < row + n; ++i) largest = std::max(largest, std::abs(x.at(i)));
      for (int64_t i = row; i < row + n; ++i) {
        double& value = values[size_t(i)];
        if (dtype_ == DType::F16) value = double(to_f32(to_f16(x.at(i))));
        if (dtype_ == DType::U8) {
          value = double(std::nearbyint(x.at(i) * (127 / largest))) * double(largest / 127);
        }
      }
    }
    return values;
  }

  Heads heads_;
  DType dtype_;
};

// A score is off by (head_dim + 2) u of the sum of its magnitudes, its distance from the maximum by
// twice that and u of itself; exp turns that into a relative error and adds 4 u. Weighted values
// and total are sums of blocks of 128, (128 + 2 blocks) u each, then the quotient. A correction of
// the running maximum (exp of a difference, a multiplication) costs at most 8 u and one more
// spread.
TEST_P(Attention, MatchesFloat64) {
  const auto backend = this->backend(2);
  for (const auto& [n_tokens, window] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {1, 0}, {3, 0}, {31, 0}, {130, 0}, {300, 0}, {3, 1}, {40, 7}, {300, 64}, {500, 129}}) {
    SCOPED_TRACE(cat("window ", window));
    const HostTensor q = random_normal(1, q_shape(n_tokens), DType::F32, 2);
    const HostTensor k = random_normal(2, kv_shape(n_tokens));
    const HostTensor v = random_normal(3, kv_shape(n_tokens));
    const auto want =
        float64::attention(doubles(q), rounded(k), rounded(v), heads_.n_heads, heads_.n_kv_heads,
                           heads_.head_dim, 0, double(scale()), window);
    const double n_blocks = double((n_tokens + 127) / 128);
    const std::vector<float> got = run(*backend, q, k, v, n_tokens, window);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / size_t(heads_.head_dim);
      const double score_error = (double(heads_.head_dim) + 2) * want.scores[row];
      const double relative = 4 * score_error + 4 * want.spreads[row] +
                              2 * (std::min(128.0, double(n_tokens)) + 10 * n_blocks) + 8;
      ASSERT_NEAR(double(got[i]), want.out[i], relative * kU * want.magnitudes[i] + kSmallestNormal)
          << n_tokens << " tokens, element " << i;
    }
  }
}

// c tanh(score / c) has slope 1 at most, and its own error of 6 u of c: on a score and on the
// maximum.
TEST_P(Attention, SoftCapsMatchFloat64) {
  const auto backend = this->backend(2);
  constexpr int64_t kTokens = 160;
  const HostTensor q = random_normal(1, q_shape(kTokens), DType::F32, 2);
  const HostTensor k = random_normal(2, kv_shape(kTokens)), v = random_normal(3, kv_shape(kTokens));
  for (const auto& [window, cap] : {std::pair<int64_t, float>{0, 1.0f}, {0, 30.0f}, {37, 2.0f}}) {
    SCOPED_TRACE(cat("window ", window, ", cap ", cap));
    const auto want =
        float64::attention(doubles(q), rounded(k), rounded(v), heads_.n_heads, heads_.n_kv_heads,
                           heads_.head_dim, 0, double(scale()), window, double(cap));
    const std::vector<float> got = run(*backend, q, k, v, kTokens, window, cap);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / size_t(heads_.head_dim);
      const double score_error = (double(heads_.head_dim) + 2) * want.scores[row] + 6 * double(cap);
      const double relative = 4 * score_error + 4 * want.spreads[row] + 2 * (128 + 20.0) + 8;
      ASSERT_NEAR(double(got[i]), want.out[i], relative * kU * want.magnitudes[i] + kSmallestNormal)
          << "element " << i;
    }
    for (const int64_t chunk : {1, 16, 150}) {
      ASSERT_EQ(run(*backend, q, k, v, chunk, window, cap), got) << "chunks of " << chunk;
    }
  }
}

// A sink is exact: it adds a weight, and its distance from the maximum, which is in the spread.
TEST_P(Attention, SinksMatchFloat64) {
  const auto backend = this->backend(2);
  constexpr int64_t kTokens = 160;
  const HostTensor q = random_normal(1, q_shape(kTokens), DType::F32, 2);
  const HostTensor k = random_normal(2, kv_shape(kTokens)), v = random_normal(3, kv_shape(kTokens));
  for (const float above : {0.0f, 12.0f, -28.0f}) {  // among the scores, over them, under them
    HostTensor sinks = random_normal(4, {heads_.n_heads}, DType::F32, 3);
    for (int64_t i = 0; i < heads_.n_heads; ++i) sinks.as<float>()[i] += above;
    for (const int64_t window : {0, 37}) {
      SCOPED_TRACE(cat("window ", window, ", sinks + ", above));
      const auto want =
          float64::attention(doubles(q), rounded(k), rounded(v), heads_.n_heads, heads_.n_kv_heads,
                             heads_.head_dim, 0, double(scale()), window, 0, doubles(sinks));
      const std::vector<float> got = run(*backend, q, k, v, kTokens, window, 0, sinks);
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t row = i / size_t(heads_.head_dim);
        const double score_error = (double(heads_.head_dim) + 2) * want.scores[row];
        const double relative = 4 * score_error + 4 * want.spreads[row] + 2 * (128 + 20.0) + 10;
        ASSERT_NEAR(double(got[i]), want.out[i],
                    relative * kU * want.magnitudes[i] + kSmallestNormal)
            << "element " << i;
      }
      for (const int64_t chunk : {1, 16, 150}) {
        ASSERT_EQ(run(*backend, q, k, v, chunk, window, 0, sinks), got) << "chunks of " << chunk;
      }
    }
  }
}

TEST_P(Attention, BitsDependOnNeitherChunksNorThreads) {
  constexpr int64_t kTokens = 203;
  const HostTensor q = random_normal(1, q_shape(kTokens));
  const HostTensor k = random_normal(2, kv_shape(kTokens)), v = random_normal(3, kv_shape(kTokens));
  for (const int64_t window : {0, 150, 20, 1}) {
    const std::vector<float> want = run(*backend(1), q, k, v, 1, window);
    for (int n_threads : {1, 2, 3, 5}) {
      for (int64_t chunk : {1, 7, 16, 64, 150, 203}) {
        ASSERT_EQ(run(*backend(n_threads), q, k, v, chunk, window), want)
            << n_threads << " threads, chunks of " << chunk << ", window " << window;
      }
    }
  }
}

// Positions past a token's own, of its chunk or left from before, contribute nothing.
TEST_P(Attention, MaskedPositionsContributeNothing) {
  constexpr int64_t kTokens = 40, kBroken = 21;
  HostTensor q = random_normal(1, q_shape(kTokens));
  HostTensor k = random_normal(2, kv_shape(kTokens)), v = random_normal(3, kv_shape(kTokens));
  const auto backend = this->backend(2);
  const std::vector<float> want = run(*backend, q, k, v, kTokens);
  const int64_t row = heads_.n_kv_heads * heads_.head_dim;
  for (int64_t i = kBroken * row; i < kTokens * row; ++i) {
    k.as<float>()[i] = std::nanf("");
    v.as<float>()[i] = i % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
  }
  const std::vector<float> got = run(*backend, q, k, v, kTokens);
  const auto n = size_t(kBroken * heads_.n_heads * heads_.head_dim);
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), n * sizeof(float)));
  for (size_t i = n; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
}

// Neither do positions before the window.
TEST_P(Attention, PositionsBeforeTheWindowContributeNothing) {
  constexpr int64_t kTokens = 300, kBroken = 170, kWindow = 90;
  HostTensor q = random_normal(1, q_shape(kTokens));
  HostTensor k = random_normal(2, kv_shape(kTokens)), v = random_normal(3, kv_shape(kTokens));
  const auto backend = this->backend(2);
  const std::vector<float> want = run(*backend, q, k, v, kTokens, kWindow);
  const int64_t row = heads_.n_kv_heads * heads_.head_dim;
  for (int64_t i = 0; i < kBroken * row; ++i) {
    k.as<float>()[i] = std::nanf("");
    v.as<float>()[i] = i % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
  }
  const std::vector<float> got = run(*backend, q, k, v, kTokens, kWindow);
  const auto begin = size_t((kBroken + kWindow - 1) * heads_.n_heads * heads_.head_dim);
  EXPECT_EQ(0, std::memcmp(got.data() + begin, want.data() + begin,
                           (got.size() - begin) * sizeof(float)));
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Attention,
    testing::Combine(testing::ValuesIn(supported_isas()),
                     testing::Values(DType::F16, DType::F32, DType::U8),
                     testing::Values(Heads{1, 1, 1}, Heads{4, 4, 4}, Heads{6, 2, 8},
                                     Heads{8, 1, 16}, Heads{9, 3, 64}, Heads{2, 2, 80},
                                     Heads{4, 2, 96}, Heads{2, 1, 128}, Heads{3, 3, 37})));

// Every f32 near every f16 is rounded as in the portable code: with a single position, the output
// is the value.
class KvRounding : public testing::TestWithParam<std::string> {};

TEST_P(KvRounding, IsThatOfThePortableCode) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = GetParam()});
  constexpr int64_t kDim = 4096;
  const TestPages pages(1);
  const SequenceRows rows = pages.rows(1, 0);
  KvLayer cache = backend->make_kv_layer(DType::F16, 1, kDim, pages.n_in_pool());
  const DeviceTensor zero = backend->upload(from_values(std::vector<float>(kDim, 0), {1, 1, kDim}));
  const DeviceTensor out = poisoned(*backend, {1, 1, kDim});
  for (uint32_t begin = 0; begin < 65536; begin += kDim / 8) {
    std::vector<float> values;
    for (uint32_t h = begin; h < begin + kDim / 8; ++h) {
      const auto here = std::bit_cast<uint32_t>(to_f32(f16{uint16_t(h)}));
      for (uint32_t bits : {here - 1, here, here + 1, here + 0xfff, here + 0x1000, here + 0x1001,
                            here + 0x800, here + 0x1800}) {
        values.push_back(std::bit_cast<float>(bits));
      }
    }
    const DeviceTensor v = backend->upload(from_values(values, {1, 1, kDim}));
    backend->kv_append(cache, zero, v, {&rows, 1});
    backend->attention({.out = out, .q = zero, .cache = cache, .batch = {&rows, 1}, .scale = 1});
    const std::vector<float> got = values_of(*backend, out);
    for (size_t i = 0; i < got.size(); ++i) {
      const float want = to_f32(to_f16(values[i]));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got[i])) << values[i];
      } else {
        ASSERT_EQ(got[i], want) << values[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KvRounding, testing::ValuesIn(supported_isas()));

}  // namespace
}  // namespace minfer::test
