#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/layer.h"

namespace minfer {

// One block as a decode plan sees it. All outlive the plan and stay where they are.
struct DecodeLayer {
  LayerSpec spec;
  const LayerWeights* weights = nullptr;
  KvLayer* cache = nullptr;
};

// A whole decoder. What a model has not is null.
struct DecodeModel {
  int64_t max_seq_len = 0;  // positions that a sequence may have
  const Matrix* embedding = nullptr;
  const Matrix* positions = nullptr;  // learned ones
  std::vector<Tensor> rope_tables;    // [max_seq_len, rotary_dim / 2, 2] F32: LayerSpec::rope
  std::vector<DecodeLayer> layers;
  EdgeSpec edges;
  const Norm* output_norm = nullptr;
  const Matrix* output = nullptr;

  // The table that a layer rotates by; null where it does not rotate.
  Tensor rope_of(const LayerSpec& layer) const {
    return layer.rope < 0 ? Tensor() : rope_tables.at(static_cast<size_t>(layer.rope));
  }
};

// How a plan chooses tokens by itself: as Sampler of engine/sampler.h does without penalties, where
// the meaning of each field stands.
struct DecodeSampling {
  float temperature = 0;  // 0: argmax, ties to the lower id
  int64_t top_k = 0;      // 0: off
  float top_p = 1, min_p = 0;
  uint64_t seed = 0, first_draw = 0;  // the number of the first draw
  int64_t n_tokens = 0;               // logits past them are padding
  std::vector<TokenId> banned;        // never chosen
};

// What a step evaluates: a token behind the first `pos` ones of a sequence, whose pages reach to it
// (SequenceRows::pages).
struct DecodeRow {
  TokenId token = 0;
  int64_t pos = 0;
  std::span<const int32_t> pages = {};
};

// Steps under way that feed themselves: while the host looks at a token, the step that evaluates it
// runs already. Gone before its plan; its end waits for what is under way.
class DecodeRun {
 public:
  virtual ~DecodeRun() = default;
  // The token chosen from the logits of the next step, at most n_steps times; -1 where one of them
  // is not finite, and no further token then. The caches hold every step whose token was given, and
  // rows past them that mean nothing.
  virtual TokenId next() = 0;
};

// A whole step of one token, fused as the backend can: what decode takes where there is one. The
// step op by op computes the same within the bound of the formats, and is its oracle.
class DecodePlan {
 public:
  virtual ~DecodePlan() = default;
  // Evaluates the row, after which the caches hold it; logits [vocab_size], in host memory, valid
  // until the next step.
  virtual std::span<const float> step(const DecodeRow& row) = 0;

  // Begins n_steps steps (1 or more, to which the row's pages reach): that of the row, that of the
  // token chosen from its logits one position behind it, and so on. Null where the plan cannot
  // choose so. No other step until the run is gone.
  virtual std::unique_ptr<DecodeRun> start(const DecodeRow& row, int64_t n_steps,
                                           const DecodeSampling& sampling) = 0;
};

// The same of several rows, each of a sequence of its own: row by row what DecodePlan computes,
// within the bound of the formats.
class RowsPlan {
 public:
  virtual ~RowsPlan() = default;
  virtual int64_t max_rows() const = 0;
  // Logits [rows.size(), vocab_size], in host memory, valid until the next step.
  virtual std::span<const float> step(std::span<const DecodeRow> rows) = 0;
};

}  // namespace minfer
