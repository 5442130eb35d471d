#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <functional>
#include <set>

#include "kernels/base/math.h"
#include "tests/support/cuda_tensors.h"
#include "tests/support/float64_ops.h"

namespace minfer::test {
namespace {

using cuda::Epilogue;
using cuda::GemmArgs;
using cuda::GemmPlan;
using cuda::GemmTile;

constexpr GemmTile kTiles[] = {GemmTile::k64x128, GemmTile::k128x128, GemmTile::k128x192,
                               GemmTile::k128x256};

// Uniform in (-scale, scale), much faster than normal numbers.
HostTensor random_uniform(uint64_t seed, const Shape& shape, DType dtype, float scale) {
  HostTensor tensor(dtype, shape);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  visit_float(dtype, [&]<typename T>() {
    T* const data = tensor.as<T>();
    for (int64_t i = 0; i < shape.n_elements(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      data[i] = from_f32<T>((float(state >> 40) * 0x1p-23f - 1) * scale);
    }
  });
  return tensor;
}

struct Case {
  DType dtype = DType::F16;
  int64_t m = 1, k = 8;
  std::vector<int64_t> n = {8};  // of each part
  Epilogue epilogue = Epilogue::Store;
  bool out_is_f32 = false;
  bool has_bias = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.dtype << " m " << c.m << " k " << c.k << " n";
  for (int64_t n : c.n) out << ' ' << n;
  return out << " epilogue " << int(c.epilogue) << (c.out_is_f32 ? " f32" : "")
             << (c.has_bias ? " bias" : "");
}

using Launcher = std::function<void(Tensor x, std::span<const cuda::GemmPart>, Epilogue)>;

// Inputs on both sides; outs with a row of NaN in front and behind.
struct Tensors {
  explicit Tensors(const Case& c) : c(c) {
    x = random_uniform(1, {c.m, c.k}, c.dtype, 1.7f);
    x_device = to_device(x);
    const DType out_dtype = c.out_is_f32 ? DType::F32 : c.dtype;
    for (size_t i = 0; i < c.n.size(); ++i) {
      const int64_t n = c.n[i];
      w.push_back(random_uniform(2 + i, {n, c.k}, c.dtype, 1.7f / std::sqrt(float(c.k))));
      bias.push_back(random_uniform(12 + i, {n}, c.dtype, 1));
      HostTensor out(out_dtype, {c.m + 2, n});
      std::memset(out.view().data, 0xFF, size_t(out.view().n_bytes()));
      if (c.epilogue == Epilogue::Accumulate) {
        const HostTensor before = random_uniform(22 + i, {c.m, n}, DType::F32, 3);
        std::memcpy(out.view().rows(1, c.m).data, before.view().data,
                    size_t(before.view().n_bytes()));
      }
      w_device.push_back(to_device(w[i]));
      bias_device.push_back(to_device(bias[i]));
      out_device.push_back(to_device(out));
      before.push_back(std::move(out));
    }
  }

  std::vector<cuda::GemmPart> parts() const {
    std::vector<cuda::GemmPart> parts;
    for (size_t i = 0; i < c.n.size(); ++i) {
      parts.push_back({w_device[i], out_device[i].view().rows(1, c.m),
                       c.has_bias ? bias_device[i].view() : Tensor{}});
    }
    return parts;
  }

  const Case& c;
  HostTensor x;
  std::vector<HostTensor> w, bias, before;
  DeviceTensor x_device;
  std::vector<DeviceTensor> w_device, bias_device, out_device;
};

struct Sum {
  double value, error;
};

// x[row] w[column] + bias in float64, and how far f32 sums on tensor cores may be off. An
// instruction adds 16 products and the sum so far, each of them cut to 24 bits of the largest: 17
// errors of 2^-23 of the largest partial sum, of which there are k / 16. Parts of k summed apart
// have partial sums up to twice as large. A bias adds one rounding.
Sum exact_sum(const Tensors& t, size_t part, int64_t row, int64_t column) {
  return visit_float(t.c.dtype, [&]<typename T>() {
    const T* const a = t.x.as<const T>() + row * t.c.k;
    const T* const b = t.w[part].as<const T>() + column * t.c.k;
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < t.c.k; ++i) {
      const double product = double(to_f32(a[i])) * double(to_f32(b[i]));
      sum += product;
      largest = std::max({largest, std::abs(sum), std::abs(product)});
    }
    double error = (double(t.c.k) / 16 + 1) * 17 * 0x1p-23 * 2 * largest;
    if (t.c.has_bias) {
      sum += double(t.bias[part].at(column));
      error += kU * std::abs(sum);
    }
    return Sum{sum, error};
  });
}

// The slopes of gelu and silu stay below 1.13; their own error below 2^-19 (activations.cuh).
Sum expected(const Tensors& t, size_t part, int64_t row, int64_t column) {
  const Sum sum = exact_sum(t, part, row, column);
  double value = sum.value, error = sum.error;
  switch (t.c.epilogue) {
    case Epilogue::Store:
      break;
    case Epilogue::Accumulate:
      value += double(t.before[part].at((row + 1) * t.c.n[part] + column));
      break;
    case Epilogue::SwiGlu: {
      const Sum up = exact_sum(t, 1, row, column);
      const double gate = float64::silu(sum.value);
      value = gate * up.value;
      error = 1.13 * sum.error * (std::abs(up.value) + up.error) + std::abs(gate) * up.error +
              0x1p-19 * std::abs(value);
      break;
    }
    case Epilogue::GeluErf:
    case Epilogue::GeluTanh:
      value = float64::gelu(sum.value,
                            t.c.epilogue == Epilogue::GeluErf ? GeluKind::Erf : GeluKind::Tanh);
      error = 1.13 * sum.error + 0x1p-19 * std::abs(value);
      break;
  }
  const DType out_dtype = t.c.out_is_f32 ? DType::F32 : t.c.dtype;
  const double smallest = out_dtype == DType::F16 ? 0x1p-24 : kSmallestNormal;
  error += unit_roundoff(out_dtype) * (std::abs(value) + error) + smallest;
  return {value, error};
}

// All of them where that is cheap; else the first, the last and those beside edges of tiles.
std::vector<int64_t> sampled(int64_t size, bool all) {
  std::set<int64_t> picked;
  if (all) {
    for (int64_t i = 0; i < size; ++i) picked.insert(i);
  } else {
    for (int64_t i : {0, 1, 8, 31, 32, 63, 64, 127, 128, 191, 192, 255, 256}) picked.insert(i);
    for (int64_t i = 1; i < 9; ++i) picked.insert(i * 2654435761 % size);
    for (int64_t i = 1; i <= 3; ++i) picked.insert(size - i);
  }
  std::erase_if(picked, [&](int64_t i) { return i < 0 || i >= size; });
  return {picked.begin(), picked.end()};
}

void compare(const Tensors& t) {
  const Case& c = t.c;
  const size_t n_outs = c.epilogue == Epilogue::SwiGlu ? 1 : c.n.size();
  for (size_t part = 0; part < c.n.size(); ++part) {
    const HostTensor out = to_host(t.out_device[part]);
    const int64_t n = c.n[part];
    const auto bytes = [&](const HostTensor& tensor, int64_t row) {
      return tensor.view().rows(row, 1).data;
    };
    const size_t row_bytes = size_t(out.view().rows(0, 1).n_bytes());
    for (int64_t row : {int64_t{0}, c.m + 1}) {
      ASSERT_EQ(std::memcmp(bytes(out, row), bytes(t.before[part], row), row_bytes), 0)
          << "written " << (row == 0 ? "in front of" : "behind") << " out of part " << part;
    }
    if (part >= n_outs) {
      ASSERT_EQ(
          std::memcmp(out.view().data, t.before[part].view().data, size_t(out.view().n_bytes())),
          0);
      continue;
    }
    visit_float(out.view().dtype, [&]<typename T>() {
      const T* const values = out.as<const T>() + n;
      for (int64_t i = 0; i < c.m * n; ++i) {
        ASSERT_TRUE(std::isfinite(to_f32(values[i])))
            << "part " << part << ", row " << i / n << ", column " << i % n;
      }
    });
    const bool all = double(c.m) * double(n) * double(c.k) < 2e6;
    for (int64_t row : sampled(c.m, all)) {
      for (int64_t column : sampled(n, all)) {
        const Sum want = expected(t, part, row, column);
        ASSERT_NEAR(double(out.at((row + 1) * n + column)), want.value, want.error)
            << "part " << part << ", row " << row << ", column " << column;
      }
    }
  }
}

void check(const Case& c, const Launcher& launcher) {
  SCOPED_TRACE(cat(c));
  const Tensors t(c);
  launcher(t.x_device, t.parts(), c.epilogue);
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  compare(t);
}

// The case with every epilogue.
std::vector<Case> with_epilogues(const Case& c) {
  std::vector<Case> cases;
  for (bool has_bias : {false, true}) {
    Case variant = c;
    variant.has_bias = has_bias;
    cases.push_back(variant);
    for (Epilogue epilogue : {Epilogue::GeluErf, Epilogue::GeluTanh}) {
      variant.epilogue = epilogue;
      cases.push_back(variant);
    }
    variant.out_is_f32 = true;
    for (Epilogue epilogue : {Epilogue::Store, Epilogue::Accumulate}) {
      variant.epilogue = epilogue;
      cases.push_back(variant);
    }
    variant.out_is_f32 = false;
    variant.epilogue = Epilogue::SwiGlu;
    variant.n = {c.n[0], c.n[0]};
    cases.push_back(variant);
  }
  return cases;
}

class CudaGemm : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CUDA();
    stream_ = cuda::make_stream();
  }
  Launcher gemm() {
    return [this](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      cuda::gemm(stream_.get(), x, parts, epilogue);
    };
  }
  Launcher gemm_mma() {
    return [this](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      cuda::gemm_mma(stream_.get(), cuda::check_gemm(x, parts, epilogue));
    };
  }
  Launcher hgemm_as(const GemmPlan& plan) {
    return [this, plan](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      const GemmArgs args = cuda::check_gemm(x, parts, epilogue);
      ASSERT_TRUE(cuda::hgemm_takes(args));
      cuda::hgemm_as(stream_.get(), args, plan);
    };
  }
  // Every way that the case can be cut on this card; none where hgemm does not run.
  std::vector<GemmPlan> plans(const Case& c) {
    std::vector<GemmPlan> plans;
    if (!has_wgmma()) return plans;
    for (GemmTile tile : kTiles) {
      if (c.epilogue == Epilogue::SwiGlu && tile == GemmTile::k128x192) continue;
      for (int split : {1, 2, 4}) {
        if (ceil_div(c.k, 64) >= split) plans.push_back({tile, split});
      }
    }
    return plans;
  }
  void check_all_plans(const Case& c) {
    for (const GemmPlan& plan : plans(c)) {
      SCOPED_TRACE(cat("tile ", int(plan.tile), " split ", plan.split));
      check(c, hgemm_as(plan));
      if (HasFatalFailure()) return;
    }
  }
  static bool has_wgmma() {
    GemmArgs args;
    args.k = 8;
    return cuda::hgemm_takes(args);
  }

  cuda::Stream stream_;
};

TEST_F(CudaGemm, EveryEpilogueInEveryTile) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    for (const Case& c : with_epilogues({.dtype = dtype, .m = 130, .k = 264, .n = {264}})) {
      check_all_plans(c);
      check(c, gemm_mma());
      if (HasFatalFailure()) return;
    }
  }
}

// Rows of out that are no whole 16 bytes cannot be stored by box.
TEST_F(CudaGemm, OddRowsOfOut) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    for (const Case& c : with_epilogues({.dtype = dtype, .m = 67, .k = 136, .n = {131}})) {
      check_all_plans(c);
      check(c, gemm_mma());
      if (HasFatalFailure()) return;
    }
  }
}

// Fewer steps than the ring has stages, as many, one more, several rounds; k not whole steps.
TEST_F(CudaGemm, EveryLengthOfK) {
  for (int64_t k = 8; k <= 64 * 20; k += k < 200 ? 8 : 56) {
    const Case c{.m = 65, .k = k, .n = {72}, .out_is_f32 = k % 16 == 0};
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaGemm, MoreTilesThanBlocks) {
  for (const Case& c : with_epilogues({.m = 2000, .k = 200, .n = {4104}})) {
    if (c.has_bias) continue;
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaGemm, PartsInOneLaunch) {
  for (bool out_is_f32 : {false, true}) {
    for (const std::vector<int64_t>& n :
         {std::vector<int64_t>{576, 192, 192}, {8, 264, 16}, {64, 33, 1}, {1000, 1000}}) {
      const Case c{.dtype = DType::BF16,
                   .m = 300,
                   .k = 576,
                   .n = n,
                   .out_is_f32 = out_is_f32,
                   .has_bias = true};
      check_all_plans(c);
      check(c, gemm());
      check(c, gemm_mma());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaGemm, SmallAndOddShapes) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    for (int64_t m : {1, 9, 33, 129}) {
      for (int64_t k : {1, 7, 8, 33, 577}) {
        for (int64_t n : {1, 9, 65, 129}) {
          check({.dtype = dtype, .m = m, .k = k, .n = {n}}, gemm());
          if (HasFatalFailure()) return;
        }
      }
    }
    for (const Case& c : with_epilogues({.dtype = dtype, .m = 130, .k = 99, .n = {131}})) {
      check(c, gemm());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaGemm, SizesOfModels) {
  check({.m = 16, .k = 4096, .n = {11008, 11008}, .epilogue = Epilogue::SwiGlu}, gemm());
  check({.m = 100, .k = 11008, .n = {4096}, .epilogue = Epilogue::Accumulate, .out_is_f32 = true},
        gemm());
  check({.m = 512, .k = 4096, .n = {4096, 4096, 4096}}, gemm());
  check(
      {.dtype = DType::BF16, .m = 1000, .k = 576, .n = {1536, 1536}, .epilogue = Epilogue::SwiGlu},
      gemm());
  check({.m = 300, .k = 1536, .n = {49152}, .out_is_f32 = true}, gemm());
  check({.m = 260, .k = 4096, .n = {4096}, .has_bias = true}, gemm_mma());
}

// Without a split every sum runs over k in the same order: row t does not depend on the tile, nor
// on how many rows there are.
TEST_F(CudaGemm, SameBitsInEveryTileAndForAnyNumberOfRows) {
  if (!has_wgmma()) GTEST_SKIP() << "no wgmma in this binary or on this card";
  const Case whole{.m = 300, .k = 1000, .n = {520}};
  const Tensors t(whole);
  std::vector<HostTensor> results;
  for (GemmTile tile : kTiles) {
    for (int64_t m : {300, 40}) {
      MINFER_CUDA_CHECK(cudaMemset(t.out_device[0].view().data, 0xFF, 302 * 520 * 2));
      auto parts = t.parts();
      parts[0].out = parts[0].out.rows(0, m);
      const GemmArgs args = cuda::check_gemm(t.x_device.view().rows(0, m), parts, Epilogue::Store);
      cuda::hgemm_as(stream_.get(), args, {tile, 1});
      results.push_back(to_host(t.parts()[0].out.rows(0, 40)));
      EXPECT_EQ(std::memcmp(results.back().view().data, results[0].view().data, 40 * 520 * 2), 0)
          << "tile " << int(tile) << ", m " << m;
    }
  }
}

TEST_F(CudaGemm, SameBitsEveryTime) {
  const Case c{
      .m = 96, .k = 4096, .n = {1024}, .epilogue = Epilogue::Accumulate, .out_is_f32 = true};
  const Tensors t(c);
  const auto n_bytes = size_t(t.before[0].view().n_bytes());
  HostTensor first;
  for (int i = 0; i < 5; ++i) {
    MINFER_CUDA_CHECK(cudaMemcpy(t.out_device[0].view().data, t.before[0].view().data, n_bytes,
                                 cudaMemcpyHostToDevice));
    gemm()(t.x_device, t.parts(), c.epilogue);
    HostTensor out = to_host(t.out_device[0]);
    if (i == 0) {
      first = std::move(out);
    } else {
      EXPECT_EQ(std::memcmp(out.view().data, first.view().data, n_bytes), 0);
    }
  }
}

// Three in a row that depend on each other, each of which may begin while the one before it runs.
TEST_F(CudaGemm, ReplaysInAGraph) {
  const Case c{.m = 70, .k = 512, .n = {512}};
  const Tensors t(c), fresh(c);
  const DeviceTensor middle = poisoned_device(c.dtype, {c.m, c.k});
  const auto run = [&] {
    cuda::GemmPart to_middle{t.w_device[0], middle, {}};
    cuda::gemm(stream_.get(), t.x_device, {&to_middle, 1}, Epilogue::Store);
    cuda::GemmPart to_out{t.w_device[0], t.parts()[0].out, {}};
    cuda::gemm(stream_.get(), middle, {&to_out, 1}, Epilogue::Store);
    cuda::gemm(stream_.get(), t.parts()[0].out, {&to_middle, 1}, Epilogue::Store);
  };
  run();
  const HostTensor want = to_host(middle);
  const cuda::GraphExec graph = cuda::capture_graph(stream_.get(), run);
  for (int i = 0; i < 3; ++i) {
    MINFER_CUDA_CHECK(cudaMemset(middle.view().data, 0xFF, size_t(middle.view().n_bytes())));
    MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get()));
    const HostTensor out = to_host(middle);
    EXPECT_EQ(std::memcmp(out.view().data, want.view().data, size_t(want.view().n_bytes())), 0);
  }
}

TEST_F(CudaGemm, RefusesWhatDoesNotFit) {
  const Case c{.m = 16, .k = 64, .n = {64, 64}};
  const Tensors t(c);
  const auto refused = [&](std::vector<cuda::GemmPart> parts, Epilogue epilogue) {
    EXPECT_THROW(cuda::gemm(stream_.get(), t.x_device, parts, epilogue), Error);
  };
  refused({}, Epilogue::Store);
  refused(t.parts(), Epilogue::Accumulate);   // out is half
  refused({t.parts()[0]}, Epilogue::SwiGlu);  // one part
  auto parts = t.parts();
  parts[1].out = parts[1].out.rows(0, 15);
  refused(parts, Epilogue::Store);
  parts = t.parts();
  parts[0].w.dtype = DType::BF16;
  refused(parts, Epilogue::Store);
  parts = t.parts();
  parts[0].w.shape = {32, 128};
  refused(parts, Epilogue::Store);
}

// Needs no card.
TEST(GemmPlan, FollowsTheShape) {
  const cuda::GemmCard card{.blocks = 132, .clusters_of_2 = 66, .clusters_of_4 = 32};
  const auto plan = [&](int m, int n, int k) {
    GemmArgs args;
    args.m = m;
    args.k = k;
    args.n_parts = 1;
    args.part[0].n = n;
    return cuda::plan_gemm(args, card);
  };
  for (int m : {2048, 4096}) {
    for (auto [n, k] : {std::pair{12288, 4096}, {4096, 4096}, {22016, 4096}, {4096, 11008}}) {
      EXPECT_EQ(plan(m, n, k).tile, GemmTile::k128x256) << m << ' ' << n << ' ' << k;
      EXPECT_EQ(plan(m, n, k).split, 1);
    }
  }
  EXPECT_EQ(plan(512, 12288, 4096).tile, GemmTile::k128x192);
  EXPECT_EQ(plan(512, 4096, 4096).tile, GemmTile::k128x128);
  EXPECT_EQ(plan(512, 4096, 11008).tile, GemmTile::k128x128);
  EXPECT_EQ(plan(512, 22016, 4096).tile, GemmTile::k128x256);
  EXPECT_EQ(plan(16, 12288, 4096).tile, GemmTile::k64x128);
  EXPECT_EQ(plan(16, 4096, 4096).split, 4);
  EXPECT_EQ(plan(16, 64, 64).split, 1);
}

}  // namespace
}  // namespace minfer::test
