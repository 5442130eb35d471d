// Compares cuda::gemm with cuBLAS and prints one JSON line per case, with the required ratio.
// Arguments:
//   alone, called
//           one GEMM at a time; else many in a row, as in a model (GemmTimer::Way)
//   plans   every tile and split at the shapes of Llama-2-7B, with the plan that the model in
//           gemm.cpp picks marked
//   MxNxK[:EPILOGUE]
//           this shape alone, as in 2048x5120x2048:gelu_erf
#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/bench/gemm_timer.h"

namespace minfer {
namespace {

using cuda::Epilogue;
using Case = cuda::TimedGemm;

// The required ratio of the time of cuBLAS to ours.
double wanted_of_cublas(const Case& c) {
  if (c.m % 16 != 0 || c.n % 64 != 0 || c.k % 64 != 0) return 0.90;
  return c.m >= 2048 ? 1.0 : c.m >= 512 ? 0.97 : 0.85;
}

// In the order of Epilogue.
constexpr const char* kEpilogues[] = {"store",      "accumulate", "swiglu",   "geglu_erf",
                                      "geglu_tanh", "gelu_erf",   "gelu_tanh"};

class Bench {
 public:
  explicit Bench(cuda::GemmTimer::Way way) : way_(way) {}

  void compare(const Case& c) { time(c, {cuda::hgemm_plan(timer_.args_of(c))}); }
  void compare_plans(const Case& c) {
    std::vector<cuda::GemmPlan> plans = cuda::fitting_plans(timer_.args_of(c));
    // many rows fill the card without split-K
    if (c.m > 512) std::erase_if(plans, [](const cuda::GemmPlan& plan) { return plan.split > 1; });
    time(c, plans);
  }

 private:
  void time(const Case& c, const std::vector<cuda::GemmPlan>& plans) {
    std::vector<cuda::GemmTimer::Launch> launches;
    for (const cuda::GemmPlan& plan : plans) {
      launches.push_back([&](Tensor x, std::span<const cuda::GemmPart> parts) {
        cuda::hgemm_as(stream_.get(), cuda::check_gemm(x, parts, c.epilogue), plan);
      });
    }
    const auto times = timer_.times(c, launches, way_);
    for (size_t i = 0; i < plans.size(); ++i) {
      print(c, plans[i], times[i].us, times[i].cublas_us.value());
    }
  }

  void print(const Case& c, const cuda::GemmPlan& plan, double us, double blas_us) const {
    const char* const ways[] = {"in_a_row", "alone", "called"};
    const char* const tiles[] = {"64x96",   "64x128",  "64x176",  "128x96",  "128x128",
                                 "128x192", "128x224", "128x256", "256x192", "104x256",
                                 "136x256", "152x128", "152x192", "200x128"};
    static_assert(std::size(tiles) == cuda::kGemmTiles);
    const cuda::GemmPlan chosen = cuda::hgemm_plan(timer_.args_of(c));
    const double flops = c.flops();
    std::printf(
        "{\"kernel\":\"gemm\",\"way\":\"%s\",\"epilogue\":\"%s\",\"parts\":%d,\"m\":%d,\"n\":%d,"
        "\"k\":%d,\"tile\":\"%s\",\"split\":%d,\"paired\":%s,\"chosen\":%s,\"us\":%.1f,\"tflops\":%"
        ".0f,"
        "\"weights_gbps\":%.0f,\"cublas_us\":%.1f,\"cublas_tflops\":%.0f,\"of_cublas\":%.3f,"
        "\"wanted\":%.2f}\n",
        ways[int(way_)], kEpilogues[int(c.epilogue)], c.n_parts, int(c.m), int(c.n), int(c.k),
        tiles[int(plan.tile)], plan.split, plan.is_paired ? "true" : "false",
        plan == chosen ? "true" : "false", us, flops / us * 1e-6,
        2e-3 * double(c.n) * double(c.k) / us, blas_us, flops / blas_us * 1e-6, blas_us / us,
        wanted_of_cublas(c));
    std::fflush(stdout);
  }

  cuda::GemmTimer::Way way_;
  cuda::Stream stream_ = cuda::make_stream();
  cuda::Cublas cublas_{stream_.get()};
  cuda::GemmTimer timer_{stream_.get(), &cublas_};
};

// The shape that a word names, if it does.
std::optional<Case> shape_of(std::string_view word) {
  Epilogue epilogue = Epilogue::Store;
  if (const size_t colon = word.find(':'); colon != word.npos) {
    const auto* const name = std::ranges::find(kEpilogues, word.substr(colon + 1));
    if (name == std::end(kEpilogues)) return std::nullopt;
    epilogue = Epilogue(name - kEpilogues);
    word = word.substr(0, colon);
  }
  std::array<long, 3> sizes{};
  int n_read = 0;
  const int n_found = std::sscanf(std::string(word).c_str(), "%ldx%ldx%ld%n", &sizes[0], &sizes[1],
                                  &sizes[2], &n_read);
  if (n_found != 3 || size_t(n_read) != word.size()) return std::nullopt;
  for (const long size : sizes) {
    if (size <= 0 || size > 1 << 20) return std::nullopt;
  }
  return Case{sizes[0], sizes[1], sizes[2], epilogue, cuda::is_gated(epilogue) ? 2 : 1};
}

void run(bool all_plans, const std::vector<Case>& shapes, cuda::GemmTimer::Way way) {
  cuda::use_device(0);
  Bench bench(way);
  for (const Case& shape : shapes) {
    if (all_plans) {
      bench.compare_plans(shape);
    } else {
      bench.compare(shape);
    }
  }
  if (!shapes.empty()) return;
  const int64_t layers[][2] = {{12288, 4096}, {4096, 4096}, {22016, 4096}, {4096, 11008}};
  const Case odd_shapes[] = {{2000, 12000, 4104}, {1000, 4000, 4000}, {300, 4096, 4096},
                             {300, 12000, 4104},  {777, 11008, 4096}, {2000, 4001, 4096}};
  if (all_plans) {
    for (int64_t m : {16, 64, 128, 256, 300, 512, 777, 2048, 4096}) {
      bench.compare_plans({m, 12288, 4096, Epilogue::Store, 3});
      bench.compare_plans({m, 4096, 4096, Epilogue::Accumulate});
      bench.compare_plans({m, 22016, 4096, Epilogue::SwiGlu, 2});
      bench.compare_plans({m, 22016, 4096});
      bench.compare_plans({m, 4096, 11008, Epilogue::Accumulate});
    }
    for (const Case& odd : odd_shapes) bench.compare_plans(odd);
    return;
  }
  for (int64_t size : {4096, 8192}) bench.compare({size, size, size});
  for (const auto& [n, k] : layers) {
    for (int64_t m : {16, 64, 128, 256, 300, 512, 777, 2048, 4096}) bench.compare({m, n, k});
  }
  for (const Case& odd : odd_shapes) bench.compare(odd);
  for (int64_t m : {300, 512, 777, 2048}) {
    bench.compare({m, 12288, 4096, Epilogue::Store, 3});
    bench.compare({m, 22016, 4096, Epilogue::SwiGlu, 2});
    bench.compare({m, 4096, 11008, Epilogue::Accumulate});
    bench.compare({m, 4096, 4096, Epilogue::Accumulate});
    bench.compare({m, 11008, 4096, Epilogue::GeluErf});
  }
}

}  // namespace
}  // namespace minfer

int main(int argc, char** argv) {
  try {
    using Way = minfer::cuda::GemmTimer::Way;
    bool all_plans = false;
    Way way = Way::InARow;
    std::vector<minfer::Case> shapes;
    for (const std::string_view word : std::vector<std::string_view>(argv + 1, argv + argc)) {
      if (word == "plans") {
        all_plans = true;
      } else if (word == "alone" || word == "called") {
        way = word == "alone" ? Way::Alone : Way::Called;
      } else if (const auto shape = minfer::shape_of(word)) {
        shapes.push_back(*shape);
      } else {
        std::fprintf(stderr,
                     "usage: cuda_gemm_bench [plans] [alone | called] [MxNxK[:EPILOGUE] ...]\n");
        return 2;
      }
    }
    minfer::run(all_plans, shapes, way);
  } catch (const minfer::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return int(e.kind());
  }
}
