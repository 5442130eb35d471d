#include "models/stored_flags.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "models/families/family.h"
#include "models/weight_names.h"

namespace minfer {
namespace {

// Whether two matrices have the same bytes. Those of groups count as different: what is stored is
// used then, which is right either way.
bool same_values(const TensorSource& source, const TensorEntry& a, const TensorEntry& b) {
  if (a.quant || b.quant || a.dtype != b.dtype || a.shape != b.shape || a.shape.rank != 2) {
    return false;
  }
  constexpr int64_t kPieceBytes = 4 << 20;
  const int64_t row_bytes = bytes_of(a.dtype, a.shape[1]);
  const int64_t at_once = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t row = 0; row < a.shape[0]; row += at_once) {
    const int64_t n = std::min(at_once, a.shape[0] - row);
    const HostTensor left = source.read_rows(a, row, n), right = source.read_rows(b, row, n);
    if (std::memcmp(left.view().data, right.view().data,
                    static_cast<size_t>(left.view().n_bytes())) != 0) {
      return false;
    }
  }
  return true;
}

void settle_output(ModelSpec& spec, const TensorSource& source) {
  const StoredTables stored = find_tables(source, spec);
  const char* const flag = spec.tied_output ? "true" : "false";
  const bool same = stored.embedding != nullptr && stored.output != nullptr && spec.tied_output &&
                    same_values(source, *stored.embedding, *stored.output);
  const bool tied = !stored.has_output || (spec.tied_output && (!stored.has_embedding || same));
  if (tied == spec.tied_output) return;
  spec.tied_output = tied;
  spec.warnings.push_back(cat("tensor ", shortened(stored.output_name),
                              tied ? ": is not there, so the output layer is the embedding"
                                   : ": is not the embedding, so it is the output layer",
                              ", though tie_word_embeddings is ", flag));
}

bool all_zero(const TensorSource& source, const std::vector<const TensorEntry*>& vectors) {
  return std::ranges::all_of(vectors, [&](const TensorEntry* entry) {
    const HostTensor values = to_f32_tensor(source.read(*entry));
    const float* const begin = values.as<const float>();
    return std::all_of(begin, begin + values.view().n_elements(), [](float x) { return x == 0; });
  });
}

//   flag  as `key` of config.json has set it; GGUF files have no such key
void settle_bias(bool LayerSpec::*flag, ModelSpec& spec, const TensorSource& source,
                 const char* key, const char* modules) {
  const std::vector<const TensorEntry*> biases = find_biases(source, spec, flag);
  const bool is_gguf = source.key_style == KeyStyle::Gguf, was_set = spec.layer(0).*flag;
  // Some quantizers write biases of zero for every linear layer.
  const bool has_bias = !biases.empty() && (is_gguf || was_set || !all_zero(source, biases));
  for (LayerSpec& layer : spec.layers) layer.*flag = has_bias;
  if (is_gguf || has_bias == was_set) return;
  spec.warnings.push_back(
      cat(modules, has_bias ? " have biases, which are added, though " : " have no biases, though ",
          key, " is ", has_bias ? "false" : "true"));
}

}  // namespace

void settle_by_tensors(ModelSpec& spec, const TensorSource& source) {
  settle_output(spec, source);
  if (!family_of(spec).biases_by_tensors) return;
  settle_bias(&LayerSpec::qkv_bias, spec, source, "attention_bias", "queries, keys and values");
  settle_bias(&LayerSpec::attn_out_bias, spec, source, "attention_bias", "attention outputs");
  settle_bias(&LayerSpec::ffn_bias, spec, source, "mlp_bias", "the FFN's layers");
}

}  // namespace minfer
