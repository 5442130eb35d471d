#pragma once

#include <cuda_runtime.h>

#include <optional>
#include <span>

#include "kernels/base/tensor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/step_input.h"
#include "kernels/decode_plan.h"

namespace minfer::cuda {

constexpr int kMaxTopK = 1024, kMaxBanned = 16;

// A DecodeSampling as the kernel reads it, from device memory, so that one captured graph serves
// for every setting.
struct TokenChoice {
  uint64_t seed, draw_at_zero;  // position p takes draw number draw_at_zero + p, modulo 2^64
  float temperature, top_p, min_p;
  int32_t top_k;  // 1 to kMaxTopK
  int32_t n_tokens, n_banned;
  TokenId banned[kMaxBanned];

  bool operator==(const TokenChoice&) const = default;
};

// The choice for a run whose first token is evaluated at `pos`; greedy ones are all alike. Null if
// the kernel cannot compute it: it takes at most vocab_size logits, 1 to kMaxTopK candidates, and
// at most kMaxBanned banned tokens, not all of them.
std::optional<TokenChoice> token_choice(const DecodeSampling& sampling, int64_t vocab_size,
                                        int64_t pos);

// Epochs count up from 1 by n each step (0: a step uses none). They start again at 1 if those of
// the next step would not stay below 65536.
__host__ __device__ inline uint32_t epoch_after(uint32_t epoch, uint32_t n) {
  return epoch + 2 * n > 65536 ? 1 : epoch + n;
}

// Chooses the token after the step of *input from `logits` [n_tokens] F32, aligned to 16 bytes.
// Writes it to chosen[pos % 2], in pinned host memory, and makes *input the input of the step that
// evaluates it. If a logit is not finite, chosen is -1 and that input has token 0.
// with_pdl: launched by PDL, where the kernel in front calls let_successor_begin(): see
// CapturedStep::choice_uses_pdl().
void choose_token(cudaStream_t stream, const float* logits, const TokenChoice* choice,
                  StepInput* input, uint32_t epochs_per_step, TokenId* chosen, bool with_pdl);

// Chooses the token behind each row of `logits` [n_rows, vocab_size] F32, as choices[row] says, of
// token_choice(.., pos 0); vocab_size is a multiple of 4. Writes them to chosen[n_rows], in pinned
// host memory: -1 where a logit of the row is not finite.
void choose_tokens(cudaStream_t stream, Tensor logits, const TokenChoice* choices, TokenId* chosen,
                   bool with_pdl);

// Room for n TokenChoices in device memory.
class ChoicesOnCard {
 public:
  explicit ChoicesOnCard(int64_t n);

  // Copies the first ones in stream order, unless they are there; no kernel that reads them is in
  // flight.
  void set(cudaStream_t stream, std::span<const TokenChoice> choices);
  const TokenChoice* data() const { return static_cast<const TokenChoice*>(card_.view().data); }

 private:
  PinnedArray<TokenChoice> host_;
  DeviceTensor card_;
};

}  // namespace minfer::cuda
