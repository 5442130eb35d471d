#pragma once

#include <array>

#include "kernels/cuda/decode/graph/decode_layers.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// A batched decode step: one row of each of several sequences, as a captured graph of DecodeLayers'
// kernels. There is one graph for each number of rows, captured when it is first needed.
class DecodeRows final : public RowsPlan {
 public:
  DecodeRows(cudaStream_t stream, DType compute_type, const DecodeModel& model);

  int64_t max_rows() const override { return kMaxMatvecTokens; }
  std::span<const float> step(std::span<const DecodeRow> rows) override;

 private:
  // What a step takes from the host, in one copy: tokens, positions, then the tables of pages.
  int64_t n_input_words(int64_t n_rows) const { return (2 + table_pages_) * n_rows; }
  void capture(int64_t n_rows);

  cudaStream_t stream_;
  DecodeModel model_;
  DecodeLayers layers_;
  int64_t table_pages_;  // entries of a row's table
  PinnedArray<int32_t> host_input_;
  PinnedArray<float> host_logits_;
  DeviceTensor input_, x_, logits_;
  std::array<GraphExec, kMaxMatvecTokens + 1> graphs_;  // by rows
};

}  // namespace minfer::cuda
