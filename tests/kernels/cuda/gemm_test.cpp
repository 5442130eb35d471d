#include "tests/kernels/cuda/gemm_cases.h"

namespace minfer::test {
namespace {

using cuda::GemmArgs;
using cuda::GemmPlan;
using cuda::GemmTile;

class CudaGemm : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CUDA();
    stream_ = cuda::make_stream();
  }
  GemmLauncher gemm() {
    return [this](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      cuda::gemm(stream_.get(), x, parts, epilogue);
    };
  }
  GemmLauncher gemm_mma() {
    return [this](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      cuda::gemm_mma(stream_.get(), cuda::check_gemm(x, parts, epilogue));
    };
  }
  GemmLauncher hgemm_as(const GemmPlan& plan) {
    return [this, plan](Tensor x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
      const GemmArgs args = cuda::check_gemm(x, parts, epilogue);
      ASSERT_TRUE(cuda::hgemm_takes(args));
      cuda::hgemm_as(stream_.get(), args, plan);
    };
  }
  // Every plan that fits the case on this card; none if hgemm cannot run.
  std::vector<GemmPlan> plans(const GemmCase& c) {
    if (!has_wgmma()) return {};
    GemmArgs args;
    args.k = narrow<int>(c.k);
    args.epilogue = c.epilogue;
    return cuda::fitting_plans(args);
  }
  void check_all_plans(const GemmCase& c) {
    for (const GemmPlan& plan : plans(c)) {
      SCOPED_TRACE(name(plan));
      check(c, hgemm_as(plan));
      if (HasFatalFailure()) return;
    }
  }
  static std::string name(const GemmPlan& plan) {
    return cat("tile ", int(plan.tile), " split ", plan.split, plan.is_paired ? " paired" : "");
  }
  static bool has_wgmma() {
    GemmArgs args;
    args.k = 8;
    return cuda::hgemm_takes(args);
  }

  cuda::Stream stream_;
};

struct CudaGemmOfHalves : CudaGemm, testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(Halves, CudaGemmOfHalves, testing::Values(DType::F16, DType::BF16),
                         testing::PrintToStringParamName());

TEST_P(CudaGemmOfHalves, EveryEpilogueInEveryTile) {
  for (const GemmCase& c : with_epilogues({.dtype = GetParam(), .m = 130, .k = 264, .n = {264}})) {
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

// TMA cannot store rows of out that are not 16-byte aligned.
TEST_P(CudaGemmOfHalves, OddRowsOfOut) {
  for (const GemmCase& c : with_epilogues({.dtype = GetParam(), .m = 67, .k = 136, .n = {131}})) {
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

// Fewer K steps than the ring has stages, as many, one more, and several rounds; k that is not a
// multiple of a K step.
TEST_F(CudaGemm, EveryLengthOfK) {
  for (int64_t k = 8; k <= 64 * 20; k += k < 200 ? 8 : 56) {
    const GemmCase c{.m = 65, .k = k, .n = {72}, .out_is_f32 = k % 16 == 0};
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

// Few rows of x and more tiles than blocks: results that a tile holds in registers are stored
// during the K loop of the next tile.
TEST_F(CudaGemm, SumsLeaveUnderTheNextTile) {
  if (!has_wgmma()) GTEST_SKIP() << "no wgmma in this binary or on this card";
  const int64_t n = cuda::use_device(0).n_sms * 256 + 208;
  const GemmCase base{.m = 72, .k = 392, .n = {n}};
  GemmCase sums = base, added = base, gated = base, parts = base;
  parts.n = {n - 1040, 40, 1000};
  sums.out_is_f32 = added.out_is_f32 = true;
  added.epilogue = Epilogue::Accumulate;
  gated.epilogue = Epilogue::SwiGlu;
  gated.n = {n, n};
  GemmCase sums_of_parts = parts;
  sums_of_parts.out_is_f32 = true;
  for (const GemmCase& c : {base, sums, added, gated, parts, sums_of_parts}) {
    for (const GemmPlan& plan : plans(c)) {
      const bool is_tall = plan.tile == GemmTile::k256x192;
      if ((plan.tile != GemmTile::k128x256 && !is_tall) || plan.split > 1) continue;
      SCOPED_TRACE(name(plan));
      check(c, hgemm_as(plan));
      if (HasFatalFailure()) return;
    }
  }
}

// An emulated card runs few blocks, so that each takes several tiles.
TEST_F(CudaGemm, TransposedTilesInTurn) {
  for (const GemmCase& c : with_epilogues({.m = 300, .k = 136, .n = {584}})) {
    if (c.has_bias) continue;
    for (const GemmPlan& plan : plans(c)) {
      if (plan.tile < GemmTile::k104x256) continue;
      SCOPED_TRACE(name(plan));
      check(c, hgemm_as(plan));
      if (HasFatalFailure()) return;
    }
  }
}

// With 1800 rows, a warpgroup has no rows in the last row tile, in tiles of 128 and of 256 rows.
// The number of row tiles is odd with 1800 rows in tiles of 128 and 200, and with 1910 rows in
// tiles of 104, 128, 136 and 152: one block of the last pair then has no tile.
TEST_F(CudaGemm, MoreTilesThanBlocks) {
  // With k of one K step, and with rows of out that are not 16-byte aligned, tiles are stored at
  // their end; in the other cases, some plans store them during the K loop of the next tile.
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{2200, 4104, 200},
                                {1800, 4101, 72},
                                {1910, 2056, 456},
                                {2200, 4104, 56}}) {
    for (const GemmCase& c : with_epilogues({.m = m, .k = k, .n = {n}})) {
      if (c.has_bias) continue;
      check_all_plans(c);
      check(c, gemm_mma());
      if (HasFatalFailure()) return;
    }
  }
}

// More row tiles than a band has (place_of), except in transposed tiles of 136 rows and more: every
// second band runs through the columns of all parts backwards.
TEST_F(CudaGemm, SeveralBandsOfRows) {
  for (const GemmCase& c :
       {GemmCase{.m = 2100, .k = 72, .n = {264, 40}},
        GemmCase{.m = 2100, .k = 72, .n = {200, 200}, .epilogue = Epilogue::SwiGlu}}) {
    check_all_plans(c);
    check(c, gemm_mma());
    if (HasFatalFailure()) return;
  }
}

// Tiles of 96 columns of out, whose last 32 are stored in boxes of their own: n just below, at and
// just above the edges of boxes, and parts that end there.
TEST_F(CudaGemm, EdgesOfTilesOf96Columns) {
  for (int64_t n : {88, 96, 104, 160, 192, 200}) {
    check_all_plans({.m = 300, .k = 72, .n = {n}});
    check_all_plans({.m = 300, .k = 72, .n = {n, n}, .epilogue = Epilogue::SwiGlu});
    check_all_plans({.m = 300, .k = 72, .n = {n, 96, n}, .out_is_f32 = true});
    if (HasFatalFailure()) return;
  }
}

// Tiles of 88 and 112 columns of out, whose last box of 64 columns overlaps the one before: n
// around these widths, around where the last box begins, and over several tiles.
TEST_F(CudaGemm, EdgesOfTilesThatOverlap) {
  for (int64_t n : {8, 24, 32, 48, 56, 88, 96, 112, 120, 176, 184, 232, 248}) {
    for (bool has_bias : {false, true}) {
      check_all_plans(
          {.m = 150, .k = 136, .n = {n, n}, .epilogue = Epilogue::SwiGlu, .has_bias = has_bias});
      if (HasFatalFailure()) return;
    }
  }
}

// Transposed tiles: numbers of rows of x just below, at and just above whole tiles and chunks of 64
// or 48 rows of out; weights that end within the first half of a tile, at its end, within the
// second half, and within a warpgroup.
TEST_F(CudaGemm, EdgesOfTransposedTiles) {
  const std::array<int64_t, 2> shapes[] = {
      {47, 264},  {48, 256},  {49, 131},  {64, 200},  {65, 136}, {96, 64},   {97, 288},
      {103, 128}, {104, 264}, {105, 192}, {135, 256}, {136, 96}, {137, 104}, {152, 200},
      {153, 288}, {200, 131}, {201, 256}, {401, 72},  {208, 72}, {304, 72},  {400, 64}};
  for (const auto& [m, n] : shapes) {
    for (const GemmCase& c : with_epilogues({.dtype = DType::BF16, .m = m, .k = 72, .n = {n}})) {
      for (const GemmPlan& plan : plans(c)) {
        if (plan.tile < GemmTile::k104x256) continue;
        SCOPED_TRACE(name(plan));
        check(c, hgemm_as(plan));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Past the last rows of x and w, stages keep their old contents, here NaN in the whole ring of
// every SM. None of it may reach a result, and nothing may be stored past the last row or column.
TEST_F(CudaGemm, LastTilesBehindNaN) {
  if (!has_wgmma()) GTEST_SKIP() << "no wgmma in this binary or on this card";
  const DeviceTensor x = poisoned_device(DType::F16, {2048, 768});
  const DeviceTensor w = poisoned_device(DType::F16, {4096, 768});
  const DeviceTensor out = poisoned_device(DType::F16, {2048, 4096});
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  const cuda::GemmPart part{w, out, {}};
  const GemmArgs of_nan = cuda::check_gemm(x, {&part, 1}, Epilogue::Store);
  for (const auto& [m, n] :
       {std::array<int64_t, 2>{16, 8}, {65, 72}, {130, 120}, {300, 232}, {520, 200}, {9, 131}}) {
    for (const GemmCase& c : with_epilogues({.m = m, .k = 136, .n = {n}})) {
      for (const GemmPlan& plan : plans(c)) {
        SCOPED_TRACE(name(plan));
        check(c, [&](Tensor case_x, std::span<const cuda::GemmPart> parts, Epilogue epilogue) {
          cuda::hgemm_as(stream_.get(), of_nan, {GemmTile::k64x96, 1});
          hgemm_as(plan)(case_x, parts, epilogue);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaGemm, PartsInOneLaunch) {
  for (bool out_is_f32 : {false, true}) {
    for (const std::vector<int64_t>& n :
         {std::vector<int64_t>{576, 192, 192}, {8, 264, 16}, {64, 33, 1}, {1000, 1000}}) {
      const GemmCase c{.dtype = DType::BF16,
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
    for (const GemmCase& c : with_epilogues({.dtype = dtype, .m = 130, .k = 99, .n = {131}})) {
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

// Without split-K, every sum runs over k in the same order, except in the second tile of a pair. So
// a row has the same bits in every tile and for any number of rows. Pairs have no second tile with
// 120 columns, nor with 520 if a whole card runs; transposed pairs never run backwards.
TEST_F(CudaGemm, SameBitsInEveryTileAndForAnyNumberOfRows) {
  if (!has_wgmma()) GTEST_SKIP() << "no wgmma in this binary or on this card";
  for (const int64_t n : {520, 120}) {
    const GemmCase whole{.m = 300, .k = 1000, .n = {n}};
    const GemmTensors t(whole);
    const int64_t most_pairs = ceil_div(whole.m, 256) * ceil_div(n, 128);
    std::vector<HostTensor> results;
    for (const GemmPlan& plan : plans(whole)) {
      if (plan.split > 1) continue;
      if (plan.is_paired && plan.tile < GemmTile::k104x256 &&
          most_pairs > cuda::gemm_card().clusters_of_2) {
        continue;
      }
      for (int64_t m : {300, 40}) {
        MINFER_CUDA_CHECK(cudaMemset(t.out_device[0].view().data, 0xFF, size_t(302 * n * 2)));
        MINFER_CUDA_CHECK(cudaDeviceSynchronize());
        auto parts = t.parts();
        parts[0].out = parts[0].out.rows(0, m);
        const GemmArgs args =
            cuda::check_gemm(t.x_device.view().rows(0, m), parts, Epilogue::Store);
        cuda::hgemm_as(stream_.get(), args, plan);
        results.push_back(to_host(t.parts()[0].out.rows(0, 40)));
        EXPECT_EQ(
            std::memcmp(results.back().view().data, results[0].view().data, size_t(40 * n * 2)), 0)
            << name(plan) << ", m " << m << ", n " << n;
      }
    }
  }
}

TEST_F(CudaGemm, SameBitsEveryTime) {
  const GemmCase c{
      .m = 96, .k = 4096, .n = {1024}, .epilogue = Epilogue::Accumulate, .out_is_f32 = true};
  const GemmTensors t(c);
  const auto n_bytes = size_t(t.before[0].view().n_bytes());
  HostTensor first;
  for (int i = 0; i < 5; ++i) {
    MINFER_CUDA_CHECK(cudaMemcpy(t.out_device[0].view().data, t.before[0].view().data, n_bytes,
                                 cudaMemcpyHostToDevice));
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    gemm()(t.x_device, t.parts(), c.epilogue);
    HostTensor out = to_host(t.out_device[0]);
    if (i == 0) {
      first = std::move(out);
    } else {
      EXPECT_EQ(std::memcmp(out.view().data, first.view().data, n_bytes), 0);
    }
  }
}

TEST_F(CudaGemm, RefusesWhatDoesNotFit) {
  const GemmCase c{.m = 16, .k = 64, .n = {64, 64}};
  const GemmTensors t(c);
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
  const auto plan = [&](int m, int n, int k, Epilogue epilogue = Epilogue::Store) {
    GemmArgs args;
    args.m = m;
    args.k = k;
    args.epilogue = epilogue;
    args.n_parts = epilogue == Epilogue::SwiGlu ? 2 : 1;
    for (int i = 0; i < args.n_parts; ++i) args.part[i].n = n / args.n_parts;
    const GemmPlan plan = cuda::plan_gemm(args, card);
    EXPECT_TRUE(cuda::plan_fits(args, plan)) << m << " " << n << " " << k;
    return plan;
  };
  for (int m : {2048, 4096}) {  // at the power limit: in pairs
    for (const auto& [n, k] :
         {std::pair{12288, 4096}, {22016, 4096}, {4096, 4096}, {4096, 11008}}) {
      EXPECT_TRUE(plan(m, n, k).is_paired) << m << " " << n << " " << k;
    }
    EXPECT_EQ(plan(m, 12288, 4096).tile, GemmTile::k128x256) << m;
    EXPECT_EQ(plan(m, 22016, 4096, Epilogue::SwiGlu).tile, GemmTile::k256x192) << m;
    EXPECT_EQ(plan(m, 4096, 4096).tile, GemmTile::k128x256) << m;
    EXPECT_EQ(plan(m, 4096, 11008).tile, GemmTile::k128x256) << m;
    EXPECT_EQ(plan(m, 4096, 11008).split, 1) << m;
  }
  EXPECT_EQ(plan(512, 4096, 4096).tile, GemmTile::k128x128);
  EXPECT_EQ(plan(512, 4096, 11008).tile, GemmTile::k128x128);
  EXPECT_EQ(plan(512, 22016, 4096, Epilogue::SwiGlu).tile, GemmTile::k128x224);  // 3 whole waves
  EXPECT_EQ(plan(2048, 22016, 4096).tile, GemmTile::k256x192);  // 7 waves, nearly whole
  EXPECT_EQ(plan(4096, 22016, 4096).tile, GemmTile::k128x256);
  EXPECT_EQ(plan(16, 22016, 4096, Epilogue::SwiGlu).tile, GemmTile::k64x176);  // one wave
  EXPECT_EQ(plan(16, 12288, 4096).tile, GemmTile::k64x96);                     // one wave
  EXPECT_EQ(plan(512, 22016, 4096).tile, GemmTile::k128x224);                  // 3 whole waves
  EXPECT_EQ(plan(300, 12288, 4096).tile, GemmTile::k152x192);  // one wave, 2 x 152 rows
  EXPECT_EQ(plan(300, 4096, 4096).tile, GemmTile::k128x96);
  EXPECT_EQ(plan(300, 4096, 11008), (GemmPlan{GemmTile::k152x128, 2}));  // 2 x 152 rows
  EXPECT_EQ(plan(300, 22016, 4096, Epilogue::SwiGlu).tile, GemmTile::k104x256);
  EXPECT_EQ(plan(777, 22016, 4096, Epilogue::SwiGlu).tile, GemmTile::k136x256);
  EXPECT_EQ(plan(777, 4096, 11008).tile, GemmTile::k200x128);  // one wave, 4 x 200 rows
  EXPECT_EQ(plan(777, 12288, 4096).tile, GemmTile::k200x128);
  EXPECT_EQ(plan(8192, 8192, 8192).tile, GemmTile::k128x256);
  EXPECT_EQ(plan(1000, 4000, 4000).tile, GemmTile::k128x256);
  EXPECT_FALSE(plan(1000, 4000, 4000).is_paired);
  // Rows of w are not aligned to 128-byte lines: in a pair, a block loads half of the weights.
  EXPECT_EQ(plan(300, 12000, 4104), (GemmPlan{GemmTile::k152x192, 1, true}));
  EXPECT_EQ(plan(2000, 12000, 4104), (GemmPlan{GemmTile::k128x256, 1, true}));
  EXPECT_GT(plan(16, 4096, 4096).split, 1);
  EXPECT_EQ(plan(16, 64, 64).split, 1);
}

}  // namespace
}  // namespace minfer::test
