// Times one layer of a mixture of experts for the rows of a prompt: the routing, the experts' GEMMs
// and the weighted sum. Prints one JSON line each; GEMMs with the fraction of the arithmetic limit
// measured in the same process. Arguments: a shape, a format and a number of rows, each `all` if it
// is left out.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench.h"
#include "kernels/cuda/bench/random_tensors.h"
#include "kernels/cuda/bench/timing.h"
#include "kernels/cuda/moe/moe.h"

namespace minfer::cuda {
namespace {

struct Shape {
  const char* name;
  int64_t n_experts, n_active, dim, ffn_dim;
};
constexpr Shape kShapes[] = {{"mixtral-8x7b", 8, 2, 4096, 14336},
                             {"qwen3-30b-a3b", 128, 8, 2048, 768}};

void report(const Shape& s, const WeightFormat& f, int64_t n_rows, const char* what, double us,
            double flops, double limit) {
  std::printf("{\"shape\":\"%s\",\"format\":\"%s\",\"rows\":%d,\"what\":\"%s\",\"us\":%.1f", s.name,
              f.name, int(n_rows), what, us);
  if (flops > 0) {
    const double rate = flops / (us * 1e-6);
    std::printf(",\"tflops\":%.1f,\"of_arithmetic\":%.3f", rate * 1e-12, rate / limit);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

void bench(cudaStream_t stream, TensorPool& pool, const Shape& s, const WeightFormat& f,
           int64_t n_rows, double limit) {
  MoeWeights moe;
  for (int64_t e = 0; e < s.n_experts; ++e) {
    Expert expert;
    expert.w_gate.weight = pool.matrix(f, s.ffn_dim, s.dim);
    expert.w_up.weight = pool.matrix(f, s.ffn_dim, s.dim);
    expert.w_down.weight = pool.matrix(f, s.dim, s.ffn_dim);
    moe.experts.push_back(std::move(expert));
  }
  const std::vector<ExpertPlace> places = expert_places(moe);
  moe.index = allocate_device(DType::U8, {int64_t(places.size() * sizeof(ExpertPlace))});
  MINFER_CUDA_CHECK(cudaMemcpy(moe.index.view().data, places.data(),
                               places.size() * sizeof(ExpertPlace), cudaMemcpyHostToDevice));
  LayerSpec spec;
  spec.n_experts = s.n_experts;
  spec.n_active_experts = s.n_active;
  spec.renormalizes_experts = true;
  const int64_t n_pairs = n_rows * s.n_active;
  const DeviceTensor memory =
      allocate_device(DType::U8, {Routing::bytes(n_rows, s.n_experts, s.n_active)});
  const Routing routing(memory.view().data, n_rows, s.n_experts, s.n_active);
  const DeviceTensor logits = random_tensor(DType::F32, {n_rows, s.n_experts});
  const DeviceTensor x = random_tensor(DType::F16, {n_rows, s.dim});
  const DeviceTensor hidden = allocate_device(DType::F16, {n_pairs, s.ffn_dim});
  const DeviceTensor out = allocate_device(DType::F16, {n_pairs, s.dim});
  const DeviceTensor sum = allocate_device(DType::F32, {n_rows, s.dim});
  report(s, f, n_rows, "route",
         graph_us(stream, 16,
                  [&] {
                    for (int i = 0; i < 16; ++i) route(stream, {routing, logits, {}, {}, spec});
                  }),
         0, limit);
  const ExpertsArgs args{out, x, hidden, routing, moe, spec};
  const double flops = 6.0 * double(n_pairs) * double(s.dim) * double(s.ffn_dim);
  report(s, f, n_rows, "experts", graph_us(stream, 1, [&] { run_experts(stream, args); }), flops,
         limit);
  report(s, f, n_rows, "combine",
         graph_us(stream, 16,
                  [&] {
                    for (int i = 0; i < 16; ++i) {
                      combine_experts(stream, {sum, out, {}, {}, routing, /*accumulate=*/true});
                    }
                  }),
         0, limit);
}

void run(std::string_view shape_name, std::string_view format_name, std::string_view rows) {
  const auto is_wanted = [](std::string_view wanted, std::string_view name) {
    return wanted == "all" || wanted == name;
  };
  use_device(0);
  const Stream stream = make_stream();
  const CudaLimits limits = measure_cuda_limits(0);
  double limit = 0;
  for (const auto& h : limits.hgemm) limit = std::max(limit, h.flops_per_second);
  std::printf("{\"card\":\"%s\",\"arithmetic_tflops\":%.0f}\n", limits.card.c_str(), limit * 1e-12);
  TensorPool pool(int64_t{12'000'000'000});
  int n_cases = 0;
  for (const Shape& shape : kShapes) {
    if (!is_wanted(shape_name, shape.name)) continue;
    for (const WeightFormat& f : {kF16Weights, kInt8Weights, kInt4Weights, kMxfp4Weights}) {
      if (!is_wanted(format_name, f.name)) continue;
      for (const int64_t n_rows : {256, 512, 1024, 2048, 4096}) {
        if (is_wanted(rows, std::to_string(n_rows))) {
          bench(stream.get(), pool, shape, f, n_rows, limit);
          ++n_cases;
        }
      }
    }
  }
  MINFER_REQUIRE(Usage, n_cases > 0, "no such shape, format or number of rows: ", shape_name, ' ',
                 format_name, ' ', rows);
}

}  // namespace
}  // namespace minfer::cuda

int main(int argc, char** argv) {
  const auto argument = [&](int i) { return argc > i ? argv[i] : "all"; };
  try {
    minfer::cuda::run(argument(1), argument(2), argument(3));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
