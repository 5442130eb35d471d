#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bench.h"
#include "tests/support/test_pages.h"

// Times the CPU kernels at the shapes of a 1.1B Llama, and reports the limits of the same run. The
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

// Few tokens: bound by reading the weights from memory.
//   pack(backend)  packs the weights
template <typename Pack>
void run_decode(benchmark::State& state, const CpuOptions& options, int64_t n_tokens,
                const Pack& pack) {
  const auto backend = make_cpu_backend(options);
  std::vector<Matrix> matrices;
  for (int64_t bytes = 0; bytes < kColdBytes; bytes += matrices.back().n_bytes) {
    matrices.push_back(pack(*backend));
  }
  const Matrix& w = matrices[0];
  const DeviceTensor x = backend->upload(filled(DType::F32, {n_tokens, w.in_dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, w.out_dim});
  size_t next = 0;
  for (auto _ : state) {
    backend->matmul(out, x, matrices[next]);
    next = (next + 1) % matrices.size();
  }
  share_of_reads(state, options.n_threads, double(w.n_bytes));
}

// Many tokens: bound by multiply-adds.
template <typename Pack>
void run_prefill(benchmark::State& state, const CpuOptions& options, int64_t n_tokens,
                 const Pack& pack) {
  const auto backend = make_cpu_backend(options);
  const Matrix w = pack(*backend);
  const DeviceTensor x = backend->upload(filled(DType::F32, {n_tokens, w.in_dim}));
  const DeviceTensor out = backend->allocate(DType::F32, {n_tokens, w.out_dim});
  for (auto _ : state) backend->matmul(out, x, w);
  share_of_flops(state, options.n_threads, 2.0 * double(n_tokens * w.in_dim * w.out_dim));
}

// Arguments: threads, tokens, in, out.
auto float_weights(const benchmark::State& state) {
  return [host = filled(DType::F16, {state.range(3), state.range(2)})](Backend& backend) {
    return backend.pack_matrix(host);
  };
}

void BM_MatmulDecode(benchmark::State& state) {
  run_decode(state, {.n_threads = int(state.range(0)), .isa = ""}, state.range(1),
             float_weights(state));
}
BENCHMARK(BM_MatmulDecode)
    ->ArgNames({"threads", "tokens", "in", "out"})
    ->ArgsProduct({{1, 0}, {1, 4, 8}, {2048}, {5632}})
    ->ArgsProduct({{1, 0}, {1}, {2048}, {256, 2048, 32000}})
    ->ArgsProduct({{1, 0}, {1}, {5632}, {2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_MatmulPrefill(benchmark::State& state) {
  run_prefill(state, {.n_threads = int(state.range(0)), .isa = ""}, state.range(1),
              float_weights(state));
}
BENCHMARK(BM_MatmulPrefill)
    ->ArgNames({"threads", "tokens", "in", "out"})
    ->ArgsProduct({{1, 0}, {64, 512}, {2048}, {256, 2048, 5632}})
    ->ArgsProduct({{1, 0}, {512}, {5632}, {2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Arguments: threads, tokens, in, out, bits, group (0: one scale per row), activations (of the
// enum).
CpuOptions quantized_options(const benchmark::State& state) {
  return {.n_threads = int(state.range(0)),
          .isa = "",
          .activations = static_cast<Activations>(state.range(6))};
}

auto quantized_weights(const benchmark::State& state) {
  const int64_t in_dim = state.range(2), group = state.range(5) == 0 ? in_dim : state.range(5);
  HostQuantizedMatrix host =
      filled_codes(state.range(4) == 4 ? DType::U4 : DType::U8, state.range(3), in_dim, group);
  return [host = std::move(host)](Backend& backend) { return backend.pack_matrix(host.view()); };
}

const std::vector<std::string> kQuantizedArgs = {"threads", "tokens", "in",         "out",
                                                 "bits",    "group",  "activations"};

void BM_QuantizedDecode(benchmark::State& state) {
  run_decode(state, quantized_options(state), state.range(1), quantized_weights(state));
}
BENCHMARK(BM_QuantizedDecode)
    ->ArgNames(kQuantizedArgs)
    ->ArgsProduct({{1, 0}, {1}, {2048}, {5632}, {4}, {32, 64}, {0, 1, 2}})
    ->ArgsProduct({{1, 0}, {1}, {2048}, {5632}, {8}, {0}, {0, 1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_QuantizedPrefill(benchmark::State& state) {
  run_prefill(state, quantized_options(state), state.range(1), quantized_weights(state));
}
BENCHMARK(BM_QuantizedPrefill)
    ->ArgNames(kQuantizedArgs)
    ->ArgsProduct({{1, 0}, {512}, {2048}, {5632}, {4}, {32, 64}, {0, 1, 2}})
    ->ArgsProduct({{1, 0}, {512}, {2048}, {5632}, {8}, {0}, {0, 1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Loading: packs the codes of a checkpoint into the backend's panels.
void BM_PackQuantized(benchmark::State& state) {
  const auto backend = make_cpu_backend(quantized_options(state));
  const auto pack = quantized_weights(state);
  int64_t n_bytes = 0;
  for (auto _ : state) n_bytes = pack(*backend).n_bytes;
  state.SetBytesProcessed(state.iterations() * n_bytes);
}
BENCHMARK(BM_PackQuantized)
    ->ArgNames(kQuantizedArgs)
    ->ArgsProduct({{1, 0}, {0}, {2048}, {5632}, {4}, {64}, {0}})
    ->ArgsProduct({{1, 0}, {0}, {2048}, {5632}, {8}, {0}, {0}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Causal attention of the last `tokens` of `kv_len` positions. Counts the flops of the visible part
// only.
void BM_Attention(benchmark::State& state) {
  constexpr int64_t kHeads = 32, kKvHeads = 4, kHeadDim = 64;
  const int n_threads = int(state.range(0));
  const int64_t n_tokens = state.range(1), kv_len = state.range(2), pos = kv_len - n_tokens;
  const auto backend = make_cpu_backend({.n_threads = n_threads, .isa = ""});
  const test::TestPages pages(kv_len);
  const SequenceRows all = pages.rows(kv_len, 0), last = pages.rows(n_tokens, pos);
  KvLayer cache = backend->make_kv_layer(DType::F16, kKvHeads, kHeadDim, pages.n_in_pool());
  const DeviceTensor kv = backend->upload(filled(DType::F32, {kv_len, kKvHeads, kHeadDim}));
  backend->kv_append(cache, kv, kv, {&all, 1});
  const DeviceTensor q = backend->upload(filled(DType::F32, {n_tokens, kHeads, kHeadDim}));
  const DeviceTensor out = backend->allocate(DType::F32, q.view().shape);
  for (auto _ : state) {
    backend->attention({.out = out, .q = q, .cache = cache, .batch = {&last, 1}, .scale = 0.125f});
  }
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
