#include "tests/kernels/cuda/weights.h"

namespace minfer::test {
namespace {

using cuda::DequantizePart;

// Rows [begin, begin + n) of a matrix.
struct Rows {
  const Weights* w;
  int64_t begin, n;
};

// All values, in f32.
HostTensor values_of(const Weights& w) {
  const int64_t out_dim = w.matrix.out_dim, in_dim = w.matrix.in_dim;
  HostTensor f32(DType::F32, {out_dim, in_dim});
  for (int64_t row = 0; row < out_dim; ++row) {
    float* const to = f32.as<float>() + row * in_dim;
    if (w.format.group != 0) {
      dequantize_row(to, w.quantized.view(), row);
    } else {
      for (int64_t i = 0; i < in_dim; ++i) to[i] = w.floats.at(row * in_dim + i);
    }
  }
  return f32;
}

// Expects exactly the f32 values rounded to `half`, and no element changed outside the rows. Rows
// of out begin `offset` elements after a 16-byte boundary.
void expect_rows(DType half, const std::vector<Rows>& all, int64_t offset = 0) {
  constexpr int64_t kGuard = 8;
  std::vector<DeviceTensor> outs;
  std::vector<DequantizePart> parts;
  for (const auto& [w, begin, n] : all) {
    const int64_t in_dim = w->matrix.in_dim;
    outs.push_back(poisoned_device(half, {2 * kGuard + n * in_dim}));
    auto* const first = static_cast<uint16_t*>(outs.back().view().data) + kGuard + offset;
    parts.push_back({&w->matrix, {first, half, {n, in_dim}}, begin});
  }
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  cuda::dequantize_rows(stream(), parts);
  for (size_t part = 0; part < all.size(); ++part) {
    const auto& [w, begin, n] = all[part];
    const int64_t in_dim = w->matrix.in_dim, first = kGuard + offset;
    const HostTensor f32 = values_of(*w), got = to_host(outs[part]);
    for (int64_t i = 0; i < got.view().n_elements(); ++i) {
      const int64_t at = i - first;
      if (at < 0 || at >= n * in_dim) {
        ASSERT_TRUE(std::isnan(got.at(i))) << w->format << ", " << at << " of " << n * in_dim;
      } else {
        ASSERT_EQ(double(got.at(i)), rounded(double(f32.at(begin * in_dim + at)), half))
            << w->format << ", part " << part << ", row " << begin + at / in_dim << " of ["
            << w->matrix.out_dim << ", " << in_dim << "], column " << at % in_dim;
      }
    }
  }
}

// Expects the rows of the table with these ids.
void expect_gathered(const Weights& w, const std::vector<int32_t>& ids) {
  const int64_t in_dim = w.matrix.in_dim, n = std::ssize(ids);
  const DeviceTensor device_ids = cuda::allocate_device(DType::F32, {n});
  MINFER_CUDA_CHECK(
      cudaMemcpy(device_ids.view().data, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
  const DeviceTensor out = poisoned_device(DType::F32, {n, in_dim});
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  cuda::gather_rows(stream(), out, w.matrix, static_cast<const int32_t*>(device_ids.view().data));
  const HostTensor f32 = values_of(w), got = to_host(out);
  for (int64_t i = 0; i < n * in_dim; ++i) {
    ASSERT_EQ(got.at(i), f32.at(ids[size_t(i / in_dim)] * in_dim + i % in_dim)) << w.format;
  }
}

class CudaDequantize : public testing::TestWithParam<DType> {};

// Row lengths: less than a tile, one tile, one chunk of either type, and one column more than each;
// multiples of 16 bytes and others. Group sizes: less than a tile, more than a chunk, and 3 * 2^n
// columns.
TEST_P(CudaDequantize, EveryFormatAndWidth) {
  MINFER_NEEDS_CUDA();
  for (const int64_t in_dim : {2, 63, 64, 72, 96, 128, 136, 170, 256, 264, 576, 1536}) {
    for (const DType codes : {DType::U4, DType::U8}) {
      if (codes == DType::U4 && in_dim % 2 != 0) continue;  // rows of codes are whole bytes
      for (const DType scales : {DType::F16, DType::F32}) {
        for (const bool mins : {false, true}) {
          for (const int64_t group : {int64_t{16}, int64_t{32}, int64_t{64}, int64_t{96},
                                      int64_t{128}, int64_t{512}, kRow}) {
            if (group != kRow && (in_dim % group != 0 || in_dim == group)) continue;
            const Weights w(of_group(codes, scales, mins, group), 83, in_dim, 1);
            expect_rows(GetParam(), {{&w, 0, 83}});
            expect_rows(GetParam(), {{&w, 7, 20}});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(CudaDequantize, EveryTable) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : kTableFormats) {
    for (const int64_t in_dim : {64, 96, 256, 1536}) {
      const Weights w(format, 83, in_dim, 1);
      expect_rows(GetParam(), {{&w, 0, 83}});
      expect_rows(GetParam(), {{&w, 7, 20}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaDequantize, EveryTypeOfProducts) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : product_formats()) {
    for (const int64_t in_dim : {256, 768}) {
      const Weights w(format, 83, in_dim, 1);
      expect_rows(GetParam(), {{&w, 0, 83}});
      expect_rows(GetParam(), {{&w, 7, 20}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaDequantize, RangesOfRows) {
  MINFER_NEEDS_CUDA();
  for (const DType codes : {DType::U4, DType::U8}) {
    const Weights w(of_group(codes, DType::F16, true, 32), 83, 288, 1);
    for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, 1},
                                   {0, 16},
                                   {16, 32},
                                   {15, 2},
                                   {31, 1},
                                   {82, 1},
                                   {64, 19},
                                   {5, 0}}) {
      expect_rows(GetParam(), {{&w, begin, n}});
      expect_rows(GetParam(), {{&w, begin, n}}, 1);  // no row is 16-byte aligned
      if (HasFatalFailure()) return;
    }
  }
}

// One call for matrices of several widths, formats and sizes.
TEST_P(CudaDequantize, Parts) {
  MINFER_NEEDS_CUDA();
  const Weights a(of_group(DType::U4, DType::F16, false, 64), 50, 512, 1);
  const Weights b(of_group(DType::U4, DType::F32, true, 32), 20, 1536, 2);
  const Weights c(of_group(DType::U8, DType::F16, false, kRow), 70, 512, 3);
  const Weights d(of_group(DType::U8, DType::F32, true, 16), 33, 96, 4);
  const Weights floats(Format{DType::F32}, 9, 301, 5);
  expect_rows(GetParam(), {{&a, 0, 50}, {&b, 0, 20}, {&a, 16, 34}});
  expect_rows(GetParam(), {{&a, 0, 50}, {&c, 0, 70}, {&b, 3, 17}});
  expect_rows(GetParam(), {{&c, 0, 70}, {&d, 0, 33}});
  expect_rows(GetParam(), {{&d, 4, 0}, {&floats, 0, 9}, {&d, 0, 33}});
}

TEST_P(CudaDequantize, LlamaMatrices) {
  MINFER_NEEDS_CUDA();
  for (const Format& format :
       {of_group(DType::U8, DType::F16, false, kRow), of_group(DType::U4, DType::F16, false, 64)}) {
    const Weights gate(format, 1376, 4096, 1), down(format, 512, 11008, 2);
    expect_rows(GetParam(), {{&gate, 0, 1376}, {&down, 0, 512}});
  }
}

TEST_P(CudaDequantize, Floats) {
  MINFER_NEEDS_CUDA();
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const Weights w(Format{dtype}, 40, 301, 1);
    expect_rows(GetParam(), {{&w, 30, 9}});
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, CudaDequantize, testing::Values(DType::F16, DType::BF16),
                         testing::PrintToStringParamName());

TEST(CudaGather, RowsOfEveryType) {
  MINFER_NEEDS_CUDA();
  const std::vector<int32_t> ids{82, 0, 16, 5, 47};
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const int64_t in_dim : {300, 301, 304, 2056}) {
      expect_gathered(Weights(Format{dtype}, 83, in_dim, 1), ids);
    }
  }
  for (const int64_t in_dim : {2, 96, 100, 170, 576, 1536, 2056}) {
    for (const DType codes : {DType::U4, DType::U8}) {
      for (const bool mins : {false, true}) {
        for (const int64_t group : {int64_t{16}, int64_t{32}, int64_t{96}, int64_t{192}, kRow}) {
          if (group != kRow && in_dim % group != 0) continue;
          const DType scales = mins ? DType::F32 : DType::F16;
          Weights w(of_group(codes, scales, mins, group), 83, in_dim, 1);
          expect_gathered(w, ids);
          w.lay_by_rows();
          expect_gathered(w, ids);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(CudaGather, RowsOfTables) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : kTableFormats) {
    Weights w(format, 83, 96, 1);
    expect_gathered(w, {82, 0, 16, 5, 47});
    w.lay_by_rows();
    expect_gathered(w, {82, 0, 16, 5, 47});
  }
}

TEST(CudaGather, RowsOfProducts) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : product_formats()) {
    expect_gathered(Weights(format, 83, 512, 1), {82, 0, 16, 5, 47});
  }
}

}  // namespace
}  // namespace minfer::test
