#include "engine/calibrate.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "kernels/moe.h"
#include "models/weight_layout.h"
#include "models/weight_slice.h"

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
    if (named.weight.is_in_block() && named.weight.is_matrix()) matrices_[named.name] = named;
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
    windows_.push_back({{backend.download(x), {}}, {backend.download(x), {}}, {}, {}});
  }
}

std::optional<GptqInputs> TextCalibration::inputs(const std::string& name, int64_t group,
                                                  int64_t begin, const Tensor& rows) {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) return std::nullopt;
  const WeightInfo& weight = found->second.weight;
  const auto asked = std::pair(weight.layer, weight.input());
  MINFER_CHECK(asked >= std::pair(layer_, input_), name, " comes after layer ", layer_);
  while (asked > std::pair(layer_, input_)) next_input();
  if (has_experts() && !observe_down(found->second)) return std::nullopt;
  if (group == 0) group = rows.shape[1];
  if (group != factor_group_) {
    const HostTensor hessian = backend_.download(hessian_);
    feedback_ = make_inverse_factor(hessian, group, kFeedbackDamping, n_threads_);
    correction_ = make_inverse_factor(hessian, group, kCorrectionDamping, n_threads_);
    factor_group_ = group;
  }
  const int64_t n_rows = rows.shape[0];
  const bool has_stream = adds_to_stream() && !has_experts();
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
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) return;
  const NamedShape& named = found->second;
  for (int64_t i = 0; i < rows.out_dim(); ++i) {
    const RowPlace place = place_of_row(named, begin + i);
    Matrix& w = matrix_of(model_.weights, named.weights[place.weight]);
    HostTensor& values = taken_[&w];
    if (!values.view()) values = HostTensor(DType::F32, {w.out_dim, w.in_dim});
    dequantize_row(values.as<float>() + place.row * rows.in_dim(), rows, i);
  }
}

// Swaps each matrix of the block that is quantized already: the original for the quantized one, or
// back.
void TextCalibration::exchange_matrices() {
  for (auto& [matrix, other] : other_) std::swap(*matrix, other);
  index_experts(model_.weights, backend_);
}

// The down matrices of experts have inputs of their own, each for the few tokens that choose it.
bool TextCalibration::has_experts() const {
  return input_ == BlockInput::FfnOutput && model_.spec.layer(layer_).has_experts();
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
// observe() has already done so for the original model's, but for experts.
void TextCalibration::finish_half() {
  if (has_experts()) {
    for (Window& window : windows_) {
      add_output(window.original, backend_.upload(window.original.stream), {});
    }
  }
  exchange_matrices();
  for (Window& window : windows_) {
    const DeviceTensor stream = backend_.upload(window.quantized.stream);
    add_output(window.quantized, stream, has_experts() ? Tensor() : input_of(stream));
  }
  exchange_matrices();
}

Tensor TextCalibration::input_of(Tensor stream) {
  const SequenceRows rows{stream.shape[0], 0, pages_};
  return block_input(backend_, model_, state_, layer_, input_, stream, {&rows, 1});
}

// What experts and their router get: the norm of each row, so that any rows may be asked for.
Tensor TextCalibration::ffn_input_of(Tensor stream) {
  const SequenceRows rows{stream.shape[0], 0, pages_};
  return block_input(backend_, model_, state_, layer_, BlockInput::Ffn, stream, {&rows, 1});
}

// Ends a half: `input` is that of its last matrix, or null where experts have inputs of their own;
// `stream` the window's, which is overwritten.
void TextCalibration::add_output(WindowState& window, Tensor stream, Tensor input) {
  const bool is_parallel = model_.spec.layer(layer_).parallel_residual;
  if (is_parallel && input_ == BlockInput::AttentionOutput) {
    HostTensor zeros(stream.dtype, stream.shape);
    std::fill_n(zeros.as<float>(), stream.n_elements(), 0.0f);
    const DeviceTensor attention = backend_.upload(zeros);
    add_block_output(backend_, model_, layer_, input_, attention, input);
    window.attention = backend_.download(attention);
    return;
  }
  if (has_experts()) {
    const SequenceRows rows{stream.shape[0], 0, pages_};
    add_block_experts(backend_, model_, state_, layer_, stream, {&rows, 1});
  } else {
    add_block_output(backend_, model_, layer_, input_, stream, input);
  }
  if (window.attention.view()) {
    backend_.add(stream, stream, backend_.upload(window.attention));
    window.attention = {};
  }
  window.stream = backend_.download(stream);
}

// Whether the present matrix's output is added to the residual stream as it is but for a scale, so
// that the matrix can make up for a drift of the stream.
bool TextCalibration::adds_to_stream() const {
  return ends_half(input_) && !model_.spec.layer(layer_).has_norm_behind();
}

// How far the original model's stream is from the quantized one's, in units of the outputs that are
// added to it: [dim, n].
HostTensor TextCalibration::stream_difference(const Window& window) const {
  const WindowState &original = window.original, &quantized = window.quantized;
  HostTensor difference = difference_columns(original.stream, quantized.stream);
  const bool is_waiting = quantized.attention.view() && original.attention.view();
  const HostTensor more =
      is_waiting ? difference_columns(original.attention, quantized.attention) : HostTensor();
  const float scale = model_.spec.layer(layer_).residual_scale;
  for (int64_t i = 0, n = difference.view().n_elements(); i < n; ++i) {
    float& value = difference.as<float>()[i];
    value = (value + (is_waiting ? more.at(i) : 0.0f)) / scale;
  }
  return difference;
}

void TextCalibration::observe() {
  factor_group_ = 0;
  hessian_ = {};
  stream_drift_ = {};
  down_.clear();
  if (has_experts()) return observe_routing();
  DeviceTensor input_drift;  // [in, in]: sum over tokens of x (original x - x)ᵀ
  for (Window& window : windows_) {
    exchange_matrices();
    const HostTensor x = backend_.download(input_of(backend_.upload(window.quantized.stream)));
    exchange_matrices();
    const DeviceTensor stream = backend_.upload(window.original.stream);
    const Tensor input = input_of(stream);
    const HostTensor original = backend_.download(input);

    const Matrix columns = add_sums(x, original, input_drift);
    if (!ends_half(input_)) continue;
    if (adds_to_stream()) add_gram(backend_, stream_drift_, stream_difference(window), columns);
    add_output(window.original, stream, input);
  }
  input_drift_ = backend_.pack_matrix(backend_.download(input_drift).view());
}

// Adds the inputs of some tokens, [n, in] each, to the sums. Returns xᵀ [in, n].
Matrix TextCalibration::add_sums(const HostTensor& x, const HostTensor& original,
                                 DeviceTensor& input_drift) {
  const HostTensor columns = transposed(x);
  Matrix packed = backend_.pack_matrix(columns.view());
  add_gram(backend_, hessian_, columns, packed);
  add_gram(backend_, input_drift, columns,
           backend_.pack_matrix(difference_columns(original, x).view()));
  return packed;
}

// Which rows of each window the quantized model gives to which expert.
void TextCalibration::observe_routing() {
  const LayerSpec& spec = model_.spec.layer(layer_);
  MoeWeights& moe = model_.weights.layers[static_cast<size_t>(layer_)].moe;
  for (Window& window : windows_) {
    const DeviceTensor stream = backend_.upload(window.quantized.stream);
    const Tensor x = ffn_input_of(stream);
    const int64_t n_rows = x.shape[0];
    const DeviceTensor logits = backend_.allocate(DType::F32, {n_rows, spec.n_experts});
    backend_.matmul(logits, x, version(moe.router, /*is_quantized=*/true));
    const DeviceTensor memory = backend_.allocate(
        DType::U8, {Routing::bytes(n_rows, spec.n_experts, spec.n_active_experts)});
    const auto routing_in = [&](const Tensor& bytes) {
      return Routing(bytes.data, n_rows, spec.n_experts, spec.n_active_experts);
    };
    backend_.route({routing_in(memory), logits, moe.router_bias, moe.router_correction, spec});
    const HostTensor copy = backend_.download(memory);
    const Routing routing = routing_in(copy.view());
    window.expert_begins.assign(routing.begins, routing.begins + spec.n_experts + 1);
    window.expert_rows.clear();
    for (int64_t place = 0; place < routing.n_pairs(); ++place) {
      window.expert_rows.push_back(routing.pairs[place] / int32_t(spec.n_active_experts));
    }
  }
}

// Makes the sums of an expert's down matrix, those of all tokens for the shared expert. Returns
// false where no token chooses it, or where it is that of several experts.
bool TextCalibration::observe_down(const NamedShape& named) {
  if (named.weights.size() > 1) return false;
  if (down_ == named.name) return bool(hessian_);
  down_ = named.name;
  factor_group_ = 0;
  hessian_ = {};
  MoeWeights& moe = model_.weights.layers[static_cast<size_t>(layer_)].moe;
  const bool is_shared = !named.weight.is_of_expert();
  const auto index = static_cast<size_t>(std::max<int64_t>(named.weight.expert, 0));
  Expert& expert = is_shared ? moe.shared : moe.experts[index];
  DeviceTensor input_drift;
  for (const Window& window : windows_) {
    std::vector<int32_t> rows(static_cast<size_t>(window.quantized.stream.view().shape[0]));
    std::iota(rows.begin(), rows.end(), 0);
    if (!is_shared) {
      const auto first = window.expert_rows.begin();
      rows.assign(first + window.expert_begins[index], first + window.expert_begins[index + 1]);
    }
    if (rows.empty()) continue;
    add_sums(expert_hidden(expert, window.quantized.stream, rows, /*is_quantized=*/true),
             expert_hidden(expert, window.original.stream, rows, /*is_quantized=*/false),
             input_drift);
  }
  if (!hessian_) return false;
  input_drift_ = backend_.pack_matrix(backend_.download(input_drift).view());
  return true;
}

// The hidden layer of an expert, [n, ffn_dim], for some rows of a window's residual stream.
HostTensor TextCalibration::expert_hidden(Expert& expert, const HostTensor& stream,
                                          std::span<const int32_t> rows, bool is_quantized) {
  const LayerSpec& spec = model_.spec.layer(layer_);
  std::vector<ShardRange> ranges;
  for (const int32_t row : rows) ranges.push_back({row, 1});
  const DeviceTensor taken = backend_.upload(minfer::take_rows(stream, ranges));
  const Tensor x = ffn_input_of(taken);
  const auto linear = [&](Linear& layer) {
    DeviceTensor out = backend_.allocate(x.dtype, {x.shape[0], layer.weight.out_dim});
    backend_.matmul(out, x, version(layer.weight, is_quantized));
    if (layer.bias) backend_.add_bias(out, out, layer.bias);
    return out;
  };
  const DeviceTensor gate = linear(expert.w_gate), up = linear(expert.w_up);
  backend_.glu(up, gate, up, spec.activation, spec.swiglu_clamp());
  return backend_.download(up);
}

// A matrix of the block, quantized if it is so already, while nothing is exchanged.
const Matrix& TextCalibration::version(Matrix& matrix, bool is_quantized) const {
  const auto found = other_.find(&matrix);
  return is_quantized && found != other_.end() ? found->second : matrix;
}

}  // namespace minfer
