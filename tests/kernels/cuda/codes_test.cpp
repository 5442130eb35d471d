#include "tests/kernels/cuda/gemm_cases.h"
#include "tests/kernels/cuda/weights.h"

// GEMMs of int8 codes, and the kernels that make their rows of codes.
namespace minfer::test {
namespace {

using cuda::CodeRows;
using cuda::GemmPlan;
using cuda::GemmTile;

// ---- rows of codes ----------------------------------------------------------------------------

// Poisoned rows of codes on the card, with guards before and after the codes.
struct DeviceRows {
  static constexpr int64_t kGuard = 64;
  DeviceRows(int64_t n, int64_t dim)
      : codes(poisoned_device(DType::U8, {n * dim + 2 * kGuard})),
        scales(poisoned_device(DType::F32, {n + 2})),
        n(n),
        dim(dim) {
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  }
  CodeRows rows() const {
    return {{codes.view().as<uint8_t>() + kGuard, DType::U8, {n, dim}},
            {scales.view().as<float>(), DType::F32, {n}}};
  }
  void expect_guards() const {
    const HostTensor l = to_host(codes), s = to_host(scales);
    const auto* const bytes = l.as<const uint8_t>();
    for (int64_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(bytes[i], 0xFF) << "in front of the first row";
      ASSERT_EQ(bytes[kGuard + n * dim + i], 0xFF) << "behind the last row";
    }
    ASSERT_TRUE(std::isnan(s.at(n)) && std::isnan(s.at(n + 1)));
  }

  DeviceTensor codes, scales;
  int64_t n, dim;
};

// A row of zeros, rows with one element that is not finite, and rows of every length.
TEST(CudaCodes, QuantizesRows) {
  MINFER_NEEDS_CUDA();
  for (const DType half : {DType::F16, DType::BF16}) {
    for (const int64_t dim : {16, 48, 272, 2048, 2064, 4096, 11008}) {
      SCOPED_TRACE(cat(half, " ", dim));
      constexpr int64_t kRows = 7, kZeros = 2, kNan = 4, kInfinite = 5;
      HostTensor x = random_normal(uint64_t(dim), {kRows, dim}, half, 3);
      visit_float(half, [&]<typename T>() {
        T* const data = x.as<T>();
        std::fill_n(data + kZeros * dim, dim, from_f32<T>(0));
        data[kNan * dim + dim - 3] = from_f32<T>(NAN);
        data[kInfinite * dim + dim / 2] = from_f32<T>(-INFINITY);
      });
      const DeviceRows to(kRows, dim);
      const DeviceTensor x_device = to_device(x);
      cuda::quantize_rows(stream(), to.rows(), x_device);
      to.expect_guards();
      const HostTensor codes = to_host(to.codes), scales = to_host(to.scales);
      for (int64_t row = 0; row < kRows; ++row) {
        if (row == kNan || row == kInfinite) {
          ASSERT_FALSE(std::isfinite(scales.at(row))) << "row " << row;
          for (int64_t i = 0; i < dim; ++i) {
            ASSERT_EQ(codes.as<const uint8_t>()[DeviceRows::kGuard + row * dim + i], 0)
                << "row " << row << ", column " << i;
          }
          continue;
        }
        float most = 0;
        for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::abs(x.at(row * dim + i)));
        ASSERT_EQ(scales.at(row), most / 127) << "row " << row;
        const float codes_of_one = most > 0 ? 127 / most : 0;
        for (int64_t i = 0; i < dim; ++i) {
          const auto code = int8_t(codes.as<const uint8_t>()[DeviceRows::kGuard + row * dim + i]);
          ASSERT_EQ(code, std::nearbyint(x.at(row * dim + i) * codes_of_one))
              << "row " << row << ", column " << i;
        }
      }
    }
  }
}

// The rows of codes of a matrix, computed in f32 like the kernels.
struct WantedRows {
  std::vector<int> codes;
  std::vector<float> scales;
};
WantedRows wanted_rows(const Weights& w) {
  const QuantizedMatrix q = w.quantized.view();
  const int64_t in_dim = q.in_dim();
  const bool is_exact = q.bits() == 8 && !q.asymmetric() && q.n_groups() == 1;
  WantedRows wanted;
  std::vector<float> values(static_cast<size_t>(in_dim));
  for (int64_t row = 0; row < q.out_dim(); ++row) {
    if (is_exact) {
      wanted.scales.push_back(w.quantized.scales.at(row));
      const auto* const codes = w.quantized.codes.as<const uint8_t>() + row * in_dim;
      for (int64_t i = 0; i < in_dim; ++i) wanted.codes.push_back(codes[i] - 128);
      continue;
    }
    const int bits = w.matrix.code_bits;  // of products, not always those of q
    const float zero = q.asymmetric() ? 0 : float(1 << (bits - 1));
    float lowest = -zero, highest = float((1 << bits) - 1) - zero;
    if (q.table != CodeTable::None) {
      const auto entries = std::ranges::minmax(entries_of(q.table));
      lowest = entries.min;
      highest = entries.max;
    }
    float most = 0;
    for (int64_t group = 0; group < q.n_groups(); ++group) {
      const float scale = w.quantized.scales.at(row * q.n_groups() + group);
      const float min = q.asymmetric() ? w.quantized.mins.at(row * q.n_groups() + group) : 0;
      const volatile float low = lowest * scale, high = highest * scale;  // no fma
      most = std::max({most, std::abs(low + min), std::abs(high + min)});
    }
    wanted.scales.push_back(most / 127);
    const float codes_of_one = wanted.scales.back() > 0 ? 1 / wanted.scales.back() : 0;
    dequantize_row(values.data(), q, row);
    for (const float value : values) {
      wanted.codes.push_back(int(std::nearbyint(value * codes_of_one)));
    }
  }
  return wanted;
}

void expect_unpacked(const std::vector<const Weights*>& matrices) {
  std::vector<std::unique_ptr<DeviceRows>> rows;
  std::vector<cuda::UnpackPart> parts;
  for (const Weights* w : matrices) {
    ASSERT_TRUE(cuda::fits_code_rows(w->matrix));
    rows.push_back(std::make_unique<DeviceRows>(w->matrix.out_dim, w->matrix.in_dim));
    parts.push_back({&w->matrix, rows.back()->rows()});
  }
  cuda::unpack_codes(stream(), parts);
  for (size_t part = 0; part < parts.size(); ++part) {
    const Weights& w = *matrices[part];
    SCOPED_TRACE(
        cat(w.format, ", part ", part, " [", w.matrix.out_dim, ", ", w.matrix.in_dim, "]"));
    rows[part]->expect_guards();
    const WantedRows wanted = wanted_rows(w);
    const HostTensor codes = to_host(rows[part]->codes), scales = to_host(rows[part]->scales);
    for (int64_t row = 0; row < w.matrix.out_dim; ++row) {
      ASSERT_EQ(scales.at(row), wanted.scales[size_t(row)]) << "row " << row;
    }
    for (int64_t i = 0; i < w.matrix.out_dim * w.matrix.in_dim; ++i) {
      ASSERT_EQ(int8_t(codes.as<const uint8_t>()[DeviceRows::kGuard + i]), wanted.codes[size_t(i)])
          << "row " << i / w.matrix.in_dim << ", column " << i % w.matrix.in_dim;
    }
  }
}

const Format kRowFormat = of_group(DType::U8, DType::F16, false, kRow);

TEST(CudaCodes, UnpacksMatrices) {
  MINFER_NEEDS_CUDA();
  std::vector<Format> formats = {kRowFormat};
  for (const DType codes : {DType::U4, DType::U8}) {
    for (const bool mins : {false, true}) {
      for (const int64_t group : {int64_t{16}, int64_t{32}, int64_t{96}, int64_t{512}, kRow}) {
        formats.push_back(of_group(codes, mins ? DType::F32 : DType::F16, mins, group));
      }
    }
  }
  formats.insert(formats.end(), std::begin(kTableFormats), std::end(kTableFormats));
  for (const Format& f : formats) {
    for (const int64_t in_dim : {16, 48, 64, 80, 144, 288, 1536}) {
      if (f.group != kRow && (in_dim % f.group != 0 || in_dim == f.group)) continue;
      for (const int64_t out_dim : {1, 16, 83}) {
        const Weights w(f, out_dim, in_dim, uint64_t(in_dim));
        expect_unpacked({&w});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(CudaCodes, UnpacksProducts) {
  MINFER_NEEDS_CUDA();
  for (const Format& f : product_formats()) {
    for (const int64_t out_dim : {1, 16, 83}) {
      const Weights w(f, out_dim, 768, 1);
      expect_unpacked({&w});
      if (HasFatalFailure()) return;
    }
  }
}

// One call for matrices of several formats and sizes.
TEST(CudaCodes, UnpacksParts) {
  MINFER_NEEDS_CUDA();
  const Weights q(of_group(DType::U8, DType::F32, false, kRow), 96, 192, 1),
      k(of_group(DType::U4, DType::F16, false, 64), 24, 192, 2),
      v(of_group(DType::U4, DType::F32, true, 32), 1, 192, 3), same(kRowFormat, 40, 192, 4),
      table(kTableFormats[0], 24, 192, 5);
  expect_unpacked({&q, &k, &v});
  expect_unpacked({&k, &q, &k});
  expect_unpacked({&same, &q});
  expect_unpacked({&table, &k, &v});
  EXPECT_FALSE(cuda::fits_code_rows(Weights(Format{}, 16, 64, 1).matrix));
  EXPECT_FALSE(cuda::fits_code_rows(Weights(kRowFormat, 16, 72, 1).matrix));
}

// ---- GEMM --------------------------------------------------------------------------------------

// The case with every epilogue that GEMMs of codes have.
std::vector<GemmCase> with_code_epilogues(const GemmCase& c) {
  std::vector<GemmCase> cases = with_epilogues(c);
  std::erase_if(cases, [](const GemmCase& of) {
    return of.epilogue == Epilogue::GeluErf || of.epilogue == Epilogue::GeluTanh;
  });
  return cases;
}

struct HostRows {
  HostRows(uint64_t seed, int64_t n, int64_t dim, float scale)
      : codes(DType::U8, {n, dim}), scales(random_normal(seed, {n}, DType::F32, scale)) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < n * dim; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      codes.as<uint8_t>()[i] = uint8_t(state >> 56);
    }
  }
  const int8_t* row(int64_t i) const {
    return reinterpret_cast<const int8_t*>(codes.as<const uint8_t>()) + i * codes.view().shape[1];
  }
  HostTensor codes, scales;
};

// Inputs on host and card. Outs have an extra row of NaN before and after.
struct Tensors {
  explicit Tensors(const GemmCase& c) : c(c), x(1, c.m, c.k, 0.02f) {
    x_device = {to_device(x.codes), to_device(x.scales)};
    const DType out_dtype = c.out_is_f32 ? DType::F32 : c.dtype;
    for (size_t i = 0; i < c.n.size(); ++i) {
      w.emplace_back(2 + i, c.n[i], c.k, 0.01f / std::sqrt(float(c.k)));
      w_device.push_back({to_device(w[i].codes), to_device(w[i].scales)});
      bias.push_back(random_normal(12 + i, {c.n[i]}, c.dtype));
      bias_device.push_back(to_device(bias[i]));
      HostTensor out(out_dtype, {c.m + 2, c.n[i]});
      std::memset(out.view().data, 0xFF, size_t(out.view().n_bytes()));
      if (c.epilogue == Epilogue::Accumulate) {
        const HostTensor residual = random_normal(22 + i, {c.m, c.n[i]}, DType::F32, 3);
        std::memcpy(out.view().rows(1, c.m).data, residual.view().data,
                    size_t(residual.view().n_bytes()));
      }
      out_device.push_back(to_device(out));
      before.push_back(std::move(out));
    }
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  }

  std::vector<cuda::CodesPart> parts() const {
    std::vector<cuda::CodesPart> parts;
    for (size_t i = 0; i < c.n.size(); ++i) {
      parts.push_back({rows_of(w_device[i]), out_device[i].view().rows(1, c.m),
                       c.has_bias ? bias_device[i].view() : Tensor{}});
    }
    return parts;
  }
  using OnDevice = std::pair<DeviceTensor, DeviceTensor>;
  static CodeRows rows_of(const OnDevice& rows) { return {rows.first, rows.second}; }

  const GemmCase& c;
  HostRows x;
  OnDevice x_device;
  std::vector<HostRows> w;
  std::vector<OnDevice> w_device;
  std::vector<HostTensor> bias, before;
  std::vector<DeviceTensor> bias_device, out_device;
};

struct Bounded {
  double value, error;
};

// Sums of codes are exact. With split-K, each of up to four partial sums is rounded to f32; so are
// the product of both scales and its product with a sum. Partial sums are added in order.
Bounded exact_sum(const Tensors& t, size_t part, int64_t row, int64_t column) {
  const int8_t *const a = t.x.row(row), *const b = t.w[part].row(column);
  int64_t sum = 0, magnitude = 0;
  for (int64_t i = 0; i < t.c.k; ++i) {
    sum += a[i] * b[i];
    magnitude += std::abs(a[i] * b[i]);
  }
  const double scale = double(t.x.scales.at(row)) * double(t.w[part].scales.at(column));
  double value = double(sum) * scale, error = 7 * kU * double(magnitude) * std::abs(scale);
  if (t.c.has_bias) {
    value += double(t.bias[part].at(column));
    error += kU * (std::abs(value) + error);
  }
  return {value, error};
}

Bounded expected(const Tensors& t, size_t part, int64_t row, int64_t column) {
  auto [value, error] = exact_sum(t, part, row, column);
  if (t.c.epilogue == Epilogue::Accumulate) {
    value += double(t.before[part].at((row + 1) * t.c.n[part] + column));
  } else if (is_gated(t.c.epilogue)) {
    const Bounded up = exact_sum(t, 1, row, column);
    const double gate = float64::activated(value, plain::gate_of(t.c.epilogue));
    value = gate * up.value;
    error = 1.13 * error * (std::abs(up.value) + up.error) + std::abs(gate) * up.error +
            0x1p-19 * std::abs(value);
  }
  const DType dtype = t.c.out_is_f32 ? DType::F32 : t.c.dtype;
  return {value, error + unit_roundoff(dtype) * (std::abs(value) + error) +
                     (dtype == DType::F16 ? 0x1p-24 : kSmallestNormal)};
}

// If not all: the first, the last, and some between at all places of a tile.
std::vector<int64_t> spread(int64_t size, bool all) {
  std::vector<int64_t> picked;
  for (int64_t i = 0; i < size; ++i) {
    if (all || i < 3 || i >= size - 3 || i % 61 == 0) picked.push_back(i);
  }
  return picked;
}

template <typename Launcher>
void check_gemm(const GemmCase& c, const Launcher& launcher) {
  SCOPED_TRACE(cat(c));
  const Tensors t(c);
  launcher(Tensors::rows_of(t.x_device), t.parts(), c.epilogue);
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  for (size_t part = 0; part < c.n.size(); ++part) {
    const HostTensor out = to_host(t.out_device[part]);
    const int64_t n = c.n[part], last = (c.m + 1) * n;
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(std::isnan(out.at(i)) && std::isnan(out.at(last + i)))
          << "written around out of part " << part << ", column " << i;
    }
    if (is_gated(c.epilogue) && part > 0) continue;
    for (int64_t i = n; i < last; ++i) {
      ASSERT_TRUE(std::isfinite(out.at(i))) << "row " << i / n - 1 << ", column " << i % n;
    }
    const bool all = c.m * n * c.k < 4'000'000;
    for (const int64_t row : spread(c.m, all)) {
      for (const int64_t column : spread(n, all)) {
        const Bounded want = expected(t, part, row, column);
        ASSERT_NEAR(double(out.at((row + 1) * n + column)), want.value, want.error)
            << "part " << part << ", row " << row << ", column " << column;
      }
    }
  }
}

class CudaCodesGemm : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CUDA();
    if (!cuda::can_multiply_codes()) GTEST_SKIP() << "no wgmma in this binary or on this card";
  }
  static void check_all_plans(const GemmCase& c, bool of_split = true) {
    cuda::GemmArgs args;
    args.k = narrow<int>(c.k / 2);
    args.epilogue = c.epilogue;
    const float scale = 1;
    args.x_scales = &scale;
    for (const GemmPlan& plan : cuda::fitting_plans(args)) {
      if (plan.split > 1 && !of_split) continue;
      SCOPED_TRACE(
          cat("tile ", int(plan.tile), " split ", plan.split, plan.is_paired ? " paired" : ""));
      check_gemm(c,
                 [&](const CodeRows& x, std::span<const cuda::CodesPart> parts, Epilogue epilogue) {
                   cuda::hgemm_of_codes_as(stream(), cuda::check_codes(x, parts, epilogue), plan);
                 });
      if (HasFatalFailure()) return;
    }
  }
};

// Numbers of rows of x and w that leave some warpgroups without rows.
struct CudaCodesGemmOfHalves : CudaCodesGemm, testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(Halves, CudaCodesGemmOfHalves, testing::Values(DType::F16, DType::BF16),
                         testing::PrintToStringParamName());

TEST_P(CudaCodesGemmOfHalves, EveryEpilogueInEveryTile) {
  for (const GemmCase& c :
       with_code_epilogues({.dtype = GetParam(), .m = 130, .k = 528, .n = {264}})) {
    check_all_plans(c);
    if (HasFatalFailure()) return;
  }
}

// Rows of out that are not 16-byte aligned; k of less than one K step and of several.
TEST_F(CudaCodesGemm, OddShapes) {
  for (const GemmCase& c : with_code_epilogues({.m = 67, .k = 272, .n = {131}})) {
    check_all_plans(c);
    if (HasFatalFailure()) return;
  }
  for (const int64_t k : {16, 112, 128, 144}) check_all_plans({.m = 65, .k = k, .n = {72}});
}

// Few tiles, but more than an emulated card runs blocks.
TEST_F(CudaCodesGemm, TilesInTurn) {
  for (const GemmCase& c : with_code_epilogues({.m = 300, .k = 272, .n = {584}})) {
    if (c.has_bias) continue;
    check_all_plans(c, /*of_split=*/false);
    if (HasFatalFailure()) return;
  }
}

// One row of x and one row of w have a scale that is not finite: only their results are not finite.
TEST_F(CudaCodesGemm, WhatIsNotFiniteStaysSo) {
  constexpr int64_t kBadRow = 66, kBadColumn = 131;
  for (const GemmCase& c : with_code_epilogues({.m = 130, .k = 272, .n = {264}})) {
    SCOPED_TRACE(cat(c));
    Tensors t(c);
    // GELU of minus infinity is 0.
    const bool has_gelu = c.epilogue == Epilogue::GeGluErf || c.epilogue == Epilogue::GeGluTanh;
    const float bad_of_w = has_gelu ? NAN : INFINITY;
    for (const auto& [scales, at, bad] : {std::tuple(&t.x_device.second, kBadRow, NAN),
                                          {&t.w_device[0].second, kBadColumn, bad_of_w}}) {
      HostTensor changed = to_host(*scales);
      changed.as<float>()[at] = bad;
      *scales = to_device(changed);
    }
    cuda::multiply_codes(stream(), Tensors::rows_of(t.x_device), t.parts(), c.epilogue);
    const HostTensor out = to_host(t.out_device[0]);
    const int64_t n = c.n[0];
    for (int64_t i = 0; i < c.m * n; ++i) {
      const bool is_bad = i / n == kBadRow || i % n == kBadColumn;
      ASSERT_EQ(std::isfinite(out.at(n + i)), !is_bad) << "row " << i / n << ", column " << i % n;
    }
  }
}

// More tiles than blocks; one case has q, k and v as parts.
TEST_F(CudaCodesGemm, SumsLeaveUnderTheNextTile) {
  const GemmCase base{.m = 72, .k = 784, .n = {20000, 40, 14000}};
  GemmCase sums = base, added = base, gated = base;
  sums.out_is_f32 = added.out_is_f32 = true;
  added.epilogue = Epilogue::Accumulate;
  gated.epilogue = Epilogue::SwiGlu;
  gated.n = {34000, 34000};
  for (const GemmCase& c : {base, sums, added, gated}) {
    check_all_plans(c, /*of_split=*/false);
    if (HasFatalFailure()) return;
  }
}

// As prefill calls it.
TEST_F(CudaCodesGemm, SizesOfModels) {
  const auto as_chosen = [](const CodeRows& x, std::span<const cuda::CodesPart> parts,
                            Epilogue epilogue) {
    cuda::multiply_codes(stream(), x, parts, epilogue);
  };
  for (const int64_t m : {9, 300, 512, 2048}) {
    check_gemm({.m = m, .k = 4096, .n = {4096, 1024, 1024}}, as_chosen);
    check_gemm({.m = m, .k = 4096, .n = {11008, 11008}, .epilogue = Epilogue::SwiGlu}, as_chosen);
    check_gemm(
        {.m = m, .k = 11008, .n = {4096}, .epilogue = Epilogue::Accumulate, .out_is_f32 = true},
        as_chosen);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace minfer::test
