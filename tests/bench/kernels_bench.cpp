#include <benchmark/benchmark.h>

#include <map>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bench.h"

// The kernels of the CPU at the shapes of a 1.1B Llama, beside the limits of the same run. The
// argument `threads` 0 means all cores; MINFER_CPU_ISA picks the instruction set.
namespace minfer {
namespace {

constexpr int64_t kColdBytes = int64_t{1} << 30;  // weights in rotation: more than the caches hold

const CpuLimits& limits(int n_threads) {
  static std::map<int, CpuLimits> measured;
  const auto [at, is_new] = measured.try_emplace(n_threads);
  if (is_new) at->second = measure_cpu_limits(n_threads, "");
  return at->second;
}

HostTensor filled(DType dtype, const Shape& shape) {
  HostTensor tensor(dtype, shape);
  visit_float(dtype, [&]<typename T>() {
    for (int64_t i = 0; i < shape.n_elements(); ++i) {
      tensor.as<T>()[i] = from_f32<T>(float(i * 7919 % 1009) / 1009 - 0.5f);
    }
  });
  return tensor;
}

void share_of_flops(benchmark::State& state, int n_threads, double flops_per_iteration) {
  using benchmark::Counter;
  const double flops = flops_per_iteration * double(state.iterations());
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsRate);
  state.counters["of_fma_peak"] =
      Counter(flops / limits(n_threads).fma_flops_per_second, Counter::kIsRate);
}

void share_of_reads(benchmark::State& state, int n_threads, double bytes_per_iteration) {
  using benchmark::Counter;
  const double bytes = bytes_per_iteration * double(state.iterations());
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsRate);
  state.counters["of_read_bw"] =
      Counter(bytes / limits(n_threads).read_bytes_per_second, Counter::kIsRate);
}

// Few tokens: weights come from memory.
void BM_MatmulDecode(benchmark::State& state) {
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), in_dim = state.range(2), out_dim = state.range(3);
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  const HostTensor host = filled(DType::F16, {out_dim, in_dim});
  std::vector<Matrix> matrices;
  for (int64_t bytes = 0; bytes < kColdBytes; bytes += matrices.back().n_bytes) {
    matrices.push_back(backend->pack_matrix(host));
  }
  const DeviceTensor x = backend->upload(filled(DType::F32, {n_tokens, in_dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, out_dim});
  size_t next = 0;
  for (auto _ : state) {
    backend->matmul(out, x, matrices[next]);
    next = (next + 1) % matrices.size();
  }
  share_of_reads(state, n_threads, double(matrices[0].n_bytes));
}
BENCHMARK(BM_MatmulDecode)
    ->ArgNames({"threads", "tokens", "in", "out"})
    ->ArgsProduct({{1, 0}, {1, 4, 8}, {2048}, {5632}})
    ->ArgsProduct({{1, 0}, {1}, {2048}, {256, 2048, 32000}})
    ->ArgsProduct({{1, 0}, {1}, {5632}, {2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// Many tokens: the multiply-adds bound it.
void BM_MatmulPrefill(benchmark::State& state) {
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), in_dim = state.range(2), out_dim = state.range(3);
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  const Matrix w = backend->pack_matrix(filled(DType::F16, {out_dim, in_dim}));
  const DeviceTensor x = backend->upload(filled(DType::F32, {n_tokens, in_dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, out_dim});
  for (auto _ : state) backend->matmul(out, x, w);
  share_of_flops(state, n_threads, 2.0 * double(n_tokens * in_dim * out_dim));
}
BENCHMARK(BM_MatmulPrefill)
    ->ArgNames({"threads", "tokens", "in", "out"})
    ->ArgsProduct({{1, 0}, {64, 512}, {2048}, {256, 2048, 5632}})
    ->ArgsProduct({{1, 0}, {512}, {5632}, {2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Causal attention of the last `tokens` of `kv_len` positions; flops of the visible part only.
void BM_Attention(benchmark::State& state) {
  constexpr int64_t kHeads = 32, kKvHeads = 4, kHeadDim = 64;
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), kv_len = state.range(2), pos = kv_len - n_tokens;
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  KvLayer cache = backend->make_kv_layer(DType::F16, kKvHeads, kHeadDim, kv_len);
  const DeviceTensor kv = backend->upload(filled(DType::F32, {kv_len, kKvHeads, kHeadDim}));
  backend->kv_append(cache, kv, kv, 0);
  const DeviceTensor q = backend->upload(filled(DType::F32, {n_tokens, kHeads, kHeadDim}));
  const DeviceTensor out = backend->allocate(DType::F32, q.view().shape);
  for (auto _ : state) backend->attention(out, q, cache, pos, 0.125f);
  const double visible = double(n_tokens) * (double(pos) + double(n_tokens + 1) / 2);
  share_of_flops(state, n_threads, 4.0 * visible * double(kHeads * kHeadDim));
}
BENCHMARK(BM_Attention)
    ->ArgNames({"threads", "tokens", "kv_len"})
    ->ArgsProduct({{1, 0}, {512}, {512, 2048}})
    ->ArgsProduct({{1, 0}, {1}, {128, 2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_RmsNorm(benchmark::State& state) {
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), dim = state.range(2);
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  const DeviceTensor x = backend->upload(filled(DType::F32, {n_tokens, dim}));
  const DeviceTensor weight = backend->upload(filled(DType::F32, {dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, dim});
  for (auto _ : state) backend->rms_norm(out, x, weight, 1e-5f);
  state.SetBytesProcessed(state.iterations() * (2 * n_tokens + 1) * dim * int64_t{sizeof(float)});
}
BENCHMARK(BM_RmsNorm)
    ->ArgNames({"threads", "tokens", "dim"})
    ->ArgsProduct({{1, 0}, {1, 512}, {2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_SwiGlu(benchmark::State& state) {
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), dim = state.range(2);
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  const DeviceTensor gate = backend->upload(filled(DType::F32, {n_tokens, dim}));
  const DeviceTensor up = backend->upload(filled(DType::F32, {n_tokens, dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, dim});
  for (auto _ : state) backend->swiglu(out, gate, up);
  state.SetBytesProcessed(state.iterations() * 3 * n_tokens * dim * int64_t{sizeof(float)});
}
BENCHMARK(BM_SwiGlu)
    ->ArgNames({"threads", "tokens", "dim"})
    ->ArgsProduct({{1, 0}, {1, 512}, {5632}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace minfer
