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

void DecodeRows::check(Kind kind, std::span<const DecodeRow> rows) const {
  const int64_t n = std::ssize(rows);
  MINFER_CHECK(n >= 1 && n <= max_rows(), "a step of ", n, " rows");
  for (int64_t i = 0; i < n; ++i) {
    const DecodeRow& row = rows[size_t(i)];
    const int64_t of_sequence = i % rows_of_sequence(kind, n);
    MINFER_CHECK(row.pos >= 0 && row.pos < model_.max_seq_len &&
                     pages_for(row.pos + 1) <= std::ssize(row.pages) &&
                     std::ssize(row.pages) <= table_pages_ &&
                     row.pos == rows[size_t(i - of_sequence)].pos + of_sequence,
                 "decode at position ", row.pos, " of ", model_.max_seq_len, ", ", row.pages.size(),
                 " pages");
  }
}

std::span<const float> DecodeRows::step(std::span<const DecodeRow> rows) {
  run(Kind::LogitsOfSequences, rows);
  return host_logits(rows.size());
}

std::span<const float> DecodeRows::step_of_sequence(std::span<const DecodeRow> rows) {
  if (takes_two_tokens(rows)) {
    check(Kind::LogitsOfSequence, rows);
    return two_tokens_->run(rows);
  }
  run(Kind::LogitsOfSequence, rows);
  return host_logits(rows.size());
}

bool DecodeRows::add_choice(std::vector<TokenChoice>& choices,
                            const DecodeSampling& sampling) const {
  const int64_t vocab_size = model_.output->out_dim;
  if (vocab_size % 4 != 0) return false;
  const std::optional<TokenChoice> choice = token_choice(sampling, vocab_size, 0);
  if (choice) choices.push_back(*choice);
  return choice.has_value();
}

std::span<const TokenId> DecodeRows::choose(std::span<const DecodeRow> rows,
                                            std::span<const DecodeSampling> samplings) {
  MINFER_CHECK(rows.size() == samplings.size(), rows.size(), " rows, ", samplings.size(),
               " samplings");
  std::vector<TokenChoice> choices;
  for (const DecodeSampling& sampling : samplings) {
    if (!add_choice(choices, sampling)) return {};
  }
  choices_.set(stream_, choices);
  run(Kind::TokensOfSequences, rows);
  return {chosen_.data(), rows.size()};
}

std::span<const TokenId> DecodeRows::choose_of_sequence(std::span<const DecodeRow> rows,
                                                        const DecodeSampling& sampling) {
  std::vector<TokenChoice> choices;
  DecodeSampling of_row = sampling;
  for (; choices.size() < rows.size(); ++of_row.first_draw) {
    if (!add_choice(choices, of_row)) return {};
  }
  if (takes_two_tokens(rows)) {
    check(Kind::TokensOfSequence, rows);
    return two_tokens_->choose(rows, choices);
  }
  choices_.set(stream_, choices);
  run(Kind::TokensOfSequence, rows);
  return {chosen_.data(), rows.size()};
}

void DecodeRows::run(Kind kind, std::span<const DecodeRow> rows) {
  check(kind, rows);
  const int64_t n = std::ssize(rows);
  int32_t* const tokens = host_input_.data();
  int32_t* const positions = tokens + n;
  int32_t* table = positions + n;
  for (int64_t i = 0; i < n; ++i) {
    const DecodeRow& row = rows[size_t(i)];
    tokens[i] = row.token;
    positions[i] = narrow<int32_t>(row.pos);
    if (i % rows_of_sequence(kind, n) > 0) continue;
    std::ranges::copy(row.pages, table);
    table += table_pages_;
  }
  GraphExec& graph = graphs_[size_t(kind)][size_t(n)];
  if (!graph) graph = captured(kind, n);
  MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream_));
  MINFER_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

GraphExec DecodeRows::captured(Kind kind, int64_t n) {
  const auto* const input = static_cast<const int32_t*>(input_.view().data);
  const StepRows rows{input, input + n, input + 2 * n, rows_of_sequence(kind, n)};
  const Tensor x = x_.view().rows(0, n), logits = logits_.view().rows(0, n);
  const auto n_words = static_cast<size_t>(n_input_words(n, n / rows.of_sequence));
  return capture_graph(stream_, [&] {
    MINFER_CUDA_CHECK(cudaMemcpyAsync(input_.view().data, host_input_.data(),
                                      n_words * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
    gather_rows(stream_, x, *model_.embedding, rows.tokens);
    layers_.launch(x, logits, rows);
    if (kind == Kind::TokensOfSequences || kind == Kind::TokensOfSequence) {
      choose_tokens(stream_, logits, choices_.data(), chosen_.data(), /*with_pdl=*/false);
    } else {
      MINFER_CUDA_CHECK(cudaMemcpyAsync(host_logits_.data(), logits.data,
                                        static_cast<size_t>(logits.n_bytes()),
                                        cudaMemcpyDeviceToHost, stream_));
    }
  });
}

}  // namespace minfer::cuda
