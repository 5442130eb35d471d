#pragma once

#include <array>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/graph/decode_layers.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// A batched decode step: one row of each of several sequences, or several rows of one, as a
// captured graph of DecodeLayers' kernels. There is one graph of either kind for each number of
// rows, captured when it is first needed. Two rows of one sequence go to a step of their own, where
// there is one.
class DecodeRows final : public RowsPlan {
 public:
  // two_tokens: a step of two tokens of the same model, or null.
  DecodeRows(cudaStream_t stream, DType compute_type, const DecodeModel& model,
             std::unique_ptr<CapturedStep> two_tokens = nullptr);

  int64_t max_rows() const override { return kMaxGemvTokens; }
  std::span<const float> step(std::span<const DecodeRow> rows) override { return run(rows, 1); }
  std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) override;

 private:
  // Number of 4-byte words that a step copies from the host at once: tokens, positions, page
  // tables.
  int64_t n_input_words(int64_t n_rows, int64_t n_sequences) const {
    return 2 * n_rows + table_pages_ * n_sequences;
  }
  // rows_of_sequence: 1, or the number of rows.
  std::span<const float> run(std::span<const DecodeRow> rows, int64_t rows_of_sequence);
  // That the rows of each sequence are at consecutive positions which its pages reach.
  void check(std::span<const DecodeRow> rows, int64_t rows_of_sequence) const;
  GraphExec captured(int64_t n_rows, int64_t rows_of_sequence);

  cudaStream_t stream_;
  DecodeModel model_;
  DecodeLayers layers_;
  int64_t table_pages_;  // entries of a row's page table
  PinnedArray<int32_t> host_input_;
  PinnedArray<float> host_logits_;
  DeviceTensor input_, x_, logits_;
  // Indexed by the number of rows.
  std::array<GraphExec, kMaxGemvTokens + 1> graphs_, graphs_of_sequence_;
  std::unique_ptr<CapturedStep> two_tokens_;
};

}  // namespace minfer::cuda
