#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

// A decode plan of captured steps: one, or one for each rank on that rank's card. The caller's
// thread launches them all. All ranks choose the same tokens, of the same logits.
class CapturedPlan final : public DecodePlan {
 public:
  explicit CapturedPlan(std::vector<std::unique_ptr<CapturedStep>> steps)
      : steps_(std::move(steps)) {}

  // Both throw Peer if a card has waited for another one in vain.
  std::span<const float> step(const DecodeRow& row) override;
  std::unique_ptr<DecodeRun> start(const DecodeRow& row, int64_t n_steps,
                                   const DecodeSampling& sampling) override;
  // Of one rank alone.
  bool start_profile() override;
  StepProfile end_profile() override;

 private:
  class Run;

  CapturedStep& first() const { return *steps_.front(); }
  // Calls f with each step, its card being the current one.
  template <typename F>
  void for_each_step(F f);
  void check(const DecodeRow& row, int64_t n_steps) const;
  void launch(StepEnd end, int64_t pos);
  void synchronize();
  void throw_if_failed();

  std::vector<std::unique_ptr<CapturedStep>> steps_;
  bool is_running_ = false;
};

}  // namespace minfer::cuda
