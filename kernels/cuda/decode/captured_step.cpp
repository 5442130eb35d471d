#include "kernels/cuda/decode/captured_step.h"

#include <algorithm>

#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

Event make_event_without_time() {
  cudaEvent_t event = nullptr;
  MINFER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

}  // namespace

// Keeps one step launched ahead of the token that next() returns.
class CapturedStep::Run final : public DecodeRun {
 public:
  Run(CapturedStep& plan, int64_t pos, int64_t n_steps)
      : plan_(plan), next_launch_(pos), next_token_(pos), end_(pos + n_steps) {
    plan_.is_running_ = true;
  }
  ~Run() override {
    cudaStreamSynchronize(plan_.stream_);
    plan_.is_running_ = false;
  }

  TokenId next() override {
    MINFER_CHECK(next_token_ < end_, "a token behind the last step, at ", end_);
    if (next_launch_ < end_) launch();
    const int64_t slot = next_token_++ % 2;
    MINFER_CUDA_CHECK(cudaEventSynchronize(plan_.ends_[slot].get()));
    return plan_.chosen_.data()[slot];
  }

  // Launches the next step; start() does so once before the first next().
  void launch() {
    plan_.launch(plan_.choosing_graph_);
    MINFER_CUDA_CHECK(cudaEventRecord(plan_.ends_[next_launch_ % 2].get(), plan_.stream_));
    ++next_launch_;
  }

 private:
  CapturedStep& plan_;
  int64_t next_launch_, next_token_, end_;  // positions
};

CapturedStep::CapturedStep(cudaStream_t stream, const DecodeModel& model, uint32_t epochs_per_step)
    : stream_(stream),
      model_(model),
      epochs_per_step_(epochs_per_step),
      host_logits_(static_cast<size_t>(model.output->out_dim)),
      host_pages_(static_cast<size_t>(pages_for(model.max_seq_len))),
      device_pages_(allocate_device(DType::F32, {pages_for(model.max_seq_len)})),  // 4 bytes each
      device_input_(allocate_device(DType::U8, {int64_t{sizeof(StepInput)}})),
      device_choice_(allocate_device(DType::U8, {int64_t{sizeof(TokenChoice)}})),
      x_(allocate_device(DType::F32, {1, model.embedding->in_dim})),
      logits_(allocate_device(DType::F32, {1, model.output->out_dim})),
      ends_{make_event_without_time(), make_event_without_time()} {}

std::span<const float> CapturedStep::step(const DecodeRow& row) {
  check(row, 1);
  if (!graph_) {
    graph_ = capture_graph(stream_, [this] {
      copy_input();
      launch_embedding_and_layers();
      MINFER_CUDA_CHECK(cudaMemcpyAsync(host_logits_.data(), logits_.view().data,
                                        static_cast<size_t>(logits_.view().n_bytes()),
                                        cudaMemcpyDeviceToHost, stream_));
    });
  }
  set_input(row);
  launch(graph_);
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return {host_logits_.data(), host_logits_.size()};
}

std::unique_ptr<DecodeRun> CapturedStep::start(const DecodeRow& row, int64_t n_steps,
                                               const DecodeSampling& sampling) {
  check(row, n_steps);
  const std::optional<TokenChoice> choice =
      token_choice(sampling, logits_.view().n_elements(), row.pos);
  if (!choice) return nullptr;
  auto* const choice_on_card = static_cast<TokenChoice*>(device_choice_.view().data);
  if (!choosing_graph_) {
    choosing_graph_ = capture_graph(stream_, [&] {
      launch_embedding_and_layers();
      choose_token(stream_, logits_.view().as<const float>(), choice_on_card, input(),
                   epochs_per_step_, chosen_.data());
    });
  }
  *host_choice_.data() = *choice;
  set_input(row);
  MINFER_CUDA_CHECK(cudaMemcpyAsync(choice_on_card, host_choice_.data(), sizeof(TokenChoice),
                                    cudaMemcpyHostToDevice, stream_));
  copy_input();
  auto run = std::make_unique<Run>(*this, row.pos, n_steps);
  run->launch();
  return run;
}

void CapturedStep::launch_embedding_and_layers() {
  gather_rows(stream_, x_, *model_.embedding, &input()->token);
  launch_layers();
}

// Writes the input of the next step; no step is in flight. The page table is copied to the card
// only if it has changed.
void CapturedStep::set_input(const DecodeRow& row) {
  *host_input_.data() = {row.token, narrow<int32_t>(row.pos), epoch_};
  if (std::ranges::equal(row.pages, std::span(host_pages_.data(), n_pages_))) return;
  n_pages_ = row.pages.size();
  std::ranges::copy(row.pages, host_pages_.data());
  MINFER_CUDA_CHECK(cudaMemcpyAsync(device_pages_.view().data, host_pages_.data(),
                                    n_pages_ * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
}

void CapturedStep::copy_input() {
  MINFER_CUDA_CHECK(cudaMemcpyAsync(input(), host_input_.data(), sizeof(StepInput),
                                    cudaMemcpyHostToDevice, stream_));
}

void CapturedStep::launch(const GraphExec& graph) {
  if (epoch_ == 1) clear_epochs();
  epoch_ = epoch_after(epoch_, epochs_per_step_);
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_));
}

void CapturedStep::check(const DecodeRow& row, int64_t n_steps) const {
  const int64_t end = row.pos + n_steps;
  MINFER_CHECK(row.pos >= 0 && n_steps >= 1 && end <= model_.max_seq_len &&
                   pages_for(end) <= std::ssize(row.pages) &&
                   std::ssize(row.pages) <= pages_for(model_.max_seq_len),
               "decode of ", n_steps, " at position ", row.pos, " of ", model_.max_seq_len, ", ",
               row.pages.size(), " pages");
  MINFER_CHECK(!is_running_, "a decode step while others feed themselves");
}

}  // namespace minfer::cuda
