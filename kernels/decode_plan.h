#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/layer.h"
#include "kernels/step_profile.h"

namespace minfer {

// One block as a decode plan sees it. What it points to outlives the plan and keeps its address.
struct DecodeLayer {
  LayerSpec spec;
  const LayerWeights* weights = nullptr;
  KvLayer* cache = nullptr;
};

// A whole decoder. What a model does not have is null.
struct DecodeModel {
  int64_t max_seq_len = 0;  // most positions of a sequence
  const Matrix* embedding = nullptr;
  const Matrix* positions = nullptr;  // learned position embeddings
  std::vector<Tensor> rope_tables;    // [max_seq_len, rotary_dim / 2, 2] F32: LayerSpec::rope
  std::vector<DecodeLayer> layers;
  EdgeSpec edges;
  const Norm* output_norm = nullptr;
  const Matrix* output = nullptr;  // its rows give vocab_size logits, or with several ranks those
  int64_t vocab_size = 0, logits_begin = 0;  // from logits_begin on

  // The RoPE table of a layer; null if the layer does not rotate.
  Tensor rope_of(const LayerSpec& layer) const {
    return layer.rope < 0 ? Tensor() : rope_tables.at(static_cast<size_t>(layer.rope));
  }
};

// How a plan itself chooses tokens: as Sampler (engine/sampler.h), which documents each field,
// without penalties.
struct DecodeSampling {
  float temperature = 0;  // 0: argmax, ties to the lower id
  int64_t top_k = 0;      // 0: off
  float top_p = 1, min_p = 0;
  uint64_t seed = 0, first_draw = 0;  // the number of the first draw
  int64_t n_tokens = 0;               // logits past them are padding
  std::vector<TokenId> banned;        // never chosen
};

// What a step evaluates: the token at position `pos` of a sequence, whose pages reach to it
// (SequenceRows::pages).
struct DecodeRow {
  TokenId token = 0;
  int64_t pos = 0;
  std::span<const int32_t> pages = {};
};

// A run of steps, each of which evaluates the token that the step before it chose: while the host
// looks at a token, the next step already runs. It must be destroyed before its plan, and its
// destructor waits for the steps in flight.
class DecodeRun {
 public:
  virtual ~DecodeRun() = default;
  // Returns the token chosen from the logits of the next step. It may be called n_steps times. It
  // returns -1 if a logit is not finite, and must not be called again after that. The caches then
  // hold the rows of all steps whose tokens it returned; rows past them mean nothing.
  // It throws Peer if a rank waits in vain for another; the last call waits for all of them.
  virtual TokenId next() = 0;
};

// A fused decode step of one token, used where the backend has one. The step operation by operation
// computes the same within the bound of the formats, and is its oracle.
class DecodePlan {
 public:
  virtual ~DecodePlan() = default;
  // Evaluates the row and adds it to the caches. Returns the logits [vocab_size], in host memory,
  // valid until the next step.
  virtual std::span<const float> step(const DecodeRow& row) = 0;

  // Begins a run of n_steps steps (1 or more, to which the row's pages reach): the step of `row`,
  // then that of the token chosen from its logits, one position later, and so on. Null if the plan
  // cannot choose tokens that way. No other step may begin until the run is destroyed.
  virtual std::unique_ptr<DecodeRun> start(const DecodeRow& row, int64_t n_steps,
                                           const DecodeSampling& sampling) = 0;

  // Counts from here on where the clocks of steps go, which makes them slightly slower; the results
  // stay the same. False if the plan cannot. No run may be under way, here and at the end.
  virtual bool start_profile() { return false; }
  // Returns what was counted since, and stops counting.
  virtual StepProfile end_profile() { return {}; }
};

// A batched decode step of several rows: row by row it computes what DecodePlan does, within the
// bound of the formats.
class RowsPlan {
 public:
  virtual ~RowsPlan() = default;
  virtual int64_t max_rows() const = 0;
  // Evaluates rows of as many sequences. Returns their logits [rows.size(), vocab_size], in host
  // memory, valid until the next step.
  virtual std::span<const float> step(std::span<const DecodeRow> rows) = 0;
  // The same for rows of one sequence at consecutive positions: each sees those in front of it.
  virtual std::span<const float> step_of_sequence(std::span<const DecodeRow> rows) = 0;

  // The same, but the plan chooses the token behind each row and returns those, valid until the
  // next step: -1 where a logit of the row is not finite. Returns none, and evaluates nothing, if
  // it cannot choose so. There is a sampling for each sequence; rows of one take draws from
  // sampling.first_draw on.
  virtual std::span<const TokenId> choose(std::span<const DecodeRow> rows,
                                          std::span<const DecodeSampling> samplings) = 0;
  virtual std::span<const TokenId> choose_of_sequence(std::span<const DecodeRow> rows,
                                                      const DecodeSampling& sampling) = 0;
};

}  // namespace minfer
