#include <cstdlib>

#include "kernels/backend.h"
#include "kernels/bench.h"
#include "tests/support/tensors.h"
#include "tests/support/test_data.h"

// Unless told otherwise, sanitizers end the process if an allocation is larger than they allow.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace minfer::test {
namespace {

template <typename F>
ErrorKind kind_of_error(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::Internal;
}

TEST(CpuBackend, NamesItselfAndRefusesUnknownIsas) {
  EXPECT_EQ(make_cpu_backend({.n_threads = 1, .isa = "base"})->name(), "cpu base, 1 thread");
  EXPECT_EQ(make_cpu_backend({.n_threads = 3, .isa = "base"})->name(), "cpu base, 3 threads");
  EXPECT_EQ(kind_of_error([] { make_cpu_backend({.n_threads = 1, .isa = "sse9"}); }),
            ErrorKind::Usage);
  EXPECT_EQ(kind_of_error([] { make_cpu_backend({.n_threads = -1, .isa = ""}); }),
            ErrorKind::Usage);
}

TEST(CpuBackend, TakesTheIsaFromTheEnvironment) {
  const char* set = std::getenv("MINFER_CPU_ISA");
  const std::string before = set != nullptr ? set : "";
  setenv("MINFER_CPU_ISA", "base", 1);
  EXPECT_EQ(make_cpu_backend({.n_threads = 1, .isa = ""})->name(), "cpu base, 1 thread");
  setenv("MINFER_CPU_ISA", "nonsense", 1);
  EXPECT_EQ(kind_of_error([] { make_cpu_backend(); }), ErrorKind::Usage);
  set != nullptr ? setenv("MINFER_CPU_ISA", before.c_str(), 1) : unsetenv("MINFER_CPU_ISA");
}

TEST(CpuBackend, KeepsWhatIsUploaded) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const HostTensor x = random_normal(1, {3, 5}, dtype);
    const HostTensor back = backend->download(backend->upload(x));
    EXPECT_EQ(back.view().dtype, dtype);
    EXPECT_EQ(doubles(back), doubles(x));
    EXPECT_EQ(values_of(*backend, backend->upload_vector(x)),
              values_of(*backend, backend->upload(to_f32_tensor(x))));
  }
}

TEST(CpuBackend, SaysHowMuchMemoryIsMissing) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  EXPECT_EQ(kind_of_error([&] { backend->allocate(DType::F32, {int64_t{1} << 50}); }),
            ErrorKind::Memory);
}

TEST(CpuBackend, RefusesShapesThatDoNotFit) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  const auto tensor = [&](const Shape& shape) { return backend->allocate(DType::F32, shape); };
  const Matrix w = backend->pack_matrix(random_normal(1, {6, 4}));
  EXPECT_EQ(kind_of_error([&] {
              backend->matmul(tensor({2, 6}), tensor({2, 5}), w);
            }),
            ErrorKind::Internal);
  EXPECT_EQ(kind_of_error([&] { backend->add(tensor({2}), tensor({3}), tensor({3})); }),
            ErrorKind::Internal);
  KvLayer cache = backend->make_kv_layer(DType::F16, 1, 4, /*n_pages=*/2);
  const auto appends = [&](const std::vector<int32_t>& pages, int64_t n_rows, int64_t pos) {
    const SequenceRows rows{n_rows, pos, pages};
    backend->kv_append(cache, tensor({2, 1, 4}), tensor({2, 1, 4}), {&rows, 1});
  };
  appends({1, 0}, 2, 127);
  for (const std::vector<int32_t>& pages : {std::vector<int32_t>{1}, {1, 2}, {1, -1}}) {
    EXPECT_EQ(kind_of_error([&] { appends(pages, 2, 127); }), ErrorKind::Internal);
  }
  EXPECT_EQ(kind_of_error([&] { appends({1, 0}, 1, 127); }), ErrorKind::Internal);
  EXPECT_EQ(kind_of_error([&] { appends({1, 0}, 2, -1); }), ErrorKind::Internal);
}

TEST(CpuBackend, AcceptsNoTokens) {
  const auto backend = make_cpu_backend({.n_threads = 2, .isa = ""});
  const Matrix w = backend->pack_matrix(random_normal(1, {6, 4}));
  const DeviceTensor x = backend->allocate(DType::F32, {0, 4});
  backend->rms_norm(x, x, backend->allocate(DType::F32, {4}), 1e-5f);
  backend->matmul(backend->allocate(DType::F32, {0, 6}), x, w);
  backend->silu(x, x);
}

TEST(CpuLimits, ArePlausible) {
  const CpuLimits limits = measure_cpu_limits(1, "");
  EXPECT_EQ(limits.n_threads, 1);
  EXPECT_GT(limits.read_bytes_per_second, 1e8);
  EXPECT_GT(limits.copy_bytes_per_second, 1e8);
  EXPECT_GT(limits.fma_flops_per_second, 1e8);
  EXPECT_GT(limits.barrier_seconds, 0);
  EXPECT_LT(limits.barrier_seconds, 1e-2);
}

}  // namespace
}  // namespace minfer::test
