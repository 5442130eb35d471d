#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cuda/decode/persistent/step_params.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sampling/choose_token.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// How a step ends.
enum class StepEnd {
  Logits,    // with a copy of the logits to the host
  Tokens,    // with the choice of the token behind each of its own
  NextStep,  // of one token: with such a choice, which is the input of the next step, so that no
             // step waits for the host
};

// The base of the CUDA decode steps, as one card runs them: a step is a CUDA graph that is captured
// once for each way to end and reads its token and position from device memory. Its layers may have
// several variants, for sequences of different lengths, with a graph each. CapturedPlan drives it.
// All calls are made with its card as the current one.
class CapturedStep {
 public:
  virtual ~CapturedStep() = default;
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  const DecodeModel& model() const { return model_; }
  int card() const { return card_; }

  // Captures the graphs, unless that is done. It may allocate.
  void capture(StepEnd end);
  // Sets the input of the next step, rows of one sequence at consecutive positions, as many as the
  // step has tokens; no step is in flight.
  void set_input(std::span<const DecodeRow> rows);
  // Behind set_input(): a run of StepEnd::NextStep begins, whose tokens are chosen so.
  void begin_run(const TokenChoice& choice);
  // Runs a step by itself, on one card: from its rows to its logits, or to the tokens behind them
  // (-1 where a logit is not finite) as choose_tokens() chooses them.
  std::span<const float> run(std::span<const DecodeRow> rows);
  std::span<const TokenId> choose(std::span<const DecodeRow> rows,
                                  std::span<const TokenChoice> choices);
  // Launches a captured step.
  void launch(StepEnd end, int64_t pos);
  // Whether the next step has epoch 1: clear_epochs() comes before it.
  bool begins_epochs() const { return epoch_ == 1; }
  virtual void clear_epochs() {}
  // DecodePlan::start_profile and end_profile; no step is in flight.
  virtual bool start_profile() { return false; }
  virtual StepProfile end_profile() { return {}; }
  // Waits for all steps.
  void synchronize() { MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  // The rank for which a step has waited in vain, or -1.
  int failed_rank() const { return *static_cast<volatile int*>(failed_peer()) - 1; }
  // After a failure; no step is in flight. Epochs begin at 1 with the next step.
  void start_anew() {
    *failed_peer() = 0;
    epoch_ = 1;
  }

  // Logits [n_tokens, vocab_size] of the last step, which has ended.
  std::span<const float> host_logits() const { return {host_logits_.data(), host_logits_.size()}; }
  // Waits for a step of a run, of the last two: its token.
  TokenId await_choice(int64_t pos);

 protected:
  // A step of the current card. It uses `epochs_per_step` epochs, possibly none: epoch_after().
  CapturedStep(cudaStream_t stream, const DecodeModel& model, uint32_t epochs_per_step,
               int64_t n_tokens = 1);

  cudaStream_t stream() const { return stream_; }
  StepInput* input() const { return static_cast<StepInput*>(device_input_.view().data); }
  // The page table of the sequence, in device memory.
  const int32_t* pages() const { return static_cast<const int32_t*>(device_pages_.view().data); }
  Tensor x() const { return x_; }            // [n_tokens, dim] F32, the embeddings of the input
  Tensor logits() const { return logits_; }  // [n_tokens, vocab_size] F32
  int* failed_peer() const { return failed_peer_.data(); }  // StepPeers::failed
  // A copy of `bytes` on the card, which is there when this returns.
  DeviceTensor on_card(std::span<const std::byte> bytes) const;
  // What the layers are launched with has changed: capture() captures them again.
  void drop_graphs() { graphs_ = {}; }

 private:
  virtual int n_variants() const { return 1; }
  virtual int variant_at(int64_t /*pos*/) const { return 0; }  // of the step at a position
  virtual void launch_layers(int variant) = 0;                 // from x to logits
  // Whether the kernel that chooses the next token is launched by PDL. Measured: behind the
  // persistent kernel steps take 0.4 % longer to 1 % less, behind a GEMV 0.8 % longer to 0.6 % less
  // (docs/lab/decode-2026-11.md).
  virtual bool choice_uses_pdl() const { return false; }

  std::vector<GraphExec>& graphs(StepEnd end) { return graphs_[size_t(end)]; }
  void copy_input();
  void run_alone(StepEnd end, std::span<const DecodeRow> rows);

  cudaStream_t stream_;
  int card_ = 0;
  DecodeModel model_;
  uint32_t epochs_per_step_, epoch_ = 1;  // epoch_ belongs to the next step
  PinnedArray<StepInput> host_input_{1};
  PinnedArray<float> host_logits_;
  ChoicesOnCard choices_{kMostStepTokens};
  // Tokens chosen at even and at odd positions of a run, or behind each of a step's own.
  PinnedArray<TokenId> chosen_{std::max<size_t>(2, kMostStepTokens)};
  PinnedArray<int32_t> host_pages_;
  PinnedArray<int> failed_peer_{1};
  size_t n_pages_ = 0;         // entries of host_pages_ in use
  DeviceTensor device_pages_;  // host_pages_ on the card, in stream order
  DeviceTensor device_input_;  // a StepInput
  DeviceTensor x_, logits_;
  Event ends_[2];  // recorded after the steps at even and at odd positions of a run
  std::array<std::vector<GraphExec>, 3> graphs_;  // by StepEnd and variant
};

}  // namespace minfer::cuda
