#include "engine/calibrate.h"

#include <gtest/gtest.h>

#include "engine/session.h"
#include "loaders/quantized_dir.h"
#include "models/hf_config_text.h"
#include "models/quantize/quantize.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_models.h"
#include "tests/support/float64_llama.h"
#include "tests/support/small_models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace minfer {
namespace {

using namespace test;

// What a matrix sees of a window: the residual stream in front of its half of the block, and its
// input.
struct Seen {
  HostTensor stream, input;
};

class CalibrationTest : public ::testing::Test {
 protected:
  static constexpr int64_t kWindow = 16;
  static constexpr TokenId kBos = 7;
  static constexpr CalibrationOptions kOptions = {
      .n_windows = 3, .window_tokens = kWindow, .bos = kBos};

  CalibrationTest() : backend_(make_cpu_backend({.n_threads = 1, .isa = ""})), model_(load()) {
    for (int i = 0; i < 60; ++i) tokens_.push_back(i * i % 40);
  }
  Model load() { return load_model(small_hf_llama(), *backend_); }

  // In each of the windows, which are spread evenly over 60 tokens.
  std::vector<Seen> seen_by(const Model& model, int64_t layer, BlockInput which) {
    ForwardState state = {.kv = make_kv_cache(*backend_, model.spec, DType::F16, 1),
                          .scratch = make_scratch(*backend_, model.spec, kWindow),
                          .rope_tables = make_rope_tables(*backend_, model.spec, kWindow)};
    const int32_t page = 0;
    const SequenceRows rows{kWindow, 0, {&page, 1}};
    const Batch batch(&rows, 1);
    const bool in_ffn = which == BlockInput::Ffn || which == BlockInput::FfnOutput;
    std::vector<Seen> seen;
    for (const size_t begin : {0, 22, 44}) {
      std::vector<TokenId> window(&tokens_[begin], &tokens_[begin] + kWindow);
      window.front() = kBos;
      const Tensor x = embed_tokens(*backend_, model, state, window, batch);
      for (int64_t half = 0; half < 2 * layer + int64_t{in_ffn}; ++half) {
        const BlockInput end = half % 2 == 0 ? BlockInput::AttentionOutput : BlockInput::FfnOutput;
        const Tensor input = block_input(*backend_, model, state, half / 2, end, x, batch);
        add_block_output(*backend_, model, half / 2, end, x, input);
      }
      HostTensor stream = backend_->download(x);
      seen.push_back({std::move(stream), backend_->download(block_input(*backend_, model, state,
                                                                        layer, which, x, batch))});
    }
    return seen;
  }

  std::unique_ptr<Backend> backend_;
  Model model_;
  std::vector<TokenId> tokens_;
};

// sum over windows and tokens of a[i] b[j], [a's width, b's width]
class ProductSum {
 public:
  void add(const HostTensor& a, const HostTensor& b) {
    const int64_t rows = a.view().shape[1], columns = b.view().shape[1];
    if (!sum_.view()) {
      sum_ = HostTensor(DType::F32, {rows, columns});
      std::fill_n(sum_.as<float>(), rows * columns, 0.0f);
    }
    for (int64_t t = 0; t < a.view().shape[0]; ++t) {
      for (int64_t i = 0; i < rows * columns; ++i) {
        sum_.as<float>()[i] += a.at(t * rows + i / columns) * b.at(t * columns + i % columns);
      }
    }
  }
  const HostTensor& sum() const { return sum_; }

 private:
  HostTensor sum_;
};

void expect_near(const InverseFactor& found, const InverseFactor& expected) {
  EXPECT_EQ(found.order, expected.order);
  for (size_t i = 0; i < expected.upper.size(); ++i) {
    EXPECT_NEAR(found.upper[i], expected.upper[i], 2e-3f * std::abs(expected.upper[0])) << i;
  }
}

TEST_F(CalibrationTest, FactorsAreOfTheInputsOfTheWindows) {
  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  ProductSum h;
  for (const Seen& seen : seen_by(model_, 0, BlockInput::Attention)) h.add(seen.input, seen.input);
  TextCalibration calibration(model_, *backend_, tokens_, kOptions, 1);
  const HostTensor rows = small_hf_llama().read(*small_hf_llama().find(name));
  for (const int64_t group : {16, 8, 0}) {
    const std::optional<GptqInputs> found = calibration.inputs(name, group, 0, rows);
    ASSERT_TRUE(found);
    const int64_t columns = group == 0 ? 16 : group;
    expect_near(*found->feedback, make_inverse_factor(h.sum(), columns, kFeedbackDamping, 1));
    expect_near(*found->correction, make_inverse_factor(h.sum(), columns, kCorrectionDamping, 1));
    for (int64_t i = 0; i < 8 * 16; ++i) EXPECT_EQ(found->drift.as<const float>()[i], 0);
  }
}

TEST_F(CalibrationTest, OnlyLayersHaveInputs) {
  TextCalibration calibration(model_, *backend_, tokens_, kOptions, 1);
  const HostTensor rows = random_normal(1, {4, 16}, DType::F32, 1.0f);
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight", "model.layers.x",
                           "model.layers.0.input_layernorm.weight", "model.layers.0"}) {
    EXPECT_FALSE(calibration.inputs(name, 16, 0, rows)) << name;
  }
}

// What comes behind a quantized matrix sees what comes out of it, and is told how far its own
// outputs, and the stream where they are added to it, are from those of the model as it was.
TEST_F(CalibrationTest, LaterMatricesSeeQuantizedOnes) {
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  Model quantized = load();
  HostTensor w = small_hf_llama().read(*small_hf_llama().find(up));
  const HostQuantizedMatrix rough =
      quantize_matrix(w, {.bits = 4, .group = 0, .asymmetric = false}, QuantizeMethod::Rtn, 1);
  for (int64_t row = 0; row < 24; ++row) {
    dequantize_row(w.as<float>() + row * 16, rough.view(), row);
  }
  quantized.weights.layers[0].w_up.weight = backend_->pack_matrix(w.view());

  struct Later {
    std::string name;
    int64_t layer;
    BlockInput input;
    bool is_added;
  };
  for (const Later& later :
       {Later{"model.layers.0.mlp.down_proj.weight", 0, BlockInput::FfnOutput, true},
        Later{"model.layers.1.self_attn.v_proj.weight", 1, BlockInput::Attention, false},
        Later{"model.layers.1.self_attn.o_proj.weight", 1, BlockInput::AttentionOutput, true},
        Later{"model.layers.1.mlp.gate_proj.weight", 1, BlockInput::Ffn, false}}) {
    SCOPED_TRACE(later.name);
    const HostTensor weights = small_hf_llama().read(*small_hf_llama().find(later.name));
    const int64_t out_dim = weights.view().shape[0], in_dim = weights.view().shape[1];
    const std::vector<Seen> of_original = seen_by(model_, later.layer, later.input),
                            of_quantized = seen_by(quantized, later.layer, later.input);
    ProductSum h, drift;
    for (size_t i = 0; i < of_original.size(); ++i) {
      const Seen &a = of_original[i], &b = of_quantized[i];
      h.add(b.input, b.input);
      HostTensor missing(DType::F32, {kWindow, out_dim});
      for (int64_t j = 0; j < kWindow * out_dim; ++j) {
        const int64_t t = j / out_dim, row = j % out_dim;
        float sum = later.is_added ? a.stream.at(j) - b.stream.at(j) : 0.0f;
        for (int64_t k = 0; k < in_dim; ++k) {
          sum += weights.at(row * in_dim + k) *
                 (a.input.at(t * in_dim + k) - b.input.at(t * in_dim + k));
        }
        missing.as<float>()[j] = sum;
      }
      drift.add(missing, b.input);
    }

    Model used_up = load();
    TextCalibration calibration(used_up, *backend_, tokens_, kOptions, 1);
    const HostTensor up_rows = small_hf_llama().read(*small_hf_llama().find(up));
    ASSERT_TRUE(calibration.inputs(up, 16, 0, up_rows));
    calibration.take_rows(up, 0, rough.view().rows(0, 8));
    calibration.take_rows(up, 8, rough.view().rows(8, 16));
    for (const int64_t begin : {int64_t{0}, out_dim / 2}) {
      const std::optional<GptqInputs> found =
          calibration.inputs(later.name, in_dim, begin, weights.view().rows(begin, out_dim / 2));
      ASSERT_TRUE(found);
      expect_near(*found->feedback, make_inverse_factor(h.sum(), in_dim, kFeedbackDamping, 1));
      float largest = 0;
      for (int64_t i = 0; i < out_dim * in_dim; ++i) {
        largest = std::max(largest, std::abs(drift.sum().at(i)));
      }
      EXPECT_GT(largest, 0);
      for (int64_t i = 0; i < out_dim / 2 * in_dim; ++i) {
        EXPECT_NEAR(found->drift.as<const float>()[i], drift.sum().at(begin * in_dim + i),
                    1e-3f * largest)
            << i;
      }
    }
  }
}

HostTensor rows_of_all(const MemorySource& source, const std::vector<std::string>& names) {
  std::vector<float> values;
  int64_t n_columns = 0;
  for (const std::string& name : names) {
    const HostTensor x = source.read(*source.find(name));
    n_columns = x.view().shape[1];
    values.insert(values.end(), x.as<float>(), x.as<float>() + x.view().n_elements());
  }
  HostTensor all(DType::F32, {std::ssize(values) / n_columns, n_columns});
  std::copy(values.begin(), values.end(), all.as<float>());
  return all;
}

// Rows of a tensor that holds several matrices, as Phi-3's do, go to each of them: what comes
// behind sees the same as behind the matrices one by one.
TEST_F(CalibrationTest, FusedMatricesAreTakenAsSingleOnes) {
  const MemorySource single = small_hf_llama();
  MemorySource fused = small_hf_llama();
  fused.metadata.set("architectures", std::vector<std::string>{"Phi3ForCausalLM"});
  fused.metadata.set("rms_norm_eps", 1e-6);
  const auto names = [](int layer) {
    const std::string at = cat("model.layers.", layer, ".self_attn.");
    return std::vector<std::string>{at + "q_proj.weight", at + "k_proj.weight",
                                    at + "v_proj.weight"};
  };
  for (const int i : {0, 1}) {
    const std::string at = cat("model.layers.", i, ".mlp.");
    fused.add(cat("model.layers.", i, ".self_attn.qkv_proj.weight"), rows_of_all(single, names(i)));
    fused.add(at + "gate_up_proj.weight",
              rows_of_all(single, {at + "gate_proj.weight", at + "up_proj.weight"}));
  }
  const QuantizeFormat format = {.bits = 4, .group = 0, .asymmetric = false};
  const auto rough = [&](const HostTensor& w) {
    return quantize_matrix(w, format, QuantizeMethod::Rtn, 1);
  };
  const std::string later = "model.layers.0.self_attn.o_proj.weight";
  const HostTensor of_later = single.read(*single.find(later));
  const auto drift = [&](const MemorySource& source, const auto& take) {
    Model model = load_model(source, *backend_);
    TextCalibration calibration(model, *backend_, tokens_, kOptions, 1);
    take(calibration);
    const std::optional<GptqInputs> found = calibration.inputs(later, 16, 0, of_later);
    const float* const values = found.value().drift.as<const float>();
    return std::vector<float>(values, values + 16 * 16);
  };
  const std::vector<float> one_by_one = drift(single, [&](TextCalibration& calibration) {
    for (const std::string& name : names(0)) {
      const HostTensor w = single.read(*single.find(name));
      calibration.inputs(name, 16, 0, w);
      calibration.take_rows(name, 0, rough(w).view());
    }
  });
  const std::vector<float> together = drift(fused, [&](TextCalibration& calibration) {
    const std::string name = "model.layers.0.self_attn.qkv_proj.weight";
    const HostTensor w = fused.read(*fused.find(name));
    calibration.inputs(name, 16, 0, w);
    const HostQuantizedMatrix codes = rough(w);
    calibration.take_rows(name, 0, codes.view().rows(0, 20));  // up to the middle of the keys
    calibration.take_rows(name, 20, codes.view().rows(20, 12));
  });
  EXPECT_GT(*std::max_element(together.begin(), together.end()), 0);
  EXPECT_EQ(together, one_by_one);
}

// Each expert's down sees the hidden layers of the tokens that choose it, which the expert's own
// gate and up decide, and what comes behind sees all quantized experts.
TEST(MoeCalibration, EachExpertHasItsOwnInput) {
  const auto source = open_source(fixtures_dir() / "models/mixtral-bf16");
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(i * i % 40);
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  const std::string later = "model.layers.1.self_attn.q_proj.weight";
  const auto read = [&](const std::string& name) {
    return to_f32_tensor(source->read(*source->find(name)));
  };
  // The largest drifts of the down matrices of all experts, and of what comes behind them.
  const auto drifts = [&](const std::string& quantized) {
    Model model = load_model(*source, *backend);
    TextCalibration calibration(model, *backend, tokens, {.n_windows = 2, .window_tokens = 16}, 1);
    const auto drift_of = [&](const std::string& name) {
      const HostTensor w = read(name);
      const Tensor drift = calibration.inputs(name, 0, 0, w).value().drift;
      float most = 0;
      for (int64_t i = 0; i < drift.n_elements(); ++i) {
        most = std::max(most, std::abs(drift.as<const float>()[i]));
      }
      if (name == quantized) {
        const QuantizeFormat format = {.bits = 4, .group = 0, .asymmetric = false};
        calibration.take_rows(name, 0, quantize_matrix(w, format, QuantizeMethod::Rtn, 1).view());
      }
      return most;
    };
    std::vector<float> found;
    const int n = int(model.spec.layer(0).n_experts);
    for (int e = 0; e < n; ++e) {
      for (const char* which : {".w1.weight", ".w3.weight"}) drift_of(cat(experts, e, which));
    }
    for (int e = 0; e < n; ++e) found.push_back(drift_of(cat(experts, e, ".w2.weight")));
    found.push_back(drift_of(later));
    return found;
  };
  for (const float drift : drifts("")) EXPECT_LT(drift, 1e-4);
  const std::vector<float> of_gate = drifts(experts + "2.w1.weight");
  for (size_t e = 0; e + 1 < of_gate.size(); ++e) {
    EXPECT_EQ(of_gate[e] > 1e-3, e == 2) << e << ": " << of_gate[e];
  }
  EXPECT_GT(of_gate.back(), 1e-2);
  EXPECT_GT(drifts(experts + "2.w2.weight").back(), 1e-2);
}

TEST_F(CalibrationTest, TextShorterThanAWindowIsUsage) {
  expect_error(ErrorKind::Usage, "one window takes 16", [&] {
    TextCalibration(model_, *backend_, std::span(tokens_).first(15), kOptions, 1);
  });
}

// Blocks whose outputs are scaled, normed or added together: what is quantized with the text that
// it is then evaluated on is closer to the original than what is rounded.
TEST(CalibrationOfBlocks, ErrorsAreSmallerThanOfRounding) {
  for (const char* name :
       {"granite-f16", "gemma3-old-keys-f16", "olmo2-f16", "phi-f16", "stablelm-parallel-f16",
        "qwen3-head16-bf16", "gpt-oss-bf16", "gpt-neox-f16", "cohere-bf16", "mixtral-bf16"}) {
    SCOPED_TRACE(name);
    const FixtureModel fixture = fixture_model(cat("models/", name));
    const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
    const auto source = open_source(fixture.path);
    const QuantizePlan plan = plan_quantization(*source, {.group = 0});
    const auto error_of = [&](Calibration* calibration) {
      const TempDir dir;
      const std::string path = dir.path() / "out";
      const auto no_progress = [](int64_t, int64_t) {};
      const auto writer =
          make_quantized_dir_writer({.output = path,
                                     .replace = false,
                                     .tensors = plan.outputs(),
                                     .config = hf_config_text(plan.spec, DType::F32),
                                     .tied_output = plan.spec.tied_output,
                                     .source_dir = "",
                                     .metadata = {},
                                     .progress = no_progress});
      quantize_model(*source, plan, QuantizeMethod::Rtn, 1, *writer, no_progress, calibration);
      writer->finish("{}\n");
      const Model model = load_model(path, *backend);
      Session session(model, *backend, {.kv_dtype = DType::F32});
      return max_difference(session.eval_all(fixture.ids), fixture.logits) / rms(fixture.logits);
    };
    Model model = load_model(*source, *backend);
    const CalibrationOptions options = {.n_windows = 1, .window_tokens = 24, .bos = -1};
    TextCalibration calibration(model, *backend, fixture.ids, options, 1);
    const double calibrated = error_of(&calibration), rounded = error_of(nullptr);
    EXPECT_LT(calibrated, 0.3 * rounded);
    RecordProperty(name, cat(calibrated, " of ", rounded));
  }
}

// GPT-NeoX's files have queries, keys and values head by head, Cohere's rotary pairs as neighbours.
// If a row went to a place that is not its own, finer codes would not bring what comes behind
// nearer to the original.
TEST(CalibrationOfBlocks, RowsThatChangePlacesAreFollowed) {
  const auto backend = make_cpu_backend({.n_threads = 1, .isa = ""});
  const std::string of_neox = "gpt_neox.layers.0.attention.",
                    of_cohere = "model.layers.0.self_attn.";
  struct Case {
    const char* fixture;
    std::vector<std::string> taken;
    std::string later;
  };
  for (const Case& c :
       {Case{"gpt-neox-f16", {of_neox + "query_key_value.weight"}, of_neox + "dense.weight"},
        Case{"cohere-bf16",
             {of_cohere + "q_proj.weight", of_cohere + "k_proj.weight"},
             of_cohere + "o_proj.weight"}}) {
    SCOPED_TRACE(c.fixture);
    const FixtureModel fixture = fixture_model(cat("models/", c.fixture));
    const auto source = open_source(fixture.path);
    const auto read = [&](const std::string& name) {
      return to_f32_tensor(source->read(*source->find(name)));
    };
    const auto drift_behind = [&](int bits) {
      Model model = load_model(*source, *backend);
      TextCalibration calibration(model, *backend, fixture.ids,
                                  {.n_windows = 1, .window_tokens = 24}, 1);
      const QuantizeFormat format = {.bits = bits, .group = 0, .asymmetric = false};
      for (const std::string& name : c.taken) {
        const HostTensor w = read(name);
        const int64_t some = w.view().shape[0] / 2 + 1, rest = w.view().shape[0] - some;
        calibration.inputs(name, 0, 0, w);
        const HostQuantizedMatrix codes = quantize_matrix(w, format, QuantizeMethod::Rtn, 1);
        calibration.take_rows(name, 0, codes.view().rows(0, some));
        calibration.take_rows(name, some, codes.view().rows(some, rest));
      }
      const Tensor drift = calibration.inputs(c.later, 0, 0, read(c.later)).value().drift;
      float most = 0;
      for (int64_t i = 0; i < drift.n_elements(); ++i) {
        most = std::max(most, std::abs(drift.as<const float>()[i]));
      }
      return most;
    };
    EXPECT_LT(drift_behind(8), 0.3f * drift_behind(4));
  }
}

}  // namespace
}  // namespace minfer
