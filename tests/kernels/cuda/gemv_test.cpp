#include "tests/kernels/cuda/gemv_caller.h"

namespace minfer::test {
namespace {

// A format in each of its kernels but those of experts (GemvUse).
void expect_every_use(DType half, int64_t in_dim, const Format& format) {
  for (const auto& [norm, n_tokens] : {std::pair{0, 1}, {0, 5}, {1, 1}, {1, 5}, {2, 3}}) {
    Call call = call_of(half, n_tokens, in_dim);
    call.norm = norm;
    call.any_scale = true;  // the plain kernel takes some of the formats
    expect_gemv(call, format, 36);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class CudaGemv : public testing::TestWithParam<DType> {};

TEST_P(CudaGemv, EveryQuantizedFormat) {
  MINFER_NEEDS_CUDA();
  for (const DType codes : {DType::U4, DType::U8}) {
    for (const DType scales : {DType::F16, DType::F32}) {
      for (const bool mins : {false, true}) {
        for (const int64_t group : {int64_t{16}, int64_t{32}, int64_t{48}, int64_t{64},
                                    int64_t{128}, int64_t{512}, kRow}) {
          expect_every_use(GetParam(), 1536, of_group(codes, scales, mins, group));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CudaGemv, EveryTable) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : kTableFormats) {
    for (const int64_t in_dim : {96, 1536}) {
      expect_every_use(GetParam(), in_dim, format);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaGemv, EveryTypeOfProducts) {
  MINFER_NEEDS_CUDA();
  for (const Format& format : product_formats()) {
    for (const int64_t in_dim : {256, 1536}) {
      expect_every_use(GetParam(), in_dim, format);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaGemv, Shapes) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  // Rows of 172 are not aligned: the plain kernel takes them.
  for (const int64_t in_dim : {8, 96, 160, 168, 172, 576, 1536, 4096, 11008}) {
    const int64_t group = in_dim % 32 == 0 ? 32 : kRow;
    for (const Format& format : {Format{half}, of_group(DType::U4, DType::F16, false, group),
                                 of_group(DType::U8, DType::F16, false, kRow),
                                 of_group(DType::U4, DType::F32, true, group)}) {
      for (const int64_t out_dim : {1, 15, 16, 17, 100}) {
        for (const int64_t n_tokens : {1, 2, 5, 8}) {
          expect_gemv(call_of(half, n_tokens, in_dim), format, out_dim, 20);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CudaGemv, FormatsThatOnlyThePlainKernelTakes) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  for (const Format& format : {Format{DType::F32}, Format{DType::F16}, Format{DType::BF16}}) {
    for (const int64_t in_dim : {int64_t{1}, int64_t{172}, int64_t{1023}}) {
      expect_gemv(call_of(half, 3, in_dim), format, 35);
    }
    expect_gemv(call_of(half, 2, 64), format, 35);
  }
}

TEST_P(CudaGemv, LlamaLayer) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  for (const Format& format :
       {Format{half}, of_group(DType::U8, DType::F16, false, kRow),
        of_group(DType::U4, DType::F16, false, 64), of_group(DType::U4, DType::F32, true, 32)}) {
    const Weights q(format, 4096, 4096, 1), k(format, 1024, 4096, 2), v(format, 1024, 4096, 3);
    const Weights gate(format, 11008, 4096, 4), up(format, 11008, 4096, 5);
    const Weights down(format, 4096, 11008, 6), o(format, 4096, 4096, 7);
    for (const int64_t n_tokens : {1, 4, 8}) {
      Call qkv = call_of(half, n_tokens, 4096);
      qkv.norm = 1;
      Caller(qkv).expect_match({&q, &k, &v}, 24);
      Call swiglu = qkv;
      swiglu.epilogue = Epilogue::SwiGlu;
      Caller(swiglu).expect_match({&gate, &up}, 24);
      Call add = call_of(half, n_tokens, 11008);
      add.epilogue = Epilogue::Accumulate;
      add.out = DType::F32;
      Caller(add).expect_match({&down}, 24);
      add.in_dim = 4096;
      Caller(add).expect_match({&o}, 24);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaGemv, PartsOfSeveralFormats) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  const Weights a(of_group(DType::U4, DType::F32, true, 32), 50, 512, 1);
  const Weights b(of_group(DType::U4, DType::F32, true, 32), 20, 512, 2);
  const Weights c(of_group(DType::U8, DType::F32, false, 16), 70, 512, 3);
  const Weights gate(Format{half}, 50, 512, 4);
  Caller(call_of(half, 4, 512)).expect_match({&a, &b, &c});
  Caller(call_of(half, 4, 512)).expect_match({&a, &c, &b});
  Call swiglu = call_of(half, 4, 512);
  swiglu.epilogue = Epilogue::SwiGlu;
  Caller(swiglu).expect_match({&gate, &a});
}

// More input tokens than shared memory holds at once.
TEST_P(CudaGemv, WideInputs) {
  MINFER_NEEDS_CUDA();
  for (const int64_t in_dim : {28672, 65536}) {
    for (const Format& format : {Format{GetParam()}, of_group(DType::U4, DType::F16, false, 64)}) {
      expect_gemv(call_of(GetParam(), 8, in_dim), format, 20);
      // As many rows fit at once as divide seven with one left, or one: the kernel of one row ends
      // it.
      Call normed = call_of(GetParam(), 7, in_dim);
      normed.norm = 1;
      normed.any_scale = true;
      expect_gemv(normed, format, 20);
    }
  }
}

// The same bits when the call is repeated, and for a token alone or among eight.
TEST_P(CudaGemv, Deterministic) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  for (const Format& format : {Format{half}, of_group(DType::U8, DType::F16, false, kRow),
                               of_group(DType::U4, DType::F32, true, 32)}) {
    const Weights w(format, 3000, 1536, 1);
    const DeviceTensor x = to_device(random_normal(7, {8, 1536}, half));
    const auto run = [&](int64_t begin, int64_t n) {
      const DeviceTensor out = poisoned_device(DType::F32, {n, 3000});
      MINFER_CUDA_CHECK(cudaDeviceSynchronize());
      const cuda::GemvPart part{&w.matrix, out, {}};
      cuda::gemv(stream(), x.view().rows(begin, n), nullptr, {&part, 1}, Epilogue::Store);
      return to_host(out);
    };
    const HostTensor all = run(0, 8), again = run(0, 8), one = run(6, 1);
    EXPECT_EQ(0, std::memcmp(all.view().data, again.view().data, size_t(all.view().n_bytes())));
    EXPECT_EQ(
        0, std::memcmp(all.view().rows(6, 1).data, one.view().data, size_t(one.view().n_bytes())));
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, CudaGemv, testing::Values(DType::F16, DType::BF16),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace minfer::test
