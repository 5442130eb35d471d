#include "engine/calibrate.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "models/weight_layout.h"

namespace minfer {
namespace {

// A matrix of a block by its name in a Hugging Face file.
struct Module {
  std::string_view name;
  int input;  // index among the block's inputs
  Matrix LayerWeights::*matrix;
};
constexpr Module kModules[] = {
    {"self_attn.q_proj", 0, &LayerWeights::wq},  {"self_attn.k_proj", 0, &LayerWeights::wk},
    {"self_attn.v_proj", 0, &LayerWeights::wv},  {"self_attn.o_proj", 1, &LayerWeights::wo},
    {"mlp.gate_proj", 2, &LayerWeights::w_gate}, {"mlp.up_proj", 2, &LayerWeights::w_up},
    {"mlp.down_proj", 3, &LayerWeights::w_down}};

struct Place {
  int64_t layer;
  const Module* module;
};

// Of "model.layers.3.mlp.up_proj.weight"; none outside the layers.
std::optional<Place> place_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.", kSuffix = ".weight";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  Place place{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), place.layer);
  if (error != std::errc() || end == name.data() + name.size()) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end + 1 - name.data()));
  for (const Module& module : kModules) {
    if (module.name == name) {
      place.module = &module;
      return place;
    }
  }
  return std::nullopt;
}

}  // namespace

TextCalibration::TextCalibration(Model& model, Backend& backend, std::span<const TokenId> tokens,
                                 const CalibrationOptions& options, int n_threads)
    : model_(model), backend_(backend), n_threads_(n_threads) {
  const ModelConfig& config = model.config;
  const int64_t length = std::min(options.window_tokens, config.trained_seq_len);
  const int64_t n_tokens = std::ssize(tokens);
  MINFER_REQUIRE(Usage, n_tokens >= length, "the calibration text has ", n_tokens,
                 " tokens, one window takes ", length);
  state_.kv = make_kv_cache(backend, config, DType::F16, length);
  state_.scratch = make_scratch(backend, config, length);
  state_.rope_table = make_rope_table(backend, config, length);
  const int64_t n_windows = std::min(options.n_windows, n_tokens / length);
  for (int64_t i = 0; i < n_windows; ++i) {
    const int64_t begin = n_windows == 1 ? 0 : (n_tokens - length) * i / (n_windows - 1);
    const Tensor x =
        embed_tokens(backend, model, state_,
                     tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(length)), 0);
    hidden_.push_back(backend.download(x));
  }
}

const InverseFactor* TextCalibration::factor(const std::string& name) {
  const std::optional<Place> place = place_of(name);
  if (!place) return nullptr;
  MINFER_CHECK(place->layer >= layer_, "layer ", place->layer, " after ", layer_);
  while (layer_ < place->layer) {
    if (layer_ >= 0) finish_layer();
    ++layer_;
    observe_layer();
  }
  const int input = place->module->input;
  if (input != factor_input_) {
    factor_ = make_inverse_factor(backend_.download(hessians_[input]), n_threads_);
    factor_input_ = input;
  }
  return &factor_;
}

void TextCalibration::take_rows(const std::string& name, int64_t begin,
                                const QuantizedMatrix& rows) {
  const std::optional<Place> place = place_of(name);
  if (!place) return;
  Matrix& w = model_.weights.layers[static_cast<size_t>(place->layer)].*place->module->matrix;
  HostTensor& values = replaced_[&w];
  if (!values.view()) values = HostTensor(DType::F32, {w.out_dim, w.in_dim});
  for (int64_t row = 0; row < rows.out_dim(); ++row) {
    dequantize_row(values.as<float>() + (begin + row) * rows.in_dim(), rows, row);
  }
}

// The layer as it was quantized, and what comes out of it.
void TextCalibration::finish_layer() {
  for (const auto& [matrix, values] : replaced_) *matrix = backend_.pack_matrix(values.view());
  replaced_.clear();
  for (HostTensor& hidden : hidden_) {
    const DeviceTensor x = backend_.upload(hidden);
    forward_layer(backend_, model_, state_, layer_, x, 0);
    hidden = backend_.download(x);
  }
}

void TextCalibration::observe_layer() {
  const LayerWeights& layer = model_.weights.layers[static_cast<size_t>(layer_)];
  const Matrix* first_of_input[kInputs] = {&layer.wq, &layer.wo, &layer.w_up, &layer.w_down};
  factor_input_ = -1;
  for (DeviceTensor& hessian : hessians_) hessian = {};
  state_.observe_matmul = [&](const Matrix& w, Tensor x) {
    for (int input = 0; input < kInputs; ++input) {
      if (&w == first_of_input[input]) add_to_hessian(input, x);
    }
  };
  for (const HostTensor& hidden : hidden_) {
    const DeviceTensor x = backend_.upload(hidden);  // what comes out of it is not kept
    forward_layer(backend_, model_, state_, layer_, x, 0);
  }
  state_.observe_matmul = {};
}

// H += xᵀ x, as a matmul of xᵀ with itself.
void TextCalibration::add_to_hessian(int input, Tensor x) {
  const HostTensor columns = transposed(backend_.download(x));  // [in, n_tokens]
  const int64_t in_dim = columns.view().shape[0];
  const bool is_first = !hessians_[input];
  if (is_first) hessians_[input] = backend_.allocate(DType::F32, {in_dim, in_dim});
  backend_.matmul(hessians_[input], backend_.upload(columns), backend_.pack_matrix(columns.view()),
                  !is_first);
}

}  // namespace minfer
