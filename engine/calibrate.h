#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "models/quantize/quantize_model.h"

namespace minfer {

struct CalibrationOptions {
  int64_t n_windows = 512;      // at most; spread evenly over the text
  int64_t window_tokens = 512;  // at most; the trained context where that is shorter
  TokenId bos = -1;             // in place of each window's first token, where a context begins so
};

// Runs a model over windows of a text twice, side by side and one matrix input after the other: as
// it was, and with every matrix so far as it was quantized. What a matrix is told of the text is
// the inputs x that it will have, and how far its outputs w x, added to the residual stream where
// they are, would be from those of the model as it was. Model and backend outlive it; the model is
// used up: blocks that are done are dropped.
class TextCalibration final : public Calibration {
 public:
  // Throws Usage for a text shorter than one window.
  TextCalibration(Model& model, Backend& backend, std::span<const TokenId> tokens,
                  const CalibrationOptions& options, int n_threads);

  // Names are Hugging Face's: "model.layers.0.mlp.up_proj.weight". None outside the layers.
  std::optional<GptqInputs> inputs(const std::string& name, int64_t group, int64_t begin,
                                   const Tensor& rows) override;
  void take_rows(const std::string& name, int64_t begin, const QuantizedMatrix& rows) override;

 private:
  // The residual stream of a window in front of the present half of a block: [window_tokens, dim].
  struct Window {
    HostTensor original, quantized;
  };

  void next_input();
  void observe();
  void finish_half();
  Tensor input_of(Tensor stream);
  void add_output(Tensor stream, Tensor input);
  void exchange_matrices();

  Model& model_;
  Backend& backend_;
  int n_threads_;
  ForwardState state_;
  std::vector<int32_t> pages_;  // all of the cache: of each window in turn
  std::vector<Window> windows_;
  std::map<std::string, WeightInfo> matrices_;  // of the blocks, by Hugging Face's names

  // The input in turn.
  int64_t layer_ = -1;
  BlockInput input_ = BlockInput::FfnOutput;
  DeviceTensor hessian_;       // [in, in]: sum x xᵀ
  Matrix input_drift_;         // [in, in]: sum x (original x - x)ᵀ
  DeviceTensor stream_drift_;  // [dim, in]: sum (original stream - stream) xᵀ, where w x is added
  HostTensor drift_;           // of the rows asked for last
  InverseFactor feedback_, correction_;
  int64_t factor_group_ = 0;  // which they are for; 0: none

  std::map<Matrix*, HostTensor> taken_;  // values of quantized matrices of this input
  std::map<Matrix*, Matrix> other_;      // of the block: the quantized ones, or the originals
};

}  // namespace minfer
