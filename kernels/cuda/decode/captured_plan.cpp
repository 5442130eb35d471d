#include "kernels/cuda/decode/captured_plan.h"

#include <algorithm>

#include "kernels/cuda/peer_deadline.h"

namespace minfer::cuda {

// Keeps one step launched ahead of the token that next() returns.
class CapturedPlan::Run final : public DecodeRun {
 public:
  Run(CapturedPlan& plan, int64_t pos, int64_t n_steps)
      : plan_(plan), next_launch_(pos), next_token_(pos), end_(pos + n_steps) {
    plan_.is_running_ = true;
  }
  ~Run() override {
    try {
      plan_.synchronize();
    } catch (const Error&) {
      // Either next() has thrown it already, or the caller has given up the step that failed.
    }
    plan_.is_running_ = false;
  }

  TokenId next() override {
    MINFER_CHECK(next_token_ < end_, "a token behind the last step, at ", end_);
    if (next_launch_ < end_) launch();
    const TokenId token = plan_.first().await_choice(next_token_++);
    if (next_token_ < end_) {
      plan_.throw_if_failed();
    } else {
      plan_.synchronize();  // the last step of another rank may yet wait in vain
    }
    return token;
  }

  // Launches the next step; start() does so once before the first next().
  void launch() { plan_.launch(StepEnd::NextStep, next_launch_++); }

 private:
  CapturedPlan& plan_;
  int64_t next_launch_, next_token_, end_;  // positions
};

template <typename F>
void CapturedPlan::for_each_step(F f) {
  if (steps_.size() == 1) return f(first());
  CardChange change;
  for (const auto& step : steps_) {
    change.to(step->card());
    f(*step);
  }
}

std::span<const float> CapturedPlan::step(const DecodeRow& row) {
  check(row, 1);
  // All are captured before one is launched: a card may not allocate while another waits for it.
  for_each_step([&](CapturedStep& step) {
    step.capture(StepEnd::Logits);
    step.set_input({&row, 1});
  });
  launch(StepEnd::Logits, row.pos);
  synchronize();
  return first().host_logits();
}

std::unique_ptr<DecodeRun> CapturedPlan::start(const DecodeRow& row, int64_t n_steps,
                                               const DecodeSampling& sampling) {
  check(row, n_steps);
  const int64_t vocab_size = first().model().vocab_size;
  const std::optional<TokenChoice> choice = token_choice(sampling, vocab_size, row.pos);
  if (!choice) return nullptr;
  for_each_step([&](CapturedStep& step) {
    step.capture(StepEnd::NextStep);
    step.set_input({&row, 1});
    step.begin_run(*choice);
  });
  auto run = std::make_unique<Run>(*this, row.pos, n_steps);
  run->launch();
  return run;
}

bool CapturedPlan::start_profile() {
  MINFER_CHECK(!is_running_, "a profile begins while steps run");
  return steps_.size() == 1 && first().start_profile();
}

StepProfile CapturedPlan::end_profile() {
  MINFER_CHECK(!is_running_ && steps_.size() == 1, "a profile ends while steps run");
  return first().end_profile();
}

void CapturedPlan::launch(StepEnd end, int64_t pos) {
  if (first().begins_epochs()) {
    // No card may clear what another one has written for the step to come, or still writes.
    if (steps_.size() > 1) synchronize();
    for_each_step([](CapturedStep& step) { step.clear_epochs(); });
    if (steps_.size() > 1) synchronize();
  }
  for_each_step([&](CapturedStep& step) { step.launch(end, pos); });
}

void CapturedPlan::synchronize() {
  for_each_step([](CapturedStep& step) { step.synchronize(); });
  throw_if_failed();
}

void CapturedPlan::throw_if_failed() {
  int failed = -1;
  for (const auto& step : steps_) failed = std::max(failed, step->failed_rank());
  if (failed < 0) return;
  // The flags are cleared when nothing runs any more: until then they end the waits of steps that
  // were launched ahead.
  for_each_step([](CapturedStep& step) { step.synchronize(); });
  for (const auto& step : steps_) step->start_anew();
  throw Error(ErrorKind::Peer, cat("rank ", failed, " (cuda:", steps_[size_t(failed)]->card(),
                                   ") has not answered for ", kPeerDeadlineSeconds, " s"));
}

void CapturedPlan::check(const DecodeRow& row, int64_t n_steps) const {
  const int64_t end = row.pos + n_steps, max_seq_len = first().model().max_seq_len;
  MINFER_CHECK(row.pos >= 0 && n_steps >= 1 && end <= max_seq_len &&
                   pages_for(end) <= std::ssize(row.pages) &&
                   std::ssize(row.pages) <= pages_for(max_seq_len),
               "decode of ", n_steps, " at position ", row.pos, " of ", max_seq_len, ", ",
               row.pages.size(), " pages");
  MINFER_CHECK(!is_running_, "a decode step while others feed themselves");
}

}  // namespace minfer::cuda
