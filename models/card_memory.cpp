#include "models/card_memory.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/base/math.h"

namespace minfer {

std::string gigabytes(int64_t bytes) { return cat(std::round(double(bytes) / 1e7) / 100, " GB"); }

void require_card_memory(int64_t free_bytes, const WeightMemory& weights,
                         const SessionMemory& session) {
  const int64_t needed =
      checked_add(checked_add(weights.bytes, session.kv_bytes), session.activation_bytes);
  if (needed <= free_bytes) return;

  std::string parts = cat("weights ", gigabytes(weights.bytes));
  if (session.n_positions > 0) {
    parts +=
        cat(", a KV cache of ", session.n_positions, " positions ", gigabytes(session.kv_bytes),
            ", activations ", gigabytes(session.activation_bytes));
  }

  std::string remedies;
  int n_remedies = 0;
  const auto offer = [&](const std::string& what, int64_t bytes) {
    if (bytes > free_bytes || n_remedies == 2) return;
    remedies += cat(n_remedies++ == 0 ? "" : ", or ", what);
  };
  const auto offer_with_its_bytes = [&](const std::string& what, int64_t saved) {
    if (saved > 0) offer(cat(what, " (", gigabytes(needed - saved), ")"), needed - saved);
  };
  offer_with_its_bytes("--kv-type int8", session.kv_bytes - session.kv_bytes_as_int8);
  // As many positions as fit, where they are worth it.
  const int64_t for_kv = free_bytes - (needed - session.kv_bytes);
  if (!session.context_option.empty() && session.kv_bytes > 0 && for_kv > 0) {
    const auto fitting = static_cast<int64_t>(double(for_kv) / double(session.kv_bytes) *
                                              double(session.n_positions));
    constexpr int64_t kStep = 256;
    if (fitting >= kStep)
      offer(cat(session.context_option, " ", fitting / kStep * kStep), free_bytes);
  }
  offer_with_its_bytes("`minfer quantize` first", weights.bytes - weights.bytes_as_int4);
  offer("--device cpu", 0);

  throw Error(ErrorKind::Memory,
              cat("the model needs ", gigabytes(needed), " of the card's memory, ",
                  gigabytes(free_bytes), " are free: ", parts, "; it fits with ", remedies));
}

}  // namespace minfer
