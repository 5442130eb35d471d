#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kernels/decode_plan.h"
#include "models/model.h"

namespace minfer {

struct SessionOptions {
  int64_t max_seq_len = 0;      // of a sequence; 0: the trained context
  int64_t prefill_chunk = 0;    // rows of one pass; 0: the backend's own choice
  DType kv_dtype = DType::F16;  // or F32, or U8: 8 bits with a scale per head and position
  bool fused_decode = true;     // by the backend's plan, where it has one
  int64_t n_sequences = 1;      // the cache has room for this many of max_seq_len at once
  // A pass may have the rows of several short sequences: more than one of max_seq_len has.
  bool several_sequences = false;
  // There is room for the logits of every row of a pass from the beginning.
  bool all_logits = false;
  // The same for those of a draft of so many tokens (engine/draft_decoder.h).
  int64_t n_draft_tokens = 0;
  // Called as a prompt of several tokens is evaluated, with the blocks done and in all. May be
  // null.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// The most cache pages that one sequence of max_seq_len tokens has at a time if it is evaluated in
// passes of at most `chunk` rows: with a sliding window in every layer, pages behind it are free.
int64_t pages_of_sequence(const ModelSpec& spec, int64_t max_seq_len, int64_t chunk);

// What an executor takes of the backend's memory, to be known before the weights are read. Throws
// Usage where the model cannot have it.
SessionMemory session_memory(const ModelSpec& spec, const Backend& backend,
                             const SessionOptions& options);

// Of a model that several ranks may share: all that those of this process take of the host's
// memory, or what the one with the most takes of its card's.
SessionMemory session_memory(const OpenedModel& opened, const Backend& backend,
                             const SessionOptions& options);

// Tokens that a pass appends to a sequence. The caller wants the logits of the last n_logits.
struct SequenceTokens {
  Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;
  int64_t n_logits = 1;
};

// A model on a backend: the cache that sequences share, and every activation buffer, allocated here
// and never again. The model and backend outlive it.
class Executor {
 public:
  Executor(const Model& model, Backend& backend, const SessionOptions& options);
  ~Executor();

  const Model& model() const { return model_; }
  Backend& backend() const { return backend_; }
  int64_t max_seq_len() const { return options_.max_seq_len; }
  int64_t prefill_chunk() const { return options_.prefill_chunk; }
  // How many rows decode() takes at a time: of sequences, or of one.
  int64_t decode_rows() const {
    return std::min(backend_.preferred_decode_rows(), options_.prefill_chunk);
  }
  int64_t n_pages() const { return n_pages_; }
  int64_t n_free_pages() const { return pool_.n_free(); }
  int64_t kv_bytes() const;
  int64_t kv_bytes_of(int64_t layer) const;

  // Makes an empty sequence, which must not outlive the executor.
  Sequence make_sequence();
  // Throws Usage where the tokens do not fit behind it, or are none of the vocabulary's.
  void require_fitting(const Sequence& sequence, std::span<const TokenId> tokens) const;

  // Evaluates the tokens of all parts, prefill_chunk at most, in one pass and appends them to their
  // sequences. Returns the logits asked for, one part after the other, [n, vocab_size] F32 on the
  // device, valid until the next call; null where there are none. Throws Numeric at the first one
  // that is not finite, with its position; the sequences are as before then.
  Tensor evaluate(std::span<const SequenceTokens> parts);
  // Evaluates the tokens of one sequence chunk by chunk and returns the logits of the last one.
  // Throws Cancelled behind the last whole chunk if the backend's flag is set.
  Tensor evaluate_all(Sequence& sequence, std::span<const TokenId> tokens);

  // Copies logits to host memory; valid until the next call.
  std::span<const float> fetch(Tensor logits);

  // Calls f with the elements of `all` in turn, as many at a time as decode() takes.
  template <typename T, typename F>
  void in_turns(std::span<T> all, F f) const {
    for (size_t n = 0; !all.empty(); all = all.subspan(n)) {
      n = std::min(static_cast<size_t>(decode_rows()), all.size());
      f(all.first(n));
    }
  }

  // Throws Peer if a rank has waited for another in vain: what was read of the pass is of no use.
  void check_ranks() const;

  // The fused step, or null where the backend has none; made when first asked for.
  DecodePlan* decode_plan();
  // Evaluates the next token of each sequence, or the next few tokens of one, by a fused step where
  // the backend has one. Returns the logits of all, [n, vocab_size] in host memory, valid until the
  // next call. Throws as evaluate() does.
  std::span<const float> decode(std::span<const SequenceTokens> parts);
  // As decode(), but the backend chooses the token behind each, by a sampling for each part, whose
  // first_draw is for its first token. Returns those, valid until the next call, or none, with
  // nothing evaluated, if the backend cannot choose.
  std::span<const TokenId> choose(std::span<const SequenceTokens> parts,
                                  std::span<const DecodeSampling> samplings);
  // Runs a pass of one sequence again, which writes the same cache, and names the first position
  // and block whose result is not finite; `row` of the tokens is the first whose logits are not.
  [[noreturn]] void throw_non_finite(const Sequence& sequence, std::span<const TokenId> tokens,
                                     int64_t row);

 private:
  struct State;
  struct Rank;

  void report_progress(int64_t n_tokens);  // of what evaluate_all begins
  void fill_cache(Sequence& sequence, std::span<const TokenId> tokens);
  Tensor logits_of_last(Sequence& sequence, std::span<const TokenId> tokens, int64_t n_logits);
  // Calls f(rank) for every rank that shares the model, at once. The first one is the caller's own.
  template <typename F>
  void on_ranks(F f);
  RowsPlan* rows_plan();                    // as decode_plan()
  RowsPlan* rows_plan_for(int64_t n_rows);  // null if they are too many for it, too
  // What a step evaluates of such parts as decode() takes; pages are reserved.
  std::vector<DecodeRow> reserve_rows(std::span<const SequenceTokens> parts) const;
  // `row` of all rows of the parts is the first whose logits are not finite.
  [[noreturn]] void throw_non_finite(std::span<const SequenceTokens> parts, int64_t row);

  const Model& model_;
  Backend& backend_;
  SessionOptions options_;
  int64_t n_pages_;
  PagePool pool_;
  std::unique_ptr<State> state_;
};

}  // namespace minfer
