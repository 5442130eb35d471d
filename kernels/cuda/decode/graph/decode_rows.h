#pragma once

#include <array>
#include <vector>

#include "kernels/cuda/decode/captured_step.h"
#include "kernels/cuda/decode/graph/decode_layers.h"
#include "kernels/cuda/device.h"

namespace minfer::cuda {

// A batched decode step: one row of each of several sequences, or several rows of one, as a
// captured graph of DecodeLayers' kernels. There is one graph of each kind for each number of rows,
// captured when it is first needed. Two rows of one sequence go to a step of their own, where there
// is one.
class DecodeRows final : public RowsPlan {
 public:
  // two_tokens: a step of two tokens of the same model, or null.
  DecodeRows(cudaStream_t stream, DType compute_type, const DecodeModel& model,
             std::unique_ptr<CapturedStep> two_tokens = nullptr);

  int64_t max_rows() const override { return kMaxGemvTokens; }
  std::span<const float> step(std::span<const DecodeRow> rows) override;
  std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) override;
  std::span<const TokenId> choose(std::span<const DecodeRow> rows,
                                  std::span<const DecodeSampling> samplings) override;
  std::span<const TokenId> choose_of_sequence(std::span<const DecodeRow> rows,
                                              const DecodeSampling& sampling) override;

 private:
  // How a step ends, and whose its rows are.
  enum class Kind { LogitsOfSequences, LogitsOfSequence, TokensOfSequences, TokensOfSequence };
  // Number of 4-byte words that a step copies from the host at once: tokens, positions, page
  // tables.
  int64_t n_input_words(int64_t n_rows, int64_t n_sequences) const {
    return 2 * n_rows + table_pages_ * n_sequences;
  }
  static int64_t rows_of_sequence(Kind kind, int64_t n_rows) {
    return kind == Kind::LogitsOfSequence || kind == Kind::TokensOfSequence ? n_rows : 1;
  }
  void run(Kind kind, std::span<const DecodeRow> rows);
  // That the rows of each sequence are at consecutive positions which its pages reach.
  void check(Kind kind, std::span<const DecodeRow> rows) const;
  // Whether the step of two tokens takes them.
  bool takes_two_tokens(std::span<const DecodeRow> rows) const {
    return rows.size() == 2 && two_tokens_;
  }
  std::span<const float> host_logits(size_t n_rows) const {
    return {host_logits_.data(), n_rows * size_t(model_.output->out_dim)};
  }
  // Appends the choice for a row, if choose_tokens() can make it.
  bool add_choice(std::vector<TokenChoice>& choices, const DecodeSampling& sampling) const;
  GraphExec captured(Kind kind, int64_t n_rows);

  cudaStream_t stream_;
  DecodeModel model_;
  DecodeLayers layers_;
  int64_t table_pages_;  // entries of a row's page table
  PinnedArray<int32_t> host_input_;
  PinnedArray<float> host_logits_;
  PinnedArray<TokenId> chosen_{kMaxGemvTokens};
  ChoicesOnCard choices_{kMaxGemvTokens};
  DeviceTensor input_, x_, logits_;
  std::array<std::array<GraphExec, kMaxGemvTokens + 1>, 4> graphs_;  // by Kind and number of rows
  std::unique_ptr<CapturedStep> two_tokens_;
};

}  // namespace minfer::cuda
