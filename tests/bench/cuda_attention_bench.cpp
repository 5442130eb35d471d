// Times attention on a card and prints one JSON line per case: prefill in TFLOP/s; decode in
// microseconds per launch and GB/s of cache read; conversion of U8 caches to F16 in GB/s read and
// written. The last two are also given as a fraction of the read bandwidth of the same card.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

void bench_prefill(cudaStream_t stream, DType cache_dtype, int64_t n_heads, int64_t n_kv_heads,
                   int64_t head_dim, int64_t n_tokens, int64_t pos = 0) {
  const int64_t n_pages = pages_for(pos + n_tokens);
  const KvLayer cache = random_kv_layer(cache_dtype, n_kv_heads, head_dim, n_pages);
  const DeviceTensor pages = pages_in_order(n_pages);
  const CachePlace place{static_cast<const int32_t*>(pages.view().data), n_pages, pos};
  const DeviceTensor q = random_tensor(DType::F16, {n_tokens, n_heads, head_dim}, 2);
  const DeviceTensor out = allocate_device(DType::F16, {n_tokens, n_heads, head_dim});
  const DeviceTensor workspace = allocate_device(
      DType::U8, {attention_prefill_workspace(cache_dtype, n_kv_heads, head_dim, n_pages)});
  const int n_launches = n_tokens <= 4096 ? 10 : 2;
  const double us = graph_us(stream, n_launches, [&] {
    for (int i = 0; i < n_launches; ++i)
      attention_prefill(stream, out, q, cache, place, 0.09f, 0, workspace.view().data);
  });
  const double flops = 4.0 * double(n_tokens) * (double(pos) + double(n_tokens) / 2) *
                       double(n_heads) * double(head_dim);
  std::printf(
      "{\"kernel\":\"attention_prefill\",\"cache\":\"%s\",\"tokens\":%lld,\"pos\":%lld,"
      "\"heads\":%lld,\"kv_heads\":%lld,\"head_dim\":%lld,\"us\":%.1f,\"tflops\":%.0f}\n",
      cache_dtype == DType::U8 ? "u8" : "f16", static_cast<long long>(n_tokens),
      static_cast<long long>(pos), static_cast<long long>(n_heads),
      static_cast<long long>(n_kv_heads), static_cast<long long>(head_dim), us, flops / us * 1e-6);
  std::fflush(stdout);
}

// Converts a U8 cache to F16, which bench_prefill's time of such a cache includes besides
// attention.
void bench_dequantize(cudaStream_t stream, int64_t n_kv_heads, int64_t head_dim, int64_t kv_len,
                      double read_gbps) {
  const int64_t n_pages = pages_for(kv_len);
  const KvLayer cache = random_kv_layer(DType::U8, n_kv_heads, head_dim, n_pages);
  const DeviceTensor pages = pages_in_order(n_pages);
  const CachePlace place{static_cast<const int32_t*>(pages.view().data), n_pages, 0};
  const Shape shape{n_pages, n_kv_heads, kPagePositions, head_dim};
  const DeviceTensor keys = allocate_device(DType::F16, shape);
  const DeviceTensor values = allocate_device(DType::F16, shape);
  constexpr int kLaunches = 10;
  const double us = graph_us(stream, kLaunches, [&] {
    for (int i = 0; i < kLaunches; ++i) {
      attention::dequantize_kv(stream, keys, values, cache, place, 0, kv_len);
    }
  });
  const double bytes = 2.0 * double(n_kv_heads * kv_len) * double(3 * head_dim + 4);
  std::printf(
      "{\"kernel\":\"dequantize_kv\",\"tokens\":%lld,\"kv_heads\":%lld,\"head_dim\":%lld,"
      "\"us\":%.1f,\"gbps\":%.0f,\"of_read\":%.3f}\n",
      static_cast<long long>(kv_len), static_cast<long long>(n_kv_heads),
      static_cast<long long>(head_dim), us, bytes / us * 1e-3, bytes / us * 1e-3 / read_gbps);
  std::fflush(stdout);
}

void bench_decode(cudaStream_t stream, DType cache_dtype, int64_t n_heads, int64_t n_kv_heads,
                  int64_t capacity, int context, double read_gbps,
                  std::span<const attention::DecodeSplits> others = {}) {
  constexpr int64_t kHeadDim = 128;
  const int64_t row_bytes =
      kHeadDim * (cache_dtype == DType::U8 ? 1 : 2) + (cache_dtype == DType::U8 ? 4 : 0);
  const double bytes = 2.0 * double(n_kv_heads) * double(context) * double(row_bytes);
  // As many caches as it takes for each to have left L2 when its turn comes again.
  const int n_caches = int(std::clamp<int64_t>(int64_t(200e6 / bytes) + 1, 2, 64));
  std::vector<KvLayer> caches;
  for (int i = 0; i < n_caches; ++i)
    caches.push_back(random_kv_layer(cache_dtype, n_kv_heads, kHeadDim, pages_for(capacity)));
  const DeviceTensor pages = pages_in_order(pages_for(capacity));
  const DeviceTensor q = random_tensor(DType::F16, {1, n_heads, kHeadDim}, 2);
  const DeviceTensor k = random_tensor(DType::F16, {1, n_kv_heads, kHeadDim}, 2);
  const DeviceTensor v = random_tensor(DType::F16, {1, n_kv_heads, kHeadDim}, 2);
  const DeviceTensor out = allocate_device(DType::F16, {1, n_heads, kHeadDim});
  const DeviceTensor rope = constant_tensor({capacity, kHeadDim / 2, 2}, 0.01f);
  const DeviceTensor pos = allocate_device(DType::F32, {1});
  const int last = context - 1;
  MINFER_CUDA_CHECK(cudaMemcpy(pos.view().data, &last, sizeof(last), cudaMemcpyHostToDevice));
  const auto measure = [&](const attention::DecodeSplits& splits, bool is_chosen) {
    const int64_t n_bytes = attention::decode_workspace(1, n_heads, n_kv_heads, kHeadDim, splits);
    const DeviceTensor workspace = allocate_device(DType::U8, {n_bytes});
    MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
    const int n_launches = std::max(2 * n_caches, 8);
    const double us = graph_us(stream, n_launches, [&] {
      for (int i = 0; i < n_launches; ++i) {
        attention::decode(stream,
                          {.out = out,
                           .q = q,
                           .k = k,
                           .v = v,
                           .rope = rope,
                           .cache = &caches[size_t(i % n_caches)],
                           .pages = static_cast<const int32_t*>(pages.view().data),
                           .pos = static_cast<const int*>(pos.view().data),
                           .max_seq_len = capacity,
                           .scale = 0.09f,
                           .workspace = workspace.view().data},
                          splits);
      }
    });
    std::printf(
        "{\"kernel\":\"attention_decode\",\"cache\":\"%s\",\"context\":%d,\"capacity\":%lld,"
        "\"heads\":%lld,\"kv_heads\":%lld,\"splits\":%d,\"most_alone\":%d,\"least\":%d,"
        "\"chosen\":%s,\"us\":%.2f,\"gbps\":%.0f,\"of_read\":%.3f}\n",
        cache_dtype == DType::U8 ? "u8" : "f16", context, static_cast<long long>(capacity),
        static_cast<long long>(n_heads), static_cast<long long>(n_kv_heads), splits.n,
        splits.most_alone, splits.least, is_chosen ? "true" : "false", us, bytes / us * 1e-3,
        bytes / us * 1e-3 / read_gbps);
    std::fflush(stdout);
  };
  measure(attention::decode_splits(1, n_heads, n_kv_heads, capacity), true);
  for (const attention::DecodeSplits& splits : others) measure(splits, false);
}

// Decode with contexts of every kind, with the launcher's choice of splits and, if requested, with
// others.
void bench_decodes(cudaStream_t stream, DType dtype, double read_gbps, bool with_others) {
  using Splits = std::vector<attention::DecodeSplits>;
  const auto others = [&](const Splits& splits) { return with_others ? splits : Splits{}; };
  const Splits short_ones = others({{12, 64, 64}, {12, 128, 128}, {12, 512, 128}, {4, 64, 128}});
  const Splits long_ones = others({{4, 256, 128}, {8, 256, 128}, {16, 256, 128}, {24, 256, 128}});
  const Splits grouped = others({{16, 256, 128}, {33, 256, 128}, {64, 256, 64}, {33, 128, 64}});
  for (int context : {1, 128, 256, 512, 1024, 2048, 4096})
    bench_decode(stream, dtype, 32, 32, 4096, context, read_gbps,
                 context == 1      ? Splits{}
                 : context <= 1024 ? short_ones
                                   : long_ones);
  bench_decode(stream, dtype, 32, 32, 32768, 512, read_gbps);
  bench_decode(stream, dtype, 32, 32, 32768, 32768, read_gbps, long_ones);
  for (int context : {512, 4096, 32768})
    bench_decode(stream, dtype, 32, 8, 32768, context, read_gbps, grouped);
}

int run(double read_gbps, const std::string& what) {
  const DeviceProperties card = use_device(0);
  std::printf("{\"card\":\"%s\",\"read_gbps\":%.0f}\n", card.name.c_str(), read_gbps);
  const Stream owned = make_stream();
  cudaStream_t stream = owned.get();
  if (what != "decode" && what != "splits") {
    for (int64_t n : {512, 2048, 4096, 8192, 16384, 32768})
      bench_prefill(stream, DType::F16, 32, 32, 128, n);
    for (int64_t n : {4096, 8192}) bench_prefill(stream, DType::F16, 32, 8, 128, n);
    for (int64_t n : {4000, 8100}) bench_prefill(stream, DType::F16, 32, 32, 128, n);
    for (int64_t d : {64, 80, 96}) bench_prefill(stream, DType::F16, 32, 32, d, 4096);
    bench_prefill(stream, DType::F16, 32, 32, 128, 2048, 6100);
    bench_prefill(stream, DType::F16, 32, 32, 128, 1, 500);
    for (int64_t n : {512, 2048, 4096, 8192, 16384})
      bench_prefill(stream, DType::U8, 32, 32, 128, n);
    bench_prefill(stream, DType::U8, 32, 8, 128, 8192);
    bench_prefill(stream, DType::U8, 32, 32, 80, 4096);
    for (DType dtype : {DType::F16, DType::U8})
      for (int64_t n : {1, 2, 4, 8, 9, 64}) {
        bench_prefill(stream, dtype, 32, 32, 128, n, 6100);
        if (n <= 9) bench_prefill(stream, dtype, 32, 8, 128, n, 6100);
      }
    bench_prefill(stream, DType::U8, 32, 32, 128, 2048, 6100);
    for (int64_t n : {2048, 4096, 8192}) bench_dequantize(stream, 32, 128, n, read_gbps);
  }
  if (what != "prefill") {
    for (DType dtype : {DType::F16, DType::U8})
      bench_decodes(stream, dtype, read_gbps, what == "splits");
  }
  return 0;
}

}  // namespace
}  // namespace minfer::cuda

// cuda_attention_bench [READ_GBPS [prefill | decode | splits]]: READ_GBPS is the best read
// bandwidth of the card, 4692 by default; "splits" is decode with other choices of splits as well.
int main(int argc, char** argv) try {
  return minfer::cuda::run(argc > 1 ? std::atof(argv[1]) : 4692, argc > 2 ? argv[2] : "");
} catch (const minfer::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return int(e.kind());
}
