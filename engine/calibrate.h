#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "models/quantize_model.h"

namespace minfer {

struct CalibrationOptions {
  int64_t n_windows = 128;       // at most; spread evenly over the text
  int64_t window_tokens = 2048;  // at most; the trained context where that is shorter
};

// Runs a model over windows of a text, one layer at a time: the inputs of a layer's matrices are
// those that come out of the layers before it as they were quantized. The model is changed on the
// way: its layers become the quantized ones. Model and backend outlive it.
class TextCalibration final : public Calibration {
 public:
  // Throws Usage for a text shorter than one window.
  TextCalibration(Model& model, Backend& backend, std::span<const TokenId> tokens,
                  const CalibrationOptions& options, int n_threads);

  // Names are Hugging Face's: "model.layers.0.mlp.up_proj.weight". Null outside the layers.
  const InverseFactor* factor(const std::string& name) override;
  void take_rows(const std::string& name, int64_t begin, const QuantizedMatrix& rows) override;

 private:
  // The inputs that a block's matrices have: of q, k and v; of o; of gate and up; of down.
  static constexpr int kInputs = 4;

  void finish_layer();
  void observe_layer();
  void add_to_hessian(int input, Tensor x);

  Model& model_;
  Backend& backend_;
  int n_threads_;
  ForwardState state_;
  std::vector<HostTensor> hidden_;  // of each window, what layer_ gets: [window_tokens, dim]
  int64_t layer_ = -1;              // whose inputs have been seen
  DeviceTensor hessians_[kInputs];  // [in, in]
  InverseFactor factor_;
  int factor_input_ = -1;                   // of which input factor_ is
  std::map<Matrix*, HostTensor> replaced_;  // the values of quantized matrices of layer_
};

}  // namespace minfer
