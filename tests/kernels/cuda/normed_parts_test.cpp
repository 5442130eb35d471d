#include "tests/kernels/cuda/plain_half.h"
#include "tests/support/cuda_tensors.h"

// Norms of what is added to the residual stream, norms in two steps, and what is made of logits, in
// cases small enough for the CPU (emulated/).
namespace minfer::test {
namespace {

class CudaNormedParts : public testing::TestWithParam<std::tuple<DType, int64_t, int64_t>> {};

// The steps one after another in float64: a post norm or none, the sum, and a norm, a copy or
// nothing behind it. The post norm errs relative to its result, the sum by a rounding.
TEST_P(CudaNormedParts, MatchFloat64) {
  MINFER_NEEDS_CUDA();
  const auto [dtype, n_rows, dim] = GetParam();
  const Shape shape{n_rows, dim};
  const HostTensor x = random_normal(1, shape), part = random_normal(2, shape, dtype);
  const HostTensor post = random_normal(3, {dim}, dtype), next = random_normal(4, {dim}, dtype);
  const DeviceTensor part_dev = to_device(part), post_dev = to_device(post),
                     next_dev = to_device(next);
  constexpr float kEps = 1e-5f, kScale = 0.3f;
  const double relative = (0.5 * double(dim) + 16) * kU;
  for (const bool has_post : {false, true}) {
    float64::Values added = doubles(part);
    if (has_post) added = float64::rms_norm(added, doubles(post), double(kEps));
    float64::Values sum = doubles(x);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double(kScale) * added[i];
    const float64::Values normed = float64::rms_norm(sum, doubles(next), double(kEps));
    NormWeights post_norm;
    if (has_post) post_norm = {post_dev, {}, NormKind::Rms, kEps};
    for (const NormKind kind : {NormKind::Rms, NormKind::None}) {
      for (const bool has_next : {true, false}) {
        SCOPED_TRACE(cat("post ", has_post, ", next ", has_next, " of kind ", int(kind)));
        const DeviceTensor stream = to_device(x), out = poisoned_device(dtype, shape);
        const Tensor weight = kind == NormKind::Rms ? next_dev.view() : Tensor();
        const NormArgs args{
            .out = out, .x = stream, .weight = weight, .bias = {}, .kind = kind, .eps = kEps};
        cuda::add_normed_part(nullptr, stream, part_dev, post_norm, kScale,
                              has_next ? &args : nullptr);
        const HostTensor got = to_host(stream), got_out = to_host(out);
        for (int64_t i = 0; i < n_rows * dim; ++i) {
          const size_t at = size_t(i);
          const double error = relative * std::abs(added[at]) + 2 * kU * std::abs(sum[at]);
          ASSERT_NEAR(double(got.at(i)), sum[at], error + 0x1p-126) << "element " << i;
          if (!has_next) continue;
          const double want = kind == NormKind::Rms ? normed[at] : sum[at];
          ASSERT_NEAR(double(got_out.at(i)), want,
                      rounding(dtype, want) + 4 * relative * (std::abs(want) + 1))
              << "element " << i;
        }
      }
    }
  }
}

// In two steps, as ranks do it, and with weights of each head.
TEST_P(CudaNormedParts, SumsOfSquaresAndWeightsOfEachHead) {
  MINFER_NEEDS_CUDA();
  const auto [dtype, n_rows, dim] = GetParam();
  constexpr float kEps = 1e-5f;
  const Shape shape{3 * n_rows, dim};
  const HostTensor x = random_normal(1, shape, dtype), weight = random_normal(2, {3, dim}, dtype);
  const DeviceTensor x_dev = to_device(x), w = to_device(weight);
  const double relative = (0.5 * double(dim) + 16) * kU;
  const DeviceTensor sums = poisoned_device(DType::F32, {3 * n_rows, 2}), out = to_device(x);
  cuda::sum_squares(nullptr, sums, x_dev);
  const Tensor first = w.view().rows(0, 1).reshaped({dim});
  cuda::rms_norm_by_sums(nullptr, out, sums, first, kEps);
  const HostTensor got = to_host(out);
  float64::Values first_weights = doubles(weight);
  first_weights.resize(size_t(dim));
  const float64::Values want = float64::rms_norm(doubles(x), first_weights, double(kEps));
  const DeviceTensor by_head = poisoned_device(dtype, shape);
  cuda::rms_norm(nullptr, by_head, x_dev, w, kEps);
  const HostTensor got_by_head = to_host(by_head);
  for (int64_t i = 0; i < 3 * n_rows * dim; ++i) {
    const double value = want[size_t(i)];
    ASSERT_NEAR(double(got.at(i)), value,
                rounding(dtype, value) + relative * (std::abs(value) + 1));
    const double of_first = double(weight.at(i % dim)), own = double(weight.at(i % (3 * dim)));
    if (std::abs(of_first) < 0x1p-10) continue;
    const double expected = value / of_first * own;
    ASSERT_NEAR(double(got_by_head.at(i)), expected,
                rounding(dtype, expected) + relative * (std::abs(expected) + 1));
  }
}

// tanh errs by a few ulp, and so do the scale and the cap.
TEST(CudaLogits, ScalesAndSoftCapsMatchFloat64) {
  MINFER_NEEDS_CUDA();
  for (const int64_t n : {1, 7, 4099}) {
    const HostTensor x = random_normal(1, {2, n});
    for (const float cap : {0.0f, 0.5f, 20.0f}) {
      const DeviceTensor logits = to_device(x);
      cuda::scale_and_cap(nullptr, logits, -1.5f, cap);
      const HostTensor got = to_host(logits);
      for (int64_t i = 0; i < 2 * n; ++i) {
        const double scaled = -1.5 * double(x.at(i)), c = double(cap);
        const double want = cap == 0 ? scaled : c * std::tanh(scaled / c);
        ASSERT_NEAR(double(got.at(i)), want, 16 * kU * std::abs(want) + 0x1p-126) << i;
      }
    }
  }
}

// Rows in registers and rows that are too odd for that.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaNormedParts,
                         testing::Combine(testing::Values(DType::F16, DType::BF16),
                                          testing::Values(1, 3), testing::Values(8, 37, 640, 3000)),
                         [](const auto& info) {
                           return cat(std::get<0>(info.param), "_", std::get<1>(info.param), "_",
                                      std::get<2>(info.param));
                         });

}  // namespace
}  // namespace minfer::test
