#include <cstring>

#include "tests/support/float64_ops.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

constexpr int64_t kGroup = 32;  // columns of an input with one scale, and of a step of a sum

struct Format {
  DType codes, scales;
  bool with_mins;
  bool half_mins = false;  // the mins are exact in F16
  CodeTable table = CodeTable::None;
};

std::ostream& operator<<(std::ostream& out, const Format& f) {
  return out << f.codes << " with " << f.scales << (f.with_mins ? " and mins" : "")
             << (f.table != CodeTable::None ? cat(" and table ", int(f.table)) : "");
}

constexpr Format kFormats[] = {
    {DType::U4, DType::F16, false},
    {DType::U4, DType::F16, true, true},
    {DType::U4, DType::F32, false},
    {DType::U4, DType::F32, true},
    {DType::U8, DType::F16, false},
    {DType::U8, DType::F16, true},
    {DType::U8, DType::F32, false},
    {DType::U8, DType::F32, true, true},
    {DType::U4, DType::F16, false, false, CodeTable::Iq4},
    {DType::U4, DType::F32, false, false, CodeTable::E2m1},
};

void fill_random(const HostTensor& to, uint64_t seed, bool half, float scale) {
  const HostTensor values =
      random_normal(seed, to.view().shape, half ? DType::F16 : DType::F32, scale);
  visit_float(to.view().dtype, [&]<typename T>() {
    for (int64_t i = 0; i < to.view().n_elements(); ++i) to.as<T>()[i] = from_f32<T>(values.at(i));
  });
}

HostQuantizedMatrix random_matrix(const Format& format, int64_t out_dim, int64_t in_dim,
                                  int64_t group) {
  HostQuantizedMatrix w =
      make_quantized_matrix(format.codes, format.scales, out_dim, in_dim, group, format.with_mins);
  w.table = format.table;
  std::mt19937_64 engine(9);
  auto* const codes = static_cast<uint8_t*>(w.codes.view().data);
  for (int64_t i = 0; i < w.codes.view().n_bytes(); ++i) codes[i] = uint8_t(engine());
  fill_random(w.scales, 10, format.scales == DType::F16, 0.1f);
  if (format.with_mins) fill_random(w.mins, 11, format.half_mins, 0.5f);
  return w;
}

// A matrix in float64, and the magnitudes of the terms that make up its values.
struct Reference {
  explicit Reference(const QuantizedMatrix& w) {
    for (int64_t row = 0; row < w.out_dim(); ++row) {
      const auto* codes = static_cast<const uint8_t*>(w.codes.rows(row, 1).data);
      for (int64_t i = 0; i < w.in_dim(); ++i) {
        const int code = w.bits() == 8 ? codes[i] : (codes[i / 2] >> (i % 2 * 4)) & 15;
        const int64_t group = row * w.n_groups() + i / w.group;
        const double scale = visit_float(w.scales.dtype, [&]<typename T>() {
          return double(to_f32(w.scales.as<const T>()[group]));
        });
        const double min = w.asymmetric() ? double(w.mins.as<const float>()[group]) : 0;
        const int whole = w.table != CodeTable::None ? entries_of(w.table)[size_t(code)]
                                                     : code - (w.asymmetric() ? 0 : w.zero_code());
        const double scaled = scale * whole;
        values.push_back(scaled + min);
        magnitudes.push_back(std::abs(scaled) + std::abs(min));
      }
    }
  }
  float64::Values values, magnitudes;
};

// A row of inputs after quantization, from the definition in kernels/backend.h.
void quantize_row(double* out, const float* x, int64_t n, bool asymmetric) {
  for (int64_t begin = 0; begin < n; begin += kGroup) {
    const int64_t end = std::min(n, begin + kGroup);
    float low = 0, high = 0;
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
    }
    const float range = asymmetric ? high - low : std::max(high, -low);
    const float steps = asymmetric ? 255 : 127, inverse = range > 0 ? steps / range : 0;
    const float zero = asymmetric && range > 0 ? std::nearbyint(-128 - low * inverse) : 0;
    for (int64_t i = begin; i < end; ++i) {
      const float code = std::min(127.0f, std::nearbyint(x[i] * inverse) + zero);
      out[i] = (double(code) - double(zero)) * double(range / steps);
    }
  }
}

float64::Values as_seen(const HostTensor& x, Activations activations) {
  float64::Values values = doubles(x);
  if (activations == Activations::Float) return values;
  const int64_t in_dim = x.view().shape[1];
  for (size_t i = 0; i < values.size(); i += size_t(in_dim)) {
    quantize_row(values.data() + i, x.as<const float>() + i, in_dim,
                 activations == Activations::Int8Asym);
  }
  return values;
}

// The sum of a step has 32 products, each rounded twice if they are not fused. What is added to the
// total is rounded three times at most, and the total twice in each step.
double bound(int64_t in_dim, int64_t step, double sum_of_magnitudes) {
  const double n_steps = double((in_dim + step - 1) / step);
  return (double(kGroup) + 2 * n_steps + 6) * kU * sum_of_magnitudes + 1e-42;
}

// The largest magnitude of each block, at each of its columns.
float64::Values block_magnitudes(const float64::Values& x, int64_t in_dim) {
  float64::Values largest(x.size());
  for (size_t row = 0; row < x.size(); row += size_t(in_dim)) {
    for (int64_t begin = 0; begin < in_dim; begin += kGroup) {
      const auto block = x.begin() + int64_t(row) + begin;
      const int64_t n = std::min(kGroup, in_dim - begin);
      std::fill_n(largest.begin() + int64_t(row) + begin, n, *std::max_element(block, block + n));
    }
  }
  return largest;
}

using Parameters = std::tuple<std::string, Activations>;

class QuantizedMatmul : public testing::TestWithParam<Parameters> {
 protected:
  std::unique_ptr<Backend> backend(int n_threads) const {
    return make_cpu_backend({.n_threads = n_threads,
                             .isa = std::get<0>(GetParam()),
                             .activations = std::get<1>(GetParam())});
  }
  float64::Values as_seen(const HostTensor& x) const {
    return test::as_seen(x, std::get<1>(GetParam()));
  }

  // The error of f32 inputs as int8 planes (AVX-512 VNNI), relative to the largest magnitude in a
  // block.
  const double plane_u_ =
      std::get<1>(GetParam()) == Activations::Float && std::get<0>(GetParam()) == "avx512" ? 0x1p-22
                                                                                           : 0;

  void expect_match(Backend& backend, const HostQuantizedMatrix& w, int64_t n_tokens,
                    bool accumulate) const {
    const int64_t out_dim = w.view().out_dim(), in_dim = w.view().in_dim();
    const HostTensor x = random_normal(1, {n_tokens, in_dim});
    const HostTensor residual = random_normal(3, {n_tokens, out_dim});
    const DeviceTensor out =
        accumulate ? backend.upload(residual) : poisoned(backend, {n_tokens, out_dim});
    backend.matmul(out, backend.upload(x), backend.pack_matrix(w.view()), accumulate);

    const Reference reference(w.view());
    float64::Values x64 = as_seen(x);
    float64::Values want = float64::matmul(x64, reference.values, in_dim);
    for (double& v : x64) v = std::abs(v);
    float64::Values magnitude = float64::matmul(x64, reference.magnitudes, in_dim);
    const float64::Values rounded =
        float64::matmul(block_magnitudes(x64, in_dim), reference.magnitudes, in_dim);
    const std::vector<float> got = values_of(backend, out);
    for (size_t i = 0; i < got.size(); ++i) {
      if (accumulate) {
        want[i] += double(residual.at(int64_t(i)));
        magnitude[i] += std::abs(double(residual.at(int64_t(i))));
      }
      ASSERT_NEAR(double(got[i]), want[i],
                  bound(in_dim, w.group == 16 ? 16 : kGroup, magnitude[i]) + plane_u_ * rounded[i])
          << "element " << i;
    }
  }
};

struct Groups {
  int64_t in_dim, group;
};

TEST_P(QuantizedMatmul, MatchesFloat64) {
  const auto backend = this->backend(2);
  for (const Format& format : kFormats) {
    for (const auto [in_dim, group] :
         {Groups{32, 32}, Groups{96, 32}, Groups{160, 32}, Groups{128, 64}, Groups{256, 128},
          Groups{172, 172}, Groups{48, 16}, Groups{160, 160}, Groups{192, 96}, Groups{2, 2}}) {
      for (int64_t out_dim : {1, 17, 100}) {
        for (int64_t n_tokens : {1, 2, 7, 19, 37}) {
          SCOPED_TRACE(cat(format, ", [", out_dim, ", ", in_dim, "] by ", group, ", ", n_tokens));
          expect_match(*backend, random_matrix(format, out_dim, in_dim, group), n_tokens,
                       n_tokens == 7);
        }
      }
    }
  }
}

TEST_P(QuantizedMatmul, MatchesFloat64OverManyColumns) {
  const auto backend = this->backend(2);
  for (const Format& format : {kFormats[0], kFormats[1], kFormats[4], kFormats[7]}) {
    for (const auto [in_dim, group] : {Groups{2048, 64}, Groups{2208, 2208}, Groups{1056, 16}}) {
      SCOPED_TRACE(cat(format, ", ", in_dim, " columns by ", group));
      for (int64_t n_tokens : {1, 13, 41}) {
        expect_match(*backend, random_matrix(format, 40, in_dim, group), n_tokens, false);
      }
    }
  }
}

// Row t has the same bits however many rows are computed together, on any number of threads.
TEST_P(QuantizedMatmul, BitsDependOnNeitherTokensNorThreads) {
  constexpr int64_t kMaxTokens = 300, kIn = 1184, kOut = 187;
  const HostTensor x = random_normal(1, {kMaxTokens, kIn});
  for (const auto& [format, group] :
       {std::pair{kFormats[0], 32}, {kFormats[3], 16}, {kFormats[4], 1184}, {kFormats[7], 32}}) {
    const HostQuantizedMatrix w = random_matrix(format, kOut, kIn, group);
    std::vector<float> want;
    for (int n_threads : {1, 2, 3}) {
      const auto backend = this->backend(n_threads);
      const Matrix packed = backend->pack_matrix(w.view());
      const DeviceTensor x_all = backend->upload(x);
      for (int64_t n : {1, 2, 3, 7, 16, 32, 33, 64, 259, 300}) {
        const DeviceTensor out = poisoned(*backend, {kMaxTokens, kOut});
        for (int64_t t = 0; t < kMaxTokens; t += n) {
          const int64_t rows = std::min(n, kMaxTokens - t);
          backend->matmul(out.view().rows(t, rows), x_all.view().rows(t, rows), packed);
        }
        const std::vector<float> got = values_of(*backend, out);
        if (want.empty()) want = got;
        ASSERT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
            << format << ", " << n << " tokens, " << n_threads << " threads";
        if (n == 1 && n_threads > 1) break;
      }
    }
  }
}

TEST_P(QuantizedMatmul, KeepsNaNAndInfinityInTheirRow) {
  const auto backend = this->backend(1);
  constexpr int64_t kIn = 64, kOut = 20, kTokens = 9;
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -3e38f}) {
    HostTensor x = random_normal(1, {kTokens, kIn});
    x.as<float>()[4 * kIn + 3] = bad;
    x.as<float>()[4 * kIn + 4] = 3e38f;  // with -3e38 the range overflows
    const Matrix w = backend->pack_matrix(random_matrix(kFormats[1], kOut, kIn, 32).view());
    const DeviceTensor out = poisoned(*backend, {kTokens, kOut});
    backend->matmul(out, backend->upload(x), w);
    const std::vector<float> got = values_of(*backend, out);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i / kOut != 4) {
        ASSERT_TRUE(std::isfinite(got[i])) << i;
      } else if (bad != -3e38f) {
        ASSERT_FALSE(std::isfinite(got[i])) << i;
      }
    }
  }
}

TEST_P(QuantizedMatmul, TakesInputsThatAreAllZeroOrTiny) {
  const auto backend = this->backend(1);
  for (float value : {0.0f, 1e-45f, -1e-38f}) {
    const Matrix w = backend->pack_matrix(random_matrix(kFormats[0], 16, 32, 32).view());
    const DeviceTensor out = poisoned(*backend, {1, 16});
    backend->matmul(out, backend->upload(from_values(std::vector<float>(32, value), {1, 32})), w);
    for (float y : values_of(*backend, out)) EXPECT_LE(std::abs(y), 32 * 16 * std::abs(value));
  }
}

// With quantized activations, float weights get the input quantized and dequantized.
TEST_P(QuantizedMatmul, RoundsTheInputOfFloatWeights) {
  const auto backend = this->backend(2);
  constexpr int64_t kIn = 172, kOut = 19, kTokens = 3;
  const HostTensor x = random_normal(1, {kTokens, kIn}), w = random_normal(2, {kOut, kIn});
  const DeviceTensor out = poisoned(*backend, {kTokens, kOut});
  backend->matmul(out, backend->upload(x), backend->pack_matrix(w));
  float64::Values x64 = as_seen(x), w64 = doubles(w);
  const float64::Values want = float64::matmul(x64, w64, kIn);
  for (double& v : x64) v = std::abs(v);
  for (double& v : w64) v = std::abs(v);
  const float64::Values magnitude = float64::matmul(x64, w64, kIn);
  const std::vector<float> got = values_of(*backend, out);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(double(got[i]), want[i], (kIn + 4) * kU * magnitude[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedMatmul,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(Activations::Float, Activations::Int8,
                                                          Activations::Int8Asym)));

TEST(QuantizedPanels, EmbedGivesTheValuesThatCodesMean) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = ""});
  constexpr int64_t kVocab = 37;
  const std::vector<TokenId> ids = {0, 36, 5, 5, 16, 15};
  for (const Format& format : kFormats) {
    for (const auto [dim, group] : {Groups{64, 32}, Groups{172, 172}, Groups{48, 16},
                                    Groups{72, 24}}) {  // 24 has no packed layout: F32
      const HostQuantizedMatrix table = random_matrix(format, kVocab, dim, group);
      const DeviceTensor out = poisoned(*backend, {int64_t(ids.size()), dim});
      backend->embed(out, backend->pack_matrix(table.view()), ids);
      std::vector<float> want(ids.size() * size_t(dim));
      for (size_t t = 0; t < ids.size(); ++t) {
        dequantize_row(want.data() + int64_t(t) * dim, table.view(), ids[t]);
      }
      EXPECT_EQ(values_of(*backend, out), want) << format << " by " << group;
    }
  }
}

}  // namespace
}  // namespace minfer::test
