#pragma once

#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sampling/choose_token.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// The base of the CUDA decode plans: a step is a CUDA graph that is captured once and reads its
// token and position from device memory. There are two graphs, each captured when it is first
// needed. One begins with a copy of the input from the host and ends with a copy of the logits to
// the host. The other ends with the choice of a token, which is the input of the next step, so that
// no step waits for the host.
class CapturedStep : public DecodePlan {
 public:
  std::span<const float> step(const DecodeRow& row) final;
  std::unique_ptr<DecodeRun> start(const DecodeRow& row, int64_t n_steps,
                                   const DecodeSampling& sampling) final;

 protected:
  // A step uses `epochs_per_step` epochs, possibly none: epoch_after().
  CapturedStep(cudaStream_t stream, const DecodeModel& model, uint32_t epochs_per_step);

  cudaStream_t stream() const { return stream_; }
  const DecodeModel& model() const { return model_; }
  StepInput* input() const { return static_cast<StepInput*>(device_input_.view().data); }
  // The page table of the sequence, in device memory.
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
  uint32_t epochs_per_step_, epoch_ = 1;  // epoch_ belongs to the next step
  bool is_running_ = false;
  PinnedArray<StepInput> host_input_{1};
  PinnedArray<float> host_logits_;
  PinnedArray<TokenChoice> host_choice_{1};
  PinnedArray<TokenId> chosen_{2};  // tokens chosen at even and at odd positions
  PinnedArray<int32_t> host_pages_;
  size_t n_pages_ = 0;          // entries of host_pages_ in use
  DeviceTensor device_pages_;   // host_pages_ on the card, in stream order
  DeviceTensor device_input_;   // a StepInput
  DeviceTensor device_choice_;  // a TokenChoice
  DeviceTensor x_, logits_;
  Event ends_[2];  // recorded after the steps at even and at odd positions of a run
  GraphExec graph_, choosing_graph_;
};

}  // namespace minfer::cuda
