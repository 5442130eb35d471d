#include "engine/calibrate.h"

#include <gtest/gtest.h>

#include "models/quantize.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_models.h"

namespace minfer {
namespace {

using namespace test;

class CalibrationTest : public ::testing::Test {
 protected:
  static constexpr CalibrationOptions kOptions = {.n_windows = 3, .window_tokens = 16};

  CalibrationTest() : backend_(make_cpu_backend({.n_threads = 1, .isa = ""})), model_(load()) {
    for (int i = 0; i < 60; ++i) tokens_.push_back(i * i % 40);
  }
  Model load() { return load_model(small_hf_llama(), *backend_); }

  std::unique_ptr<Backend> backend_;
  Model model_;
  std::vector<TokenId> tokens_;
};

// H of the first block's attention is what follows from the embedding and the norm alone.
TEST_F(CalibrationTest, FactorIsOfTheInputsOfTheWindows) {
  TextCalibration calibration(model_, *backend_, tokens_, kOptions, 1);
  HostTensor h(DType::F32, {16, 16});
  std::fill_n(h.as<float>(), 256, 0.0f);
  for (const int64_t begin : {0, 22, 44}) {  // spread evenly over 60 tokens
    const DeviceTensor x = backend_->allocate(DType::F32, {16, 16});
    backend_->embed(x, model_.weights.embedding, std::span(tokens_).subspan(size_t(begin), 16));
    backend_->rms_norm(x, x, model_.weights.layers[0].attn_norm, model_.config.norm_eps);
    const float* const rows = x.view().as<float>();
    for (int t = 0; t < 16; ++t) {
      for (int i = 0; i < 256; ++i) {
        h.as<float>()[i] += rows[t * 16 + i / 16] * rows[t * 16 + i % 16];
      }
    }
  }
  const InverseFactor expected = make_inverse_factor(h, 1);
  const InverseFactor* const found = calibration.factor("model.layers.0.self_attn.k_proj.weight");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->order, expected.order);
  for (size_t i = 0; i < expected.upper.size(); ++i) {
    EXPECT_NEAR(found->upper[i], expected.upper[i], 1e-3f * std::abs(expected.upper[0])) << i;
  }
}

TEST_F(CalibrationTest, OnlyLayersHaveFactors) {
  TextCalibration calibration(model_, *backend_, tokens_, kOptions, 1);
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight", "model.layers.x",
                           "model.layers.0.input_layernorm.weight", "model.layers.0"}) {
    EXPECT_EQ(calibration.factor(name), nullptr) << name;
  }
}

// What the second block sees comes out of the first one as it was quantized.
TEST_F(CalibrationTest, LaterLayersSeeQuantizedOnes) {
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const std::string later = "model.layers.1.mlp.down_proj.weight";
  Model quantized = load();
  HostTensor w = small_hf_llama().read(*small_hf_llama().find(up));
  const HostQuantizedMatrix rough =
      quantize_matrix(w, {.bits = 4, .group = 0, .asymmetric = false}, QuantizeMethod::Rtn, 1);
  for (int64_t row = 0; row < 24; ++row)
    dequantize_row(w.as<float>() + row * 16, rough.view(), row);
  quantized.weights.layers[0].w_up = backend_->pack_matrix(w.view());

  TextCalibration of_quantized(quantized, *backend_, tokens_, kOptions, 1);
  const InverseFactor expected = *of_quantized.factor(later);
  Model plain = load();
  TextCalibration of_plain(plain, *backend_, tokens_, kOptions, 1);
  EXPECT_NE(of_plain.factor(later)->upper, expected.upper);

  TextCalibration calibration(model_, *backend_, tokens_, kOptions, 1);
  ASSERT_NE(calibration.factor(up), nullptr);
  calibration.take_rows(up, 0, rough.view().rows(0, 8));
  calibration.take_rows(up, 8, rough.view().rows(8, 16));
  EXPECT_EQ(calibration.factor(later)->upper, expected.upper);
}

TEST_F(CalibrationTest, TextShorterThanAWindowIsUsage) {
  expect_error(ErrorKind::Usage, "one window takes 16", [&] {
    TextCalibration(model_, *backend_, std::span(tokens_).first(15), kOptions, 1);
  });
}

}  // namespace
}  // namespace minfer
