#include "tests/kernels/cuda/attention_cases.h"

// What attention of a prompt takes of a card's memory besides its arguments.
namespace minfer::test {
namespace {

constexpr Heads kHeads{32, 32, 128};

KvLayer layer_without_memory(DType dtype, int64_t capacity) {
  KvLayer layer;
  layer.n_kv_heads = kHeads.n_kv_heads;
  layer.head_dim = kHeads.head_dim;
  layer.capacity = capacity;
  layer.dtype = dtype;
  return layer;
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

// Bytes that the causal prefill of so many tokens takes, its workspace among them. It runs from a
// graph, so that nothing is given back unseen: while a graph is captured cudaMalloc fails, and what
// a graph allocates for itself the card keeps.
int64_t bytes_taken(DType cache_dtype, int64_t n_tokens) {
  KvLayer cache = layer_without_memory(cache_dtype, n_tokens);
  cache.keys = zeros(cache_dtype, {kHeads.n_kv_heads, n_tokens, kHeads.head_dim});
  cache.values = zeros(cache_dtype, cache.keys.view().shape);
  if (cache_dtype == DType::U8) {
    cache.key_scales = zeros(DType::F32, {kHeads.n_kv_heads, n_tokens});
    cache.value_scales = zeros(DType::F32, {kHeads.n_kv_heads, n_tokens});
  }
  const Shape shape{n_tokens, kHeads.n_heads, kHeads.head_dim};
  const DeviceTensor q = zeros(DType::F16, shape), out = poisoned_device(DType::F16, shape);
  const cuda::Stream stream = cuda::make_stream();

  const int64_t before = free_bytes();
  const int64_t n_bytes = cuda::attention_prefill_workspace(cache);
  const DeviceTensor workspace =
      n_bytes > 0 ? cuda::allocate_device(DType::U8, {n_bytes}) : DeviceTensor();
  const cuda::GraphExec graph = cuda::capture_graph(stream.get(), [&] {
    cuda::attention_prefill(stream.get(), out, q, cache, 0, scale_of(kHeads),
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
  const auto of = [](int64_t capacity) {
    return cuda::attention_prefill_workspace(layer_without_memory(GetParam(), capacity));
  };
  if (GetParam() == DType::F16) {
    EXPECT_EQ(of(32768), 0);
  }
  EXPECT_EQ(of(32768), 4 * of(8192));
}

// All scores of 8192 tokens at once would be 4 GB of halves.
TEST_P(PrefillMemory, IsSmallAndLinearInTheLength) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kOfTheDriver = 32 << 20;  // for code and graphs, whatever the length
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
