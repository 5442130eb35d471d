#include "tests/kernels/cuda/attention_cases.h"
#include "tests/kernels/cuda/gemm_cases.h"

namespace minfer::test {
namespace {

constexpr int64_t kHeadDim = cuda::kFusedHeadDim;

struct AppendCase {
  int64_t m, k, n_heads, n_kv_heads, pos;
  std::array<bool, 3> has_bias = {};  // q, k, v
  bool has_norm = false;
};
std::ostream& operator<<(std::ostream& out, const AppendCase& c) {
  out << "m " << c.m << " k " << c.k << ", " << c.n_heads << ":" << c.n_kv_heads << " heads at "
      << c.pos << ", biases";
  for (const bool has : c.has_bias) out << ' ' << has;
  return out << ", norms " << c.has_norm;
}

KvLayer poisoned_cache(DType dtype, int64_t n_kv_heads, int64_t head_dim, int64_t n_pages) {
  KvLayer cache;
  cache.n_kv_heads = n_kv_heads;
  cache.head_dim = head_dim;
  cache.n_pages = n_pages;
  cache.dtype = dtype;
  cache.keys = poisoned_device(dtype, {n_pages, n_kv_heads, kPagePositions, head_dim});
  cache.values = poisoned_device(dtype, cache.keys.view().shape);
  return cache;
}
// The page table of `pages` on the card.
DeviceTensor table_of(const TestPages& pages) {
  DeviceTensor table = cuda::allocate_device(DType::F32, {std::ssize(pages.pages)});
  MINFER_CUDA_CHECK(cudaMemcpy(table.view().data, pages.pages.data(), 4 * pages.pages.size(),
                               cudaMemcpyHostToDevice));
  return table;
}
cuda::CachePlace place_in(const DeviceTensor& table, int64_t pos) {
  return {static_cast<const int32_t*>(table.view().data), table.view().n_elements(), pos};
}

GemmCase gemm_of(const AppendCase& c) {
  const int64_t n_kv = c.n_kv_heads * kHeadDim;
  return {.m = c.m, .k = c.k, .n = {c.n_heads * kHeadDim, n_kv, n_kv}};
}
std::vector<cuda::GemmPart> parts_of(const GemmTensors& t, const AppendCase& c) {
  std::vector<cuda::GemmPart> parts = t.parts();
  for (size_t i = 0; i < 3; ++i) {
    if (c.has_bias[i]) parts[i].bias = t.bias_device[i];
  }
  return parts;
}

// Expects the same bytes of q and of the cache as from the separate launches that gemm_append
// replaces, which have their own tests. So it writes nothing else, nor the outs of k and v.
void check_append(const AppendCase& c, const cuda::GemmPlan& plan) {
  SCOPED_TRACE(cat(c, ", tile ", int(plan.tile)));
  const GemmCase gemm = gemm_of(c);
  const GemmTensors got(gemm), want(gemm);
  const TestPages pages(c.pos + c.m);
  const DeviceTensor page_table = table_of(pages);
  const cuda::CachePlace place = place_in(page_table, c.pos);
  KvLayer got_cache = poisoned_cache(DType::F16, c.n_kv_heads, kHeadDim, pages.n_in_pool());
  KvLayer want_cache = poisoned_cache(DType::F16, c.n_kv_heads, kHeadDim, pages.n_in_pool());
  const DeviceTensor table = to_device(angles(c.pos + c.m, kHeadDim));
  const std::vector<cuda::GemmPart> got_parts = parts_of(got, c), want_parts = parts_of(want, c);
  ASSERT_TRUE(cuda::gemm_can_append(cuda::check_gemm(got.x_device, got_parts, Epilogue::Store),
                                    got_cache, table));
  const DeviceTensor norm_weights[] = {to_device(random_normal(7, {kHeadDim}, DType::F16)),
                                       to_device(random_normal(8, {kHeadDim}, DType::F16))};
  QkNormArgs norm;
  if (c.has_norm) norm = {QkNorm::PerHead, norm_weights[0], norm_weights[1], 1e-3f};
  cuda::gemm_append_as(nullptr, got_cache, place, got.x_device, std::span(got_parts).first<3>(),
                       table, norm, plan);

  std::vector<cuda::GemmPart> without_biases = want_parts;
  for (cuda::GemmPart& part : without_biases) part.bias = {};
  // In the same order of sums over k.
  const cuda::GemmArgs apart = cuda::check_gemm(want.x_device, without_biases, Epilogue::Store);
  cuda::hgemm_as(nullptr, apart, plan);
  for (const cuda::GemmPart& part : want_parts) {
    if (part.bias) cuda::add_bias(nullptr, part.out, part.out, part.bias);
  }
  const auto heads = [&](size_t i, int64_t n) {
    return want_parts[i].out.reshaped({c.m, n, kHeadDim});
  };
  const auto norm_heads = [&](Tensor x, const DeviceTensor& weight) {
    const Tensor rows = x.reshaped({x.shape[0] * x.shape[1], kHeadDim});
    cuda::rms_norm(nullptr, rows, rows, weight, norm.eps);
  };
  if (c.has_norm) {
    norm_heads(heads(0, c.n_heads), norm_weights[0]);
    norm_heads(heads(1, c.n_kv_heads), norm_weights[1]);
  }
  cuda::rope_append(nullptr, want_cache, place, heads(0, c.n_heads), heads(1, c.n_kv_heads),
                    heads(2, c.n_kv_heads), table);

  expect_same_bytes(got.out_device[0], to_host(want.out_device[0]), "q");
  expect_same_bytes(got.out_device[1], got.before[1], "k's own place");
  expect_same_bytes(got.out_device[2], got.before[2], "v's own place");
  expect_same_bytes(got_cache.keys, to_host(want_cache.keys), "keys");
  expect_same_bytes(got_cache.values, to_host(want_cache.values), "values");
}

void check_append(const AppendCase& c) {
  check_append(c, {.tile = cuda::GemmTile::k128x256, .is_paired = true});
  check_append(c, {.tile = cuda::GemmTile::k128x128});
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

// With an odd number of heads, half of a tile of 256 columns has none; with an odd number of row
// tiles, half of a pair has no tile.
TEST_F(CudaGemmAppend, HasTheBitsOfGemmAndRopeAppend) {
  for (const AppendCase& c : {AppendCase{300, 8, 1, 1, 0},
                              {17, 256, 2, 2, 64, {true, true, true}},
                              {261, 72, 3, 1, 192, {false, true, false}},
                              {261, 72, 3, 1, 192, {}, true},
                              {130, 72, 3, 2, 64, {}, true},
                              {65, 8, 1, 1, 0, {true, true, true}, true}}) {
    check_append(c);
    if (HasFailure()) return;
  }
}

TEST_F(CudaGemmAppend, HasThemAtSizesOfModels) {
  for (const AppendCase& c : {AppendCase{1100, 200, 4, 2, 1024},
                              {2047, 1032, 5, 5, 64, {true, false, true}},
                              {4100, 64, 40, 40, 0},
                              {1500, 4096, 32, 8, 320},
                              {2048, 2048, 32, 4, 0, {}, true},
                              {2048, 4096, 32, 8, 0, {}, true}}) {
    check_append(c);
    if (HasFailure()) return;
  }
}

TEST_F(CudaGemmAppend, SaysWhatItTakes) {
  const auto takes = [](DType dtype, DType cache, int64_t head_dim, int64_t rotary_dim,
                        int64_t k = 64) {
    const GemmCase gemm{.dtype = dtype, .m = 100, .k = k, .n = {128, 128, 128}};
    const GemmTensors t(gemm);
    return cuda::gemm_can_append(
        cuda::check_gemm(t.x_device, t.parts(), Epilogue::Store),
        poisoned_cache(cache, 1, head_dim, 1),
        rotary_dim > 0 ? to_device(angles(8, rotary_dim)).view() : Tensor{});
  };
  EXPECT_TRUE(takes(DType::F16, DType::F16, 128, 128));
  EXPECT_FALSE(takes(DType::BF16, DType::F16, 128, 128));
  EXPECT_FALSE(takes(DType::F16, DType::U8, 128, 128));
  EXPECT_FALSE(takes(DType::F16, DType::F16, 64, 64));
  EXPECT_FALSE(takes(DType::F16, DType::F16, 128, 64));
  EXPECT_FALSE(takes(DType::F16, DType::F16, 128, 0));
  EXPECT_FALSE(takes(DType::F16, DType::F16, 128, 128, 65));

  const GemmCase gemm{.m = 100, .k = 64, .n = {128, 128, 128}};
  const GemmTensors t(gemm);
  std::vector<cuda::GemmPart> parts = t.parts();
  parts[0].out.data = static_cast<char*>(parts[0].out.data) + 2;
  EXPECT_FALSE(cuda::gemm_can_append(cuda::check_gemm(t.x_device, parts, Epilogue::Store),
                                     poisoned_cache(DType::F16, 1, 128, 1),
                                     to_device(angles(8, 128))))
      << "q begins anywhere";
}

// The shapes of a 7B model, and with eight key/value heads.
TEST_F(CudaGemmAppend, IsForLongPrompts) {
  const auto pays = [](int64_t m, int64_t n_kv_heads, int64_t pos = 0, QkNorm norm = QkNorm::None) {
    const Tensor x{nullptr, DType::F16, {m, 4096}};
    const auto part = [&](int64_t n) {
      return cuda::GemmPart{{nullptr, DType::F16, {n, 4096}}, {nullptr, DType::F16, {m, n}}, {}};
    };
    const std::array parts{part(4096), part(n_kv_heads * 128), part(n_kv_heads * 128)};
    return cuda::gemm_appends(x, parts, poisoned_cache(DType::F16, n_kv_heads, 128, 1), pos,
                              to_device(angles(8, 128)), norm);
  };
  EXPECT_FALSE(pays(300, 32));
  EXPECT_FALSE(pays(512, 32));
  EXPECT_TRUE(pays(2048, 32));
  EXPECT_TRUE(pays(4096, 32));
  EXPECT_TRUE(pays(4096, 32, 192));
  EXPECT_FALSE(pays(4096, 32, 200));  // a TMA box of rows would span two pages
  EXPECT_TRUE(pays(1024, 8));
  EXPECT_TRUE(pays(2048, 32, 0, QkNorm::PerHead));
  EXPECT_FALSE(pays(2048, 32, 0, QkNorm::WholeWidth));
}

TEST_F(CudaGemmAppend, RefusesWhatDoesNotFit) {
  const AppendCase c{200, 64, 2, 1, 0};
  const GemmCase gemm = gemm_of(c);
  const GemmTensors t(gemm);
  const std::vector<cuda::GemmPart> parts = t.parts();
  const auto refuses = [&](int64_t n_kv_heads, int64_t n_positions, int64_t max_seq_len,
                           int64_t pos, const QkNormArgs& norm = {}) {
    const TestPages pages(n_positions);
    const DeviceTensor page_table = table_of(pages), table = to_device(angles(max_seq_len, 128));
    KvLayer cache = poisoned_cache(DType::F16, n_kv_heads, 128, pages.n_in_pool());
    EXPECT_THROW(cuda::gemm_append(nullptr, cache, place_in(page_table, pos), t.x_device,
                                   std::span(parts).first<3>(), table, norm),
                 Error);
  };
  refuses(1, 256, 400, 128);  // past the pages
  refuses(1, 384, 327, 128);  // past the table
  refuses(1, 384, 400, -64);
  refuses(1, 384, 400, 100);  // a TMA box of rows would span two pages
  refuses(2, 384, 400, 0);    // another number of heads
  const DeviceTensor weight = to_device(random_normal(7, {128}, DType::F16));
  refuses(1, 384, 400, 0, {QkNorm::PerHead, weight, {}});
  refuses(1, 384, 400, 0, {QkNorm::WholeWidth, weight, weight});
  refuses(1, 384, 400, 0, {QkNorm::None, weight, weight});
  const DeviceTensor of_64 = to_device(random_normal(7, {64}, DType::F16));
  refuses(1, 384, 400, 0, {QkNorm::PerHead, weight, of_64});
  const DeviceTensor of_bf16 = to_device(random_normal(7, {128}, DType::BF16));
  refuses(1, 384, 400, 0, {QkNorm::PerHead, of_bf16, weight});
}

}  // namespace
}  // namespace minfer::test
