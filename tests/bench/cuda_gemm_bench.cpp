// cuda::gemm beside cuBLAS, one JSON line a case; "plans" as the argument: every tile and split.
//
// Each figure is the median of replays of a CUDA graph of many products over rotating weights, so
// that these come from DRAM as in a model; ours and cuBLAS's replays take turns.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "kernels/base/half.h"
#include "kernels/base/math.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/gemm.h"

namespace minfer {
namespace {

using cuda::Epilogue;
using cuda::GemmPart;

void check_blas(cublasStatus_t status) {
  MINFER_REQUIRE(Gpu, status == CUBLAS_STATUS_SUCCESS, "cuBLAS: status ", int(status));
}
using Blas = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, cuda::Destroy<cublasDestroy>>;

// Roughly normal numbers in card memory, the same 32 MB over and over; inputs are cut from it.
class Arena {
 public:
  explicit Arena(int64_t n) : memory_(cuda::allocate_device(DType::F16, {n})) {
    const int64_t n_random = 16 << 20;
    std::vector<f16> random(static_cast<size_t>(n_random));
    uint64_t state = 1;
    for (f16& value : random) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t bits = state >> 16;
      float sum = -2;
      for (int i = 0; i < 4; ++i) sum += float(bits >> (12 * i) & 0xFFF) / 4096;
      value = from_f32<f16>(sum);
    }
    for (int64_t at = 0; at < n; at += n_random) {
      MINFER_CUDA_CHECK(cudaMemcpy(memory_.view().as<f16>() + at, random.data(),
                                   size_t(std::min(n_random, n - at)) * 2, cudaMemcpyHostToDevice));
    }
  }
  Tensor matrix(int64_t first, int64_t rows, int64_t columns) const {
    return {memory_.view().as<f16>() + first, DType::F16, {rows, columns}};
  }

 private:
  DeviceTensor memory_;
};

struct Shape3 {
  int64_t m, n, k;
};
struct Case {
  Shape3 shape;
  Epilogue epilogue = Epilogue::Store;
  int n_parts = 1;  // n is that of all
};

class Bench {
 public:
  Bench() : arena_(kArena), outs_(cuda::allocate_device(DType::F32, {kOut})) {
    cublasHandle_t handle = nullptr;
    check_blas(cublasCreate(&handle));
    blas_.reset(handle);
    check_blas(cublasSetStream(handle, stream_.get()));
    workspace_ = cuda::allocate_device(DType::U8, {64 << 20});
    check_blas(cublasSetWorkspace(handle, workspace_.view().data, 64 << 20));
    MINFER_CUDA_CHECK(cudaMemset(outs_.view().data, 0, size_t(outs_.view().n_bytes())));
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void compare(const Case& c) {
    const cuda::GemmPlan plan = cuda::hgemm_plan(args_of(c));
    const auto [us, blas_us] = both(c, plan);
    print(c, plan, us, blas_us);
  }
  void compare_plans(const Case& c) {
    for (int tile = 0; tile < cuda::kGemmTiles; ++tile) {
      for (int split : {1, 2, 4}) {
        const cuda::GemmPlan plan{cuda::GemmTile(tile), split};
        if (!cuda::plan_fits(args_of(c), plan)) continue;
        const auto [us, blas_us] = both(c, plan);
        print(c, plan, us, blas_us);
      }
    }
  }

 private:
  static constexpr int64_t kArena = int64_t{1} << 29;  // 1 GiB
  static constexpr int64_t kOut = int64_t{1} << 27;    // 512 MiB

  std::vector<GemmPart> parts_of(const Case& c, int64_t copy) const {
    std::vector<GemmPart> parts;
    const int64_t n = c.shape.n / c.n_parts;
    const bool is_f32 = c.epilogue == Epilogue::Accumulate;
    for (int i = 0; i < c.n_parts; ++i) {
      const Tensor w =
          arena_.matrix(x_elements(c) + (copy * c.n_parts + i) * n * c.shape.k, n, c.shape.k);
      auto* const out = outs_.view().as<float>() + i * c.shape.m * n;
      parts.push_back({w, {out, is_f32 ? DType::F32 : DType::F16, {c.shape.m, n}}, {}});
    }
    return parts;
  }
  static int64_t x_elements(const Case& c) { return align_up(c.shape.m * c.shape.k, 1024); }
  Tensor x_of(const Case& c) const { return arena_.matrix(0, c.shape.m, c.shape.k); }
  cuda::GemmArgs args_of(const Case& c) const {
    return cuda::check_gemm(x_of(c), parts_of(c, 0), c.epilogue);
  }

  double replay_us(const cuda::GraphExec& graph, int n_launches) {
    MINFER_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_.get()));
    MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get()));
    MINFER_CUDA_CHECK(cudaEventRecord(end_.get(), stream_.get()));
    MINFER_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0;
    MINFER_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return 1000.0 * double(ms) / n_launches;
  }

  std::pair<double, double> both(const Case& c, const cuda::GemmPlan& plan) {
    const auto [m, n, k] = c.shape;
    const int64_t copies =
        std::clamp<int64_t>((kArena - x_elements(c)) / (n * k), 1, ceil_div(100 << 20, n * k));
    const double expected_us = 5 + 2e-6 * double(m) * double(n) * double(k) / 600;
    const int n_launches = int(std::clamp(3000 / expected_us, 2.0, 60.0));
    const bool is_f32 = c.epilogue == Epilogue::Accumulate;
    const cuda::GraphExec ours = cuda::capture_graph(stream_.get(), [&] {
      for (int i = 0; i < n_launches; ++i) {
        const std::vector<GemmPart> parts = parts_of(c, i % copies);
        cuda::hgemm_as(stream_.get(), cuda::check_gemm(x_of(c), parts, c.epilogue), plan);
      }
    });
    const cuda::GraphExec theirs = cuda::capture_graph(stream_.get(), [&] {
      for (int i = 0; i < n_launches; ++i) {
        const float one = 1, beta = is_f32 ? 1 : 0;
        check_blas(cublasGemmEx(blas_.get(), CUBLAS_OP_T, CUBLAS_OP_N, int(n), int(m), int(k), &one,
                                parts_of(c, i % copies)[0].w.data, CUDA_R_16F, int(k), x_of(c).data,
                                CUDA_R_16F, int(k), &beta, outs_.view().data,
                                is_f32 ? CUDA_R_32F : CUDA_R_16F, int(n), CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT));
      }
    });
    std::vector<double> us, blas_us;
    for (int i = 0; i < 9; ++i) {
      const double a = replay_us(ours, n_launches), b = replay_us(theirs, n_launches);
      if (i < 2) continue;  // warm-up
      us.push_back(a);
      blas_us.push_back(b);
    }
    std::nth_element(us.begin(), us.begin() + 3, us.end());
    std::nth_element(blas_us.begin(), blas_us.begin() + 3, blas_us.end());
    return {us[3], blas_us[3]};
  }

  static void print(const Case& c, const cuda::GemmPlan& plan, double us, double blas_us) {
    const char* const epilogues[] = {"store", "accumulate", "swiglu", "gelu_erf", "gelu_tanh"};
    const char* const tiles[] = {"64x128", "128x96", "128x128", "128x192", "128x256", "256x192"};
    static_assert(std::size(tiles) == cuda::kGemmTiles);
    const auto [m, n, k] = c.shape;
    const double flops = 2.0 * double(m) * double(n) * double(k);
    std::printf(
        "{\"kernel\":\"gemm\",\"epilogue\":\"%s\",\"parts\":%d,\"m\":%d,\"n\":%d,\"k\":%d,"
        "\"tile\":\"%s\",\"split\":%d,\"us\":%.1f,\"tflops\":%.0f,\"weights_gbps\":%.0f,"
        "\"cublas_us\":%.1f,\"cublas_tflops\":%.0f,\"of_cublas\":%.3f}\n",
        epilogues[int(c.epilogue)], c.n_parts, int(m), int(n), int(k), tiles[int(plan.tile)],
        plan.split, us, flops / us * 1e-6, 2e-3 * double(n) * double(k) / us, blas_us,
        flops / blas_us * 1e-6, blas_us / us);
    std::fflush(stdout);
  }

  cuda::Stream stream_ = cuda::make_stream();
  cuda::Event begin_ = cuda::make_event(), end_ = cuda::make_event();
  Arena arena_;
  DeviceTensor outs_, workspace_;
  Blas blas_;
};

void run(bool all_plans) {
  cuda::use_device(0);
  Bench bench;
  const int64_t layers[][2] = {{12288, 4096}, {4096, 4096}, {22016, 4096}, {4096, 11008}};
  if (all_plans) {
    for (const auto& [n, k] : layers) {
      for (int64_t m : {16, 64, 128, 256, 512, 2048}) bench.compare_plans({{m, n, k}});
    }
    return;
  }
  for (int64_t size : {4096, 8192}) bench.compare({{size, size, size}});
  for (const auto& [n, k] : layers) {
    for (int64_t m : {16, 64, 128, 256, 512, 2048, 4096}) bench.compare({{m, n, k}});
  }
  for (const Shape3& odd : {Shape3{2000, 12000, 4104},
                            {1000, 4000, 4000},
                            {300, 4096, 4096},
                            {300, 12000, 4104},
                            {777, 11008, 4096},
                            {2000, 4001, 4096}}) {
    bench.compare({odd});
  }
  for (int64_t m : {512, 2048}) {
    bench.compare({{m, 12288, 4096}, Epilogue::Store, 3});
    bench.compare({{m, 22016, 4096}, Epilogue::SwiGlu, 2});
    bench.compare({{m, 4096, 11008}, Epilogue::Accumulate});
    bench.compare({{m, 4096, 4096}, Epilogue::Accumulate});
    bench.compare({{m, 11008, 4096}, Epilogue::GeluErf});
  }
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  try {
    minfer::run(argc > 1 && std::string_view(argv[1]) == "plans");
  } catch (const minfer::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return int(e.kind());
  }
}
