#include "engine/forward.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/session.h"
#include "tests/support/float64_llama.h"
#include "tests/support/test_data.h"
#include "tests/support/test_pages.h"

namespace minfer::test {
namespace {

// The bar of the whole model: f32 accumulation in sums of up to 384 terms and two layers leaves
// about 1e-6; what is wrong in the mathematics shows far above this.
constexpr double kTolerance = 1e-4;

const std::vector<TokenId> kTokens = {1,   43,  512, 7,   1999, 300, 301, 302, 5,  5,   5,
                                      800, 900, 64,  128, 256,  2,   3,   4,   40, 1234};

struct File {
  const char* name;
  const char* path;
};
void PrintTo(const File& file, std::ostream* out) { *out << file.path; }

class TinyStories : public testing::TestWithParam<File> {
 protected:
  void SetUp() override {
    const auto path = data_dir() / "tinyllamas" / GetParam().path;
    MINFER_NEEDS(path);
    source_ = open_source(path.string());
    model_ = load_model(*source_, *backend_);
    reference_ = Float64Llama(*source_).run(kTokens);
  }

  ForwardState make_state() {
    return {make_kv_cache(*backend_, model_.spec, DType::F32, pages_.n_in_pool()),
            make_scratch(*backend_, model_.spec, 64), make_rope_tables(*backend_, model_.spec, 64)};
  }

  // Largest difference of logits, as a share of their rms.
  double logits_error(DType kv_dtype) {
    Session session(model_, *backend_, {.kv_dtype = kv_dtype});
    return max_difference(session.eval_all(kTokens), reference_.logits) / rms(reference_.logits);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TestPages pages_{64};
  std::unique_ptr<TensorSource> source_;
  Model model_;
  Float64Llama::Result reference_;
};

TEST_P(TinyStories, EveryLayerAgreesWithFloat64) {
  ForwardState state = make_state();
  int64_t n_seen = 0;
  const SequenceRows rows = pages_.rows(std::ssize(kTokens), 0);
  forward(*backend_, model_, state, kTokens, {&rows, 1}, [&](int64_t layer, Tensor x) {
    const std::vector<double>& expected = reference_.after_layer[size_t(layer)];
    const std::vector<float> ours = values_of(*backend_, x);
    EXPECT_LE(max_difference<float>(ours, expected), kTolerance * rms(expected))
        << "after layer " << layer;
    ++n_seen;
  });
  EXPECT_EQ(n_seen, model_.spec.n_layers());
}

// Also what the rows that were left out leave in the cache.
TEST_P(TinyStories, LastRowsAgreeWithFloat64) {
  const std::vector<double>& expected = reference_.after_layer.back();
  const int64_t n_tokens = std::ssize(kTokens), dim = model_.spec.dim;
  for (const int64_t n_last : {1, 3, int(n_tokens) - 1}) {
    ForwardState state = make_state();
    const auto agree = [&](Tensor x, int64_t end) {
      const auto from = expected.begin() + end * dim;
      const std::vector<double> last(from - x.n_elements(), from);
      EXPECT_LE(max_difference<float>(values_of(*backend_, x), last), kTolerance * rms(last))
          << n_last << " rows before " << end;
    };
    const auto first = std::span(kTokens).first(kTokens.size() - 1);
    const Tensor x =
        forward_last(*backend_, model_, state, first, pages_.rows(n_tokens - 1, 0), n_last);
    EXPECT_EQ(x.shape, (Shape{n_last, dim}));
    agree(x, n_tokens - 1);
    const SequenceRows next = pages_.rows(1, n_tokens - 1);
    agree(forward(*backend_, model_, state, std::span(kTokens).last(1), {&next, 1}), n_tokens);
  }
}

TEST_P(TinyStories, LogitsAgreeWithFloat64) {
  const double error = logits_error(DType::F32);
  RecordProperty("error", cat(error));
  EXPECT_LE(error, kTolerance);
}

// Keys and values are rounded to 11 bits. Measured: 2.3e-3 of the logits' rms (2.5e-3 for Q8_0), so
// twice that is let through.
TEST_P(TinyStories, HalfPrecisionCacheAddsLittle) {
  const double error = logits_error(DType::F16);
  RecordProperty("error", cat(error));
  EXPECT_LE(error, 5e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Files, TinyStories,
    testing::Values(File{"HfBf16", "TinyStories-656K/hf-bf16"},
                    File{"HfF32", "TinyStories-656K/hf-fp32"},
                    File{"GgufF16", "TinyStories-656K/gguf/TinyStories-656K.f16.gguf"},
                    File{"GgufQ8", "TinyStories-656K/gguf/tinystories-656k-q8_0.gguf"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace minfer::test
