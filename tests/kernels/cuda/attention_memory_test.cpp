#include <numeric>

#include "tests/kernels/cuda/attention_cases.h"

// How much of a card's memory the attention of a prompt takes besides its arguments.
namespace minfer::test {
namespace {

constexpr Heads kHeads{32, 32, 128};

int64_t workspace_bytes(DType dtype, int64_t n_positions) {
  return cuda::attention_prefill_workspace(dtype, kHeads.n_kv_heads, kHeads.head_dim,
                                           pages_for(n_positions));
}

DeviceTensor zeros(DType dtype, const Shape& shape) {
  DeviceTensor tensor = cuda::allocate_device(dtype, shape);
  MINFER_CUDA_CHECK(cudaMemset(tensor.view().data, 0, size_t(tensor.view().n_bytes())));
  return tensor;
}

// Waits for all work on the card.
int64_t free_bytes() {
  MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  size_t free = 0, total = 0;
  MINFER_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return int64_t(free);
}

// The bytes that causal prefill of n_tokens takes, with its workspace. It runs from a graph, so
// that no memory is allocated and freed unnoticed: cudaMalloc fails during a capture, and the card
// keeps what a graph allocates.
int64_t bytes_taken(DType cache_dtype, int64_t n_tokens) {
  KvLayer cache;
  cache.n_kv_heads = kHeads.n_kv_heads;
  cache.head_dim = kHeads.head_dim;
  cache.n_pages = pages_for(n_tokens);
  cache.dtype = cache_dtype;
  const Shape rows{cache.n_pages, kHeads.n_kv_heads, kPagePositions};
  cache.keys = zeros(cache_dtype, {rows[0], rows[1], rows[2], kHeads.head_dim});
  cache.values = zeros(cache_dtype, cache.keys.view().shape);
  if (cache_dtype == DType::U8) {
    cache.key_scales = zeros(DType::F32, rows);
    cache.value_scales = zeros(DType::F32, rows);
  }
  std::vector<int32_t> pages(size_t(cache.n_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const DeviceTensor table = cuda::allocate_device(DType::F32, {cache.n_pages});
  MINFER_CUDA_CHECK(
      cudaMemcpy(table.view().data, pages.data(), 4 * pages.size(), cudaMemcpyHostToDevice));
  const cuda::CachePlace place{static_cast<const int32_t*>(table.view().data), cache.n_pages, 0};
  const Shape shape{n_tokens, kHeads.n_heads, kHeads.head_dim};
  const DeviceTensor q = zeros(DType::F16, shape), out = poisoned_device(DType::F16, shape);
  const cuda::Stream stream = cuda::make_stream();

  const int64_t before = free_bytes();
  const int64_t n_bytes = workspace_bytes(cache_dtype, n_tokens);
  const DeviceTensor workspace =
      n_bytes > 0 ? cuda::allocate_device(DType::U8, {n_bytes}) : DeviceTensor();
  const cuda::GraphExec graph = cuda::capture_graph(stream.get(), [&] {
    cuda::attention_prefill(stream.get(), out, q, cache, place, scale_of(kHeads), 0,
                            workspace.view().data);
  });
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream.get()));
  const int64_t taken = before - free_bytes();

  const HostTensor last = to_host(out.view().rows(n_tokens - 1, 1));
  EXPECT_EQ(last.at(0), 0) << "the last row was not written";
  return taken;
}

class PrefillMemory : public testing::TestWithParam<DType> {};

TEST_P(PrefillMemory, WorkspaceIsLinearInTheCapacity) {
  MINFER_NEEDS_CUDA();
  const auto of = [](int64_t n_positions) { return workspace_bytes(GetParam(), n_positions); };
  if (GetParam() == DType::F16) {
    EXPECT_EQ(of(32768), 0);
  }
  EXPECT_EQ(of(32768), 4 * of(8192));
}

// The scores of 8192 tokens would take 4 GB of halves all at once.
TEST_P(PrefillMemory, IsSmallAndLinearInTheLength) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kOfTheDriver = 32 << 20;  // for code and graphs, at any length
  const int64_t of_8192 = bytes_taken(GetParam(), 8192);
  RecordProperty("bytes_of_8192", cat(of_8192));
  EXPECT_LE(of_8192, 200'000'000);
  const int64_t of_32768 = bytes_taken(GetParam(), 32768);
  RecordProperty("bytes_of_32768", cat(of_32768));
  EXPECT_LE(of_32768, 4 * of_8192 + kOfTheDriver);
}

INSTANTIATE_TEST_SUITE_P(Caches, PrefillMemory, testing::Values(DType::F16, DType::U8),
                         [](const auto& info) { return cat(info.param); });

}  // namespace
}  // namespace minfer::test
