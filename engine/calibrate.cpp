#include "engine/calibrate.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "models/weight_layout.h"
#include "models/weight_names.h"

namespace minfer {
namespace {

// Whether the linear layer with this input adds its output to the residual stream, which ends the
// attention half or the FFN half of a block.
bool ends_half(BlockInput input) {
  return input == BlockInput::AttentionOutput || input == BlockInput::FfnOutput;
}

// Returns (a - b)ᵀ [width, n] for a and b [n, width].
HostTensor difference_columns(const HostTensor& a, const HostTensor& b) {
  HostTensor difference(DType::F32, a.view().shape);
  const int64_t n = a.view().n_elements();
  for (int64_t i = 0; i < n; ++i) difference.as<float>()[i] = a.at(i) - b.at(i);
  return transposed(difference);
}

// sum [m, k] += x wᵀ for x [m, n] and w [k, n], which hold one column per token. Allocates an empty
// sum first.
void add_gram(Backend& backend, DeviceTensor& sum, const HostTensor& x, const Matrix& w) {
  const bool is_first = !sum;
  if (is_first) sum = backend.allocate(DType::F32, {x.view().shape[0], w.out_dim});
  backend.matmul(sum, backend.upload(x), w, /*accumulate=*/!is_first);
}

}  // namespace

TextCalibration::TextCalibration(Model& model, Backend& backend, std::span<const TokenId> tokens,
                                 const CalibrationOptions& options, int n_threads)
    : model_(model), backend_(backend), n_threads_(n_threads) {
  const ModelSpec& spec = model.spec;
  for (const NamedShape& named : hf_weights(spec)) {
    if (named.weight.is_in_block() && named.weight.is_matrix()) {
      matrices_[named.name] = named.weights;
    }
  }
  const int64_t length = std::min(options.window_tokens, spec.trained_seq_len);
  const int64_t n_tokens = std::ssize(tokens);
  MINFER_REQUIRE(Usage, n_tokens >= length, "the calibration text has ", n_tokens,
                 " tokens, one window takes ", length);
  const int64_t n_pages = pages_for(length);
  state_.kv = make_kv_cache(backend, spec, DType::F16, n_pages);
  pages_.resize(static_cast<size_t>(n_pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  state_.scratch = make_scratch(backend, spec, length);
  state_.rope_tables = make_rope_tables(backend, spec, length);
  const int64_t n_windows = std::min(options.n_windows, n_tokens / length);
  for (int64_t i = 0; i < n_windows; ++i) {
    const int64_t begin = n_windows == 1 ? 0 : (n_tokens - length) * i / (n_windows - 1);
    std::vector<TokenId> window(tokens.begin() + begin, tokens.begin() + begin + length);
    if (options.bos >= 0) window.front() = options.bos;
    const SequenceRows rows{length, 0, pages_};
    const Tensor x = embed_tokens(backend, model, state_, window, {&rows, 1});
    windows_.push_back({backend.download(x), backend.download(x)});
  }
}

std::optional<GptqInputs> TextCalibration::inputs(const std::string& name, int64_t group,
                                                  int64_t begin, const Tensor& rows) {
  const auto weight = matrices_.find(name);
  if (weight == matrices_.end()) return std::nullopt;
  const auto asked = std::pair(weight->second.front().layer, weight->second.front().input());
  MINFER_CHECK(asked >= std::pair(layer_, input_), name, " comes after layer ", layer_);
  while (asked > std::pair(layer_, input_)) next_input();
  if (!is_observed()) return std::nullopt;
  if (group == 0) group = rows.shape[1];
  if (group != factor_group_) {
    const HostTensor hessian = backend_.download(hessian_);
    feedback_ = make_inverse_factor(hessian, group, kFeedbackDamping, n_threads_);
    correction_ = make_inverse_factor(hessian, group, kCorrectionDamping, n_threads_);
    factor_group_ = group;
  }
  const int64_t n_rows = rows.shape[0];
  const bool has_stream = ends_half(input_);
  const DeviceTensor drift =
      has_stream ? backend_.upload(backend_.download(stream_drift_.view().rows(begin, n_rows)))
                 : backend_.allocate(DType::F32, rows.shape);
  backend_.matmul(drift, backend_.upload(to_f32_tensor(rows)), input_drift_,
                  /*accumulate=*/has_stream);
  drift_ = backend_.download(drift);
  return GptqInputs{&feedback_, &correction_, drift_};
}

void TextCalibration::take_rows(const std::string& name, int64_t begin,
                                const QuantizedMatrix& rows) {
  const auto weight = matrices_.find(name);
  if (weight == matrices_.end()) return;
  for (const WeightInfo& part : weight->second) {
    Matrix& w = matrix_of(model_.weights, part);
    HostTensor& values = taken_[&w];
    if (!values.view()) values = HostTensor(DType::F32, {w.out_dim, w.in_dim});
    const int64_t first = std::max<int64_t>(-begin, 0);
    const int64_t end = std::min(w.out_dim - begin, rows.out_dim());
    for (int64_t row = first; row < end; ++row) {
      dequantize_row(values.as<float>() + (begin + row) * rows.in_dim(), rows, row);
    }
    begin -= w.out_dim;
  }
}

// Swaps each matrix of the block that is quantized already: the original for the quantized one, or
// back.
void TextCalibration::exchange_matrices() {
  for (auto& [matrix, other] : other_) std::swap(*matrix, other);
  index_experts(model_.weights, backend_);
}

// The down matrices of experts have inputs of their own, each for the few tokens that choose it.
bool TextCalibration::is_observed() const {
  return input_ != BlockInput::FfnOutput || !model_.spec.layer(layer_).has_experts();
}

void TextCalibration::next_input() {
  for (const auto& [matrix, values] : taken_) other_[matrix] = backend_.pack_matrix(values.view());
  taken_.clear();
  if (layer_ >= 0 && ends_half(input_)) finish_half();
  if (input_ == BlockInput::FfnOutput) {
    if (layer_ >= 0) model_.weights.layers[static_cast<size_t>(layer_)] = {};
    other_.clear();
    ++layer_;
    input_ = BlockInput::Attention;
  } else {
    input_ = static_cast<BlockInput>(static_cast<int>(input_) + 1);
  }
  observe();
}

// Updates the quantized model's residual streams with the output of the half that is now quantized.
// observe() has already done so for the original model's.
void TextCalibration::finish_half() {
  exchange_matrices();
  for (Window& window : windows_) {
    const DeviceTensor stream = backend_.upload(window.quantized);
    add_half(stream);
    window.quantized = backend_.download(stream);
  }
  exchange_matrices();
}

Tensor TextCalibration::input_of(Tensor stream) {
  const SequenceRows rows{stream.shape[0], 0, pages_};
  return block_input(backend_, model_, state_, layer_, input_, stream, {&rows, 1});
}

void TextCalibration::add_output(Tensor stream, Tensor input) {
  add_block_output(backend_, model_.weights.layers[static_cast<size_t>(layer_)], input_, stream,
                   input);
}

void TextCalibration::add_half(Tensor stream) {
  const SequenceRows rows{stream.shape[0], 0, pages_};
  add_block_half(backend_, model_, state_, layer_, input_, stream, {&rows, 1});
}

void TextCalibration::observe() {
  factor_group_ = 0;
  hessian_ = {};
  stream_drift_ = {};
  if (!is_observed()) {
    for (Window& window : windows_) {
      const DeviceTensor stream = backend_.upload(window.original);
      add_half(stream);
      window.original = backend_.download(stream);
    }
    return;
  }
  DeviceTensor input_drift;  // [in, in]: sum over tokens of x (original x - x)ᵀ
  for (Window& window : windows_) {
    exchange_matrices();
    const HostTensor x = backend_.download(input_of(backend_.upload(window.quantized)));
    exchange_matrices();
    const DeviceTensor stream = backend_.upload(window.original);
    const Tensor input = input_of(stream);
    const HostTensor original = backend_.download(input);

    const HostTensor columns = transposed(x);  // [in, window_tokens]
    const Matrix packed = backend_.pack_matrix(columns.view());
    add_gram(backend_, hessian_, columns, packed);
    add_gram(backend_, input_drift, columns,
             backend_.pack_matrix(difference_columns(original, x).view()));
    if (!ends_half(input_)) continue;
    add_gram(backend_, stream_drift_, difference_columns(window.original, window.quantized),
             packed);
    add_output(stream, input);
    window.original = backend_.download(stream);
  }
  input_drift_ = backend_.pack_matrix(backend_.download(input_drift).view());
}

}  // namespace minfer
