#include "kernels/cuda/decode/captured_step.h"

#include <algorithm>

#include "kernels/cuda/launchers.h"

namespace minfer::cuda {
namespace {

int current_card() {
  int card = 0;
  MINFER_CUDA_CHECK(cudaGetDevice(&card));
  return card;
}

}  // namespace

CapturedStep::CapturedStep(cudaStream_t stream, const DecodeModel& model, uint32_t epochs_per_step,
                           int64_t n_tokens)
    : stream_(stream),
      card_(current_card()),
      model_(model),
      epochs_per_step_(epochs_per_step),
      host_logits_(static_cast<size_t>(n_tokens * model.vocab_size)),
      host_pages_(static_cast<size_t>(pages_for(model.max_seq_len))),
      device_pages_(allocate_device(DType::F32, {pages_for(model.max_seq_len)})),  // 4 bytes each
      device_input_(allocate_device(DType::U8, {int64_t{sizeof(StepInput)}})),
      x_(allocate_device(DType::F32, {n_tokens, model.embedding->in_dim})),
      logits_(allocate_device(DType::F32, {n_tokens, model.vocab_size})),
      ends_{make_event_without_time(), make_event_without_time()} {
  *failed_peer() = 0;
}

DeviceTensor CapturedStep::on_card(std::span<const std::byte> bytes) const {
  DeviceTensor copy = allocate_device(DType::U8, {std::ssize(bytes)});
  MINFER_CUDA_CHECK(cudaMemcpyAsync(copy.view().data, bytes.data(), bytes.size(),
                                    cudaMemcpyHostToDevice, stream_));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return copy;
}

void CapturedStep::capture(StepEnd end) {
  MINFER_CHECK(end != StepEnd::NextStep || x_.view().shape[0] == 1, "a run of several tokens");
  for (int variant = int(graphs(end).size()); variant < n_variants(); ++variant) {
    GraphExec graph = capture_graph(stream_, [&] {
      if (end != StepEnd::NextStep) copy_input();
      gather_rows(stream_, x_, *model_.embedding, input()->tokens);
      launch_layers(variant);
      switch (end) {
        case StepEnd::Logits:
          MINFER_CUDA_CHECK(cudaMemcpyAsync(host_logits_.data(), logits_.view().data,
                                            static_cast<size_t>(logits_.view().n_bytes()),
                                            cudaMemcpyDeviceToHost, stream_));
          break;
        case StepEnd::Tokens:
          choose_tokens(stream_, logits_, choices_.data(), chosen_.data(), choice_uses_pdl());
          break;
        case StepEnd::NextStep:
          choose_token(stream_, logits_.view().as<const float>(), choices_.data(), input(),
                       epochs_per_step_, chosen_.data(), choice_uses_pdl());
          break;
      }
    });
    MINFER_CUDA_CHECK(cudaGraphUpload(graph.get(), stream_));
    graphs(end).push_back(std::move(graph));
  }
}

std::span<const float> CapturedStep::run(std::span<const DecodeRow> rows) {
  run_alone(StepEnd::Logits, rows);
  return host_logits();
}

std::span<const TokenId> CapturedStep::choose(std::span<const DecodeRow> rows,
                                              std::span<const TokenChoice> choices) {
  choices_.set(stream_, choices);
  run_alone(StepEnd::Tokens, rows);
  return {chosen_.data(), rows.size()};
}

void CapturedStep::run_alone(StepEnd end, std::span<const DecodeRow> rows) {
  capture(end);
  set_input(rows);
  if (begins_epochs()) clear_epochs();
  launch(end, rows.front().pos);
  synchronize();
}

// The page table is copied to the card only if it has changed.
void CapturedStep::set_input(std::span<const DecodeRow> rows) {
  const int64_t n_tokens = x_.view().shape[0];
  MINFER_CHECK(std::ssize(rows) == n_tokens, rows.size(), " rows in a step of ", n_tokens);
  const DecodeRow& row = rows.front();
  *host_input_.data() = {{}, narrow<int32_t>(row.pos), epoch_};
  for (size_t i = 0; i < rows.size(); ++i) host_input_.data()->tokens[i] = rows[i].token;
  if (std::ranges::equal(row.pages, std::span(host_pages_.data(), n_pages_))) return;
  n_pages_ = row.pages.size();
  std::ranges::copy(row.pages, host_pages_.data());
  MINFER_CUDA_CHECK(cudaMemcpyAsync(device_pages_.view().data, host_pages_.data(),
                                    n_pages_ * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
}

void CapturedStep::begin_run(const TokenChoice& choice) {
  choices_.set(stream_, {&choice, 1});
  copy_input();
}

void CapturedStep::copy_input() {
  MINFER_CUDA_CHECK(cudaMemcpyAsync(input(), host_input_.data(), sizeof(StepInput),
                                    cudaMemcpyHostToDevice, stream_));
}

void CapturedStep::launch(StepEnd end, int64_t pos) {
  epoch_ = epoch_after(epoch_, epochs_per_step_);
  const GraphExec& graph = graphs(end).at(static_cast<size_t>(variant_at(pos)));
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_));
  if (end == StepEnd::NextStep) MINFER_CUDA_CHECK(cudaEventRecord(ends_[pos % 2].get(), stream_));
}

TokenId CapturedStep::await_choice(int64_t pos) {
  MINFER_CUDA_CHECK(cudaEventSynchronize(ends_[pos % 2].get()));
  return chosen_.data()[pos % 2];
}

}  // namespace minfer::cuda
