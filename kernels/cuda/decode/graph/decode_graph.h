#pragma once

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/graph/decode_layers.h"

namespace minfer::cuda {

// A decode step of one row as one captured graph of DecodeLayers' kernels.
class DecodeGraph final : public CapturedStep {
 public:
  DecodeGraph(cudaStream_t stream, DType compute_type, const DecodeModel& model)
      : CapturedStep(stream, model, 0), layers_(stream, compute_type, model, 1) {}

 private:
  void launch_layers(int) override {
    layers_.launch(x(), logits(), {input()->tokens, &input()->pos, pages()});
  }

  DecodeLayers layers_;
};

}  // namespace minfer::cuda
