#include "kernels/cuda/decode/graph/decode_rows.h"

#include <algorithm>

namespace minfer::cuda {

DecodeRows::DecodeRows(cudaStream_t stream, DType compute_type, const DecodeModel& model,
                       std::unique_ptr<CapturedStep> two_tokens)
    : stream_(stream),
      model_(model),
      layers_(stream, compute_type, model, kMaxGemvTokens),
      table_pages_(pages_for(model.max_seq_len)),
      host_input_(static_cast<size_t>(n_input_words(kMaxGemvTokens, kMaxGemvTokens))),
      host_logits_(static_cast<size_t>(kMaxGemvTokens * model.output->out_dim)),
      // 4 bytes each
      input_(allocate_device(DType::F32, {n_input_words(kMaxGemvTokens, kMaxGemvTokens)})),
      x_(allocate_device(DType::F32, {kMaxGemvTokens, model.embedding->in_dim})),
      logits_(allocate_device(DType::F32, {kMaxGemvTokens, model.output->out_dim})),
      two_tokens_(std::move(two_tokens)) {}

void DecodeRows::check(std::span<const DecodeRow> rows, int64_t rows_of_sequence) const {
  const int64_t n = std::ssize(rows);
  MINFER_CHECK(n >= 1 && n <= max_rows(), "a step of ", n, " rows");
  for (int64_t i = 0; i < n; ++i) {
    const DecodeRow& row = rows[size_t(i)];
    const int64_t of_sequence = i % rows_of_sequence;
    MINFER_CHECK(row.pos >= 0 && row.pos < model_.max_seq_len &&
                     pages_for(row.pos + 1) <= std::ssize(row.pages) &&
                     std::ssize(row.pages) <= table_pages_ &&
                     row.pos == rows[size_t(i - of_sequence)].pos + of_sequence,
                 "decode at position ", row.pos, " of ", model_.max_seq_len, ", ", row.pages.size(),
                 " pages");
  }
}

std::span<const float> DecodeRows::step_of_sequence(std::span<const DecodeRow> rows) {
  if (rows.size() != 2 || !two_tokens_) return run(rows, std::ssize(rows));
  check(rows, 2);
  return two_tokens_->run(rows);
}

std::span<const float> DecodeRows::run(std::span<const DecodeRow> rows, int64_t rows_of_sequence) {
  check(rows, rows_of_sequence);
  const int64_t n = std::ssize(rows);
  int32_t* const tokens = host_input_.data();
  int32_t* const positions = tokens + n;
  int32_t* table = positions + n;
  for (int64_t i = 0; i < n; ++i) {
    const DecodeRow& row = rows[size_t(i)];
    tokens[i] = row.token;
    positions[i] = narrow<int32_t>(row.pos);
    if (i % rows_of_sequence > 0) continue;
    std::ranges::copy(row.pages, table);
    table += table_pages_;
  }
  GraphExec& graph = (rows_of_sequence == 1 ? graphs_ : graphs_of_sequence_)[size_t(n)];
  if (!graph) graph = captured(n, rows_of_sequence);
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return {host_logits_.data(), static_cast<size_t>(n * model_.output->out_dim)};
}

GraphExec DecodeRows::captured(int64_t n, int64_t rows_of_sequence) {
  const auto* const input = static_cast<const int32_t*>(input_.view().data);
  const StepRows rows{input, input + n, input + 2 * n, rows_of_sequence};
  const Tensor x = x_.view().rows(0, n), logits = logits_.view().rows(0, n);
  const auto n_words = static_cast<size_t>(n_input_words(n, n / rows_of_sequence));
  return capture_graph(stream_, [&] {
    MINFER_CUDA_CHECK(cudaMemcpyAsync(input_.view().data, host_input_.data(),
                                      n_words * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
    gather_rows(stream_, x, *model_.embedding, rows.tokens);
    layers_.launch(x, logits, rows);
    MINFER_CUDA_CHECK(cudaMemcpyAsync(host_logits_.data(), logits.data,
                                      static_cast<size_t>(logits.n_bytes()), cudaMemcpyDeviceToHost,
                                      stream_));
  });
}

}  // namespace minfer::cuda
