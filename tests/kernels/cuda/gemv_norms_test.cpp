#include "tests/kernels/cuda/gemv_caller.h"

// GEMVs behind norms, with every epilogue.
namespace minfer::test {
namespace {

class CudaGemvNorms : public testing::TestWithParam<DType> {};

TEST_P(CudaGemvNorms, NormsBiasesAndEpilogues) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  for (const int64_t in_dim : {96, 168, 576, 4096, 11008}) {
    for (const Format& format : {Format{half}, of_group(DType::U4, DType::F16, false, kRow),
                                 of_group(DType::U8, DType::F32, true, kRow)}) {
      const Weights a(format, 33, in_dim, 1), b(format, 33, in_dim, 2);
      for (const int norm : {0, 1, 2}) {
        for (const Epilogue epilogue :
             {Epilogue::Store, Epilogue::Accumulate, Epilogue::SwiGlu, Epilogue::GeGluErf,
              Epilogue::GeGluTanh, Epilogue::GeluErf, Epilogue::GeluTanh}) {
          // An epilogue does not see how long its sums were.
          if (in_dim > 576 && epilogue > Epilogue::SwiGlu) continue;
          for (const int64_t n_tokens : {1, 3, 8}) {
            Call call = call_of(half, n_tokens, in_dim);
            call.norm = norm;
            call.epilogue = epilogue;
            call.has_bias = n_tokens != 3;
            const bool is_f32 =
                epilogue == Epilogue::Accumulate || (epilogue == Epilogue::Store && norm == 1);
            if (is_f32) call.out = DType::F32;
            SCOPED_TRACE(cat("norm ", norm, ", epilogue ", int(epilogue)));
            Caller(call).expect_match({&a, &b});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(CudaGemvNorms, RmsNormOfOddRows) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  struct Case {
    int64_t n_tokens;
    std::vector<int> kinds;
  };
  std::vector<Case> cases;
  for (const int kind : {0, 3, 4, 7}) cases.push_back({1, {kind}});
  for (const auto& kinds : std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4}, {6}}) {
    cases.push_back({2, kinds});
  }
  // Staged without their scale, all of them
  for (const int64_t n_tokens : {3, 4, 5, 7, 8}) cases.push_back({n_tokens, {3, 4, 5, 6}});
  // and not, because of one or more.
  for (const int first : {0, 3}) {
    cases.push_back({8, {first, first + 1, first + 2, 6, 7}});
  }
  cases.push_back({8, {0, 1, 2, 3, 4, 5, 6, 7}});
  for (const int64_t in_dim : {136, 576, 4096}) {
    for (const Format& format : {Format{half}, of_group(DType::U8, DType::F16, false, kRow),
                                 of_group(DType::U4, DType::F16, false, kRow),
                                 of_group(DType::U4, DType::F32, true, kRow)}) {
      const Weights w(format, 33, in_dim, 1);
      for (const auto& [n_tokens, kinds] : cases) {
        Call call = call_of(half, n_tokens, in_dim);
        call.norm = 1;
        call.out = DType::F32;
        call.has_bias = true;
        call.odd_rows = kinds;
        Caller(call).expect_match({&w});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Sums of activations, where they are made while rows are staged, and where they are not.
TEST_P(CudaGemvNorms, RmsNormOfEveryUnit) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  std::vector<Format> formats = product_formats();
  for (const int64_t group : {16, 32, 48, 64, 96}) {
    formats.push_back(of_group(DType::U4, DType::F16, false, group));
    formats.push_back(of_group(DType::U4, DType::F32, true, group));
  }
  for (const Format& format : kTableFormats) {
    if (format.group == 32) formats.push_back(format);  // the plain kernel takes others
  }
  for (const Format& format : formats) {
    const int64_t in_dim = format.scales == DType::U8 ? 768 : 576;
    const Weights w(format, 33, in_dim, 1);
    for (const int64_t n_tokens : {2, 3, 4, 5, 7}) {
      Call call = call_of(half, n_tokens, in_dim);
      call.norm = 1;
      Caller(call).expect_match({&w});
      if (HasFatalFailure()) return;
    }
  }
}

struct BadValue {
  float value;
  int64_t column;
  bool has_zero_weight;  // of the norm
};

// A value that is not finite, in row 1 of x, shows in all outputs of that row and in no other.
void expect_shown(const Weights& w, DType half, int64_t n_tokens, const BadValue& bad) {
  const int64_t n_columns = w.matrix.in_dim, n_out = w.matrix.out_dim;
  const auto run = [&](float value) {
    const HostTensor x = random_normal(1, {n_tokens, n_columns}, DType::F32, 2);
    static_cast<float*>(x.view().data)[n_columns + bad.column] = value;
    const HostTensor weight = random_normal(2, {n_columns}, half);
    if (bad.has_zero_weight) static_cast<uint16_t*>(weight.view().data)[bad.column] = 0;
    const DeviceTensor x_device = to_device(x), weight_device = to_device(weight);
    const DeviceTensor out = poisoned_device(DType::F32, {n_tokens, n_out});
    const cuda::GemvNorm norm{weight_device, {}, kEps, true};
    const cuda::GemvPart part{&w.matrix, out, {}};
    MINFER_CUDA_CHECK(cudaDeviceSynchronize());
    cuda::gemv(stream(), x_device, &norm, {&part, 1}, Epilogue::Store);
    return to_host(out);
  };
  const HostTensor clean = run(0), out = run(bad.value);
  for (int64_t i = 0; i < n_tokens * n_out; ++i) {
    if (i / n_out == 1) {
      ASSERT_FALSE(std::isfinite(out.at(i))) << w.format << " of " << bad.value << ", " << i;
    } else {  // maybe rounded otherwise
      ASSERT_NEAR(out.at(i), clean.at(i), 0.05) << w.format << " of " << bad.value << ", " << i;
    }
  }
}

TEST_P(CudaGemvNorms, RmsNormOfWhatIsNotFinite) {
  MINFER_NEEDS_CUDA();
  const DType half = GetParam();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<BadValue> values;
  for (const float value : {std::nanf(""), infinity, -infinity}) {
    for (const int64_t column : {5, 575}) {
      values.insert(values.end(), {{value, column, false}, {value, column, true}});
    }
  }
  for (const Format& format : {Format{half}, of_group(DType::U8, DType::F16, false, 64),
                               of_group(DType::U4, DType::F16, false, 64)}) {
    const Weights w(format, 33, 576, 1);
    for (const BadValue& bad : values) {
      for (const int64_t n_tokens : {3, 8}) expect_shown(w, half, n_tokens, bad);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, CudaGemvNorms, testing::Values(DType::F16, DType::BF16),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace minfer::test
