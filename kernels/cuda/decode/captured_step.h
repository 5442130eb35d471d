#pragma once

#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sampling/choose_token.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// What the plans of a card share: a step as a graph that is captured once, whose token and position
// lie in device memory. Two graphs, each captured when first asked for: one begins with a copy of
// the input from the host and ends with a copy of the logits to it; the other ends with the choice
// of the token, which is the input of the step behind it, so that nothing waits for the host.
class CapturedStep : public DecodePlan {
 public:
  std::span<const float> step(const DecodeRow& row) final;
  std::unique_ptr<DecodeRun> start(const DecodeRow& row, int64_t n_steps,
                                   const DecodeSampling& sampling) final;

 protected:
  // A step has `epochs_per_step` epochs, or none: epoch_after().
  CapturedStep(cudaStream_t stream, const DecodeModel& model, uint32_t epochs_per_step);

  cudaStream_t stream() const { return stream_; }
  const DecodeModel& model() const { return model_; }
  StepInput* input() const { return static_cast<StepInput*>(device_input_.view().data); }
  // The table of the sequence, in device memory.
  const int32_t* pages() const { return static_cast<const int32_t*>(device_pages_.view().data); }
  Tensor x() const { return x_; }            // [1, dim] F32, the embedding of the input's token
  Tensor logits() const { return logits_; }  // [1, vocab_size] F32

 private:
  class Run;

  virtual void launch_layers() = 0;  // from x to logits
  virtual void clear_epochs() {}     // before a step whose epoch is 1

  void check(const DecodeRow& row, int64_t n_steps) const;
  void set_input(const DecodeRow& row);
  void copy_input();
  void launch_embedding_and_layers();
  void launch(const GraphExec& graph);

  cudaStream_t stream_;
  DecodeModel model_;
  uint32_t epochs_per_step_, epoch_ = 1;  // of the next step
  bool is_running_ = false;
  PinnedArray<StepInput> host_input_{1};
  PinnedArray<float> host_logits_;
  PinnedArray<TokenChoice> host_choice_{1};
  PinnedArray<TokenId> chosen_{2};  // behind even and odd positions
  PinnedArray<int32_t> host_pages_;
  size_t n_pages_ = 0;          // of the table there
  DeviceTensor device_pages_;   // the same, where the last step is done
  DeviceTensor device_input_;   // a StepInput
  DeviceTensor device_choice_;  // a TokenChoice
  DeviceTensor x_, logits_;
  Event ends_[2];  // of the steps at even and odd positions of a run
  GraphExec graph_, choosing_graph_;
};

}  // namespace minfer::cuda
