#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "models/quantize/quantize_model.h"
#include "models/weight_names.h"

namespace minfer {

struct CalibrationOptions {
  int64_t n_windows = 512;      // at most; spread evenly over the text
  int64_t window_tokens = 512;  // at most; the trained context if that is shorter
  TokenId bos = -1;             // replaces each window's first token; -1: nothing does
};

// Runs two versions of a model over windows of a calibration text, one block input after the other:
// the original model, and the one whose earlier matrices are quantized. For each matrix it collects
// the inputs x that the matrix gets in the quantized model, and how far the outputs w x, or the
// residual stream after they are added to it, would be from the original model's. All tokens of the
// text count for each expert's gate and up; for its down count those that choose it in the
// quantized model, and how far its output would be, but not the stream behind the sum of the
// experts. The model and backend must outlive this object. It consumes the model: it drops each
// block that is done.
class TextCalibration final : public Calibration {
 public:
  // Throws Usage for a text shorter than one window.
  TextCalibration(Model& model, Backend& backend, std::span<const TokenId> tokens,
                  const CalibrationOptions& options, int n_threads);

  // Names are Hugging Face's: "model.layers.0.mlp.up_proj.weight". Returns none for a tensor that
  // is not a matrix of a block, and for the down matrix of an expert that no token chooses, or of
  // several experts.
  std::optional<GptqInputs> inputs(const std::string& name, int64_t group, int64_t begin,
                                   const Tensor& rows) override;
  void take_rows(const std::string& name, int64_t begin, const QuantizedMatrix& rows) override;

 private:
  // A window's residual stream, [window_tokens, dim], before the present half (attention or FFN) of
  // a block, in the original model or in the quantized one. In a block whose halves are parallel,
  // `stream` stays that before the block, and attention's output waits beside it; else that is
  // null.
  struct WindowState {
    HostTensor stream, attention;
  };
  struct Window {
    WindowState original, quantized;
    // Where the FFN is a mixture of experts: expert e gets the rows expert_rows[expert_begins[e]]
    // to expert_rows[expert_begins[e + 1]], in the quantized model.
    std::vector<int32_t> expert_begins, expert_rows;
  };

  void next_input();
  void observe();
  void observe_routing();
  bool observe_down(const NamedShape& named);
  Matrix add_sums(const HostTensor& x, const HostTensor& original, DeviceTensor& input_drift);
  HostTensor expert_hidden(Expert& expert, const HostTensor& stream, std::span<const int32_t> rows,
                           bool is_quantized);
  const Matrix& version(Matrix& matrix, bool is_quantized) const;
  void finish_half();
  Tensor input_of(Tensor stream);
  Tensor ffn_input_of(Tensor stream);
  void add_output(WindowState& window, Tensor stream, Tensor input);
  bool has_experts() const;  // whether the present input differs from expert to expert
  bool adds_to_stream() const;
  HostTensor stream_difference(const Window& window) const;
  void exchange_matrices();

  Model& model_;
  Backend& backend_;
  int n_threads_;
  ForwardState state_;
  std::vector<int32_t> pages_;  // all of the cache's; each window uses them in turn
  std::vector<Window> windows_;
  std::map<std::string, NamedShape> matrices_;  // those of the blocks, by Hugging Face's names

  // The present block input and its sums over the tokens of all windows.
  int64_t layer_ = -1;
  BlockInput input_ = BlockInput::FfnOutput;
  std::string down_;      // of an expert: whose sums they are; else empty
  DeviceTensor hessian_;  // [in, in]: sum x xᵀ
  Matrix input_drift_;    // [in, in]: sum x (original x - x)ᵀ
  // [dim, in]: sum (original stream - stream) xᵀ / scale, where scale * w x is added to the stream
  DeviceTensor stream_drift_;
  HostTensor drift_;  // of the rows that inputs() was last asked for
  InverseFactor feedback_, correction_;
  int64_t factor_group_ = 0;  // the group size that both factors are for; 0: they are not made

  std::map<Matrix*, HostTensor> taken_;  // dequantized matrices of the present input
  std::map<Matrix*, Matrix> other_;      // the block's quantized ones; if exchanged, the originals
};

}  // namespace minfer
