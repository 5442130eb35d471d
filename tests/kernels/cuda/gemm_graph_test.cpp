#include <optional>

#include "kernels/cuda/gemm/cublas.h"
#include "tests/kernels/cuda/gemm_cases.h"

// GEMMs in graphs, and cuBLAS instead of our kernels: tests that need a card, not an emulated one.
namespace minfer::test {
namespace {

class CudaGemmGraph : public testing::Test {
 protected:
  void SetUp() override {
    MINFER_NEEDS_CUDA();
    stream_ = cuda::make_stream();
  }

  cuda::Stream stream_;
};

// Three successive GEMMs that depend on each other, each of which may begin while the one before it
// runs (PDL).
TEST_F(CudaGemmGraph, ReplaysInAGraph) {
  const GemmCase c{.m = 70, .k = 512, .n = {512}};
  const GemmTensors t(c);
  const DeviceTensor middle = poisoned_device(c.dtype, {c.m, c.k});
  const auto run = [&] {
    cuda::GemmPart to_middle{t.w_device[0], middle, {}};
    cuda::gemm(stream_.get(), t.x_device, {&to_middle, 1}, Epilogue::Store);
    cuda::GemmPart to_out{t.w_device[0], t.parts()[0].out, {}};
    cuda::gemm(stream_.get(), middle, {&to_out, 1}, Epilogue::Store);
    cuda::gemm(stream_.get(), t.parts()[0].out, {&to_middle, 1}, Epilogue::Store);
  };
  run();
  const HostTensor want = to_host(middle);
  const cuda::GraphExec graph = cuda::capture_graph(stream_.get(), run);
  for (int i = 0; i < 3; ++i) {
    MINFER_CUDA_CHECK(cudaMemset(middle.view().data, 0xFF, size_t(middle.view().n_bytes())));
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get()));
    const HostTensor out = to_host(middle);
    EXPECT_EQ(std::memcmp(out.view().data, want.view().data, size_t(want.view().n_bytes())), 0);
  }
}

// cuBLAS with 16-byte aligned rows and others, with several parts, captured in a graph and not.
TEST_F(CudaGemmGraph, CublasTakesEveryEpilogue) {
  std::optional<cuda::Cublas> cublas;
  try {
    cublas.emplace(stream_.get());
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const GemmLauncher by_cublas = [&](Tensor x, std::span<const cuda::GemmPart> parts,
                                     Epilogue epilogue) { cublas->gemm(x, parts, epilogue); };
  for (DType dtype : {DType::F16, DType::BF16}) {
    for (const auto& [m, k, n] : {std::array<int64_t, 3>{130, 264, 264}, {67, 99, 131}}) {
      for (GemmCase c : with_epilogues({.dtype = dtype, .m = m, .k = k, .n = {n}})) {
        c.rounds_sums = true;
        check(c, by_cublas);
        if (HasFatalFailure()) return;
      }
    }
  }
  check({.m = 300, .k = 576, .n = {576, 192, 33}, .has_bias = true, .rounds_sums = true},
        by_cublas);
  const GemmCase c{.m = 512, .k = 1024, .n = {768}, .out_is_f32 = true, .rounds_sums = true};
  const GemmTensors t(c);
  const cuda::GraphExec graph = cuda::capture_graph(
      stream_.get(), [&] { cublas->gemm(t.parts()[0].out, t.x_device, t.w_device[0], false); });
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_.get()));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  compare(t);
}

}  // namespace
}  // namespace minfer::test
