#pragma once

#include <algorithm>

#include "kernels/decode_plan.h"

namespace minfer::cuda {

// Whether all blocks are those of Llama, alike, and nothing is done before or behind them but the
// embedding and the output norm and matrix.
inline bool are_plain_blocks(const DecodeModel& model) {
  const LayerSpec& s = model.layers.front().spec;
  const LayerSpec llama = {.n_heads = s.n_heads,
                           .n_kv_heads = s.n_kv_heads,
                           .head_dim = s.head_dim,
                           .ffn_dim = s.ffn_dim,
                           .norm_eps = s.norm_eps,
                           .rope = s.rope,
                           .attn_scale = s.attn_scale};
  return std::ranges::all_of(model.layers, [&](const DecodeLayer& l) { return l.spec == llama; }) &&
         model.edges == EdgeSpec{.output_norm_eps = s.norm_eps};
}

}  // namespace minfer::cuda
