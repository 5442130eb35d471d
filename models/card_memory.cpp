#include "models/card_memory.h"

#include "kernels/base/bytes_text.h"
#include "kernels/base/error.h"
#include "kernels/base/math.h"

namespace minfer {

namespace {

void require_fitting(int64_t free_bytes, const WeightMemory& weights, const SessionMemory& session,
                     bool on_card) {
  const int64_t needed =
      checked_add(checked_add(weights.bytes, session.kv_bytes), session.activation_bytes);
  if (needed <= free_bytes) return;

  std::string parts = cat("weights ", bytes_text(weights.bytes));
  if (session.n_positions > 0) {
    parts +=
        cat(", a KV cache of ", session.n_positions, " positions ", bytes_text(session.kv_bytes),
            ", activations ", bytes_text(session.activation_bytes));
  }

  std::string remedies;
  int n_remedies = 0;
  const auto offer = [&](const std::string& what, int64_t bytes) {
    if (bytes > free_bytes || n_remedies == 2) return;
    remedies += cat(n_remedies++ == 0 ? "" : ", or ", what);
  };
  const auto offer_with_its_bytes = [&](const std::string& what, int64_t saved) {
    if (saved > 0) offer(cat(what, " (", bytes_text(needed - saved), ")"), needed - saved);
  };
  offer_with_its_bytes("--kv-type int8", session.kv_bytes - session.kv_bytes_as_int8);
  // Offers as many positions as fit, rounded down to kStep; fewer than kStep would be of no use.
  const int64_t for_kv = free_bytes - (needed - session.kv_bytes);
  if (!session.context_option.empty() && session.kv_bytes > 0 && for_kv > 0) {
    const auto fitting = static_cast<int64_t>(double(for_kv) / double(session.kv_bytes) *
                                              double(session.n_positions));
    constexpr int64_t kStep = 256;
    if (fitting >= kStep)
      offer(cat(session.context_option, " ", fitting / kStep * kStep), free_bytes);
  }
  offer_with_its_bytes("`minfer quantize` first", weights.bytes - weights.bytes_as_int4);
  if (on_card) offer("--device cpu", 0);

  throw Error(ErrorKind::Memory,
              cat("the model needs ", bytes_text(needed),
                  on_card ? " of the card's memory, " : " of memory, ", bytes_text(free_bytes),
                  " are free: ", parts,
                  remedies.empty() ? "; no option makes it fit" : "; it fits with ", remedies));
}

}  // namespace

void require_card_memory(int64_t free_bytes, const WeightMemory& weights,
                         const SessionMemory& session) {
  require_fitting(free_bytes, weights, session, /*on_card=*/true);
}

void require_memory_of_model(int64_t free_bytes, const WeightMemory& weights,
                             const SessionMemory& session) {
  require_fitting(free_bytes, weights, session, /*on_card=*/false);
}

}  // namespace minfer
