#include "models/spec.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <variant>

#include "models/config_reader.h"
#include "models/stored_flags.h"

namespace minfer {
namespace {

constexpr double kTiny = 1e-300;  // "more than zero"

// Numbers and booleans as a number; NaN, which equals nothing, for what is neither.
double as_number(const Metadata::Value& value) {
  return std::visit(
      []<typename T>(const T& v) {
        if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(v);
        return std::nan("");
      },
      value);
}

}  // namespace

ModelSpec read_sizes(const Metadata& metadata, const SizeKeys& keys, const SizeDefaults& defaults) {
  constexpr int64_t kMaxDim = 1 << 20, kMaxFfnDim = 1 << 22, kMaxSeqLen = int64_t{1} << 31;
  const auto size = [&](const std::string& key, int64_t fallback, int64_t high) {
    return fallback > 0 ? metadata.integer_or(key, fallback, 1, high)
                        : metadata.integer(key, 1, high);
  };
  ModelSpec spec;
  LayerSpec layer;
  const int64_t n_layers = size(keys.n_layers, 0, 1024);
  spec.dim = size(keys.dim, 0, kMaxDim);
  layer.n_heads = size(keys.n_heads, 0, 4096);
  layer.n_kv_heads = layer.n_heads;
  if (!keys.n_kv_heads.empty()) {
    // A key that is null means as many as heads, as in transformers, and not the default.
    const bool has_default = defaults.n_kv_heads > 0 && !metadata.nulls.contains(keys.n_kv_heads);
    const int64_t fallback = has_default ? defaults.n_kv_heads : layer.n_heads;
    layer.n_kv_heads = size(keys.n_kv_heads, fallback, 4096);
  }
  MINFER_REQUIRE(Input, layer.n_heads % layer.n_kv_heads == 0, layer.n_heads,
                 " heads are no multiple of ", layer.n_kv_heads, " key/value heads");

  if (!keys.head_dim.empty() && (metadata.has(keys.head_dim) || defaults.head_dim > 0)) {
    layer.head_dim = metadata.integer_or(keys.head_dim, defaults.head_dim, 2, 1024);
  } else {
    MINFER_REQUIRE(Input, spec.dim % layer.n_heads == 0, "key ", keys.dim, ": width ", spec.dim,
                   " is no multiple of ", layer.n_heads, " heads");
    layer.head_dim = spec.dim / layer.n_heads;
  }
  MINFER_REQUIRE(Input, layer.head_dim >= 2 && layer.head_dim <= 1024 && layer.head_dim % 2 == 0,
                 "head size ", layer.head_dim, ", expected an even number from 2 to 1024");

  layer.ffn_dim = size(keys.ffn_dim, defaults.ffn_dim, kMaxFfnDim);
  spec.trained_seq_len = size(keys.trained_seq_len, defaults.trained_seq_len, kMaxSeqLen);
  constexpr double kBelowOne = 1 - 0x1p-53;
  layer.norm_eps = static_cast<float>(
      defaults.norm_eps > 0 ? metadata.number_or(keys.norm_eps, defaults.norm_eps, 1e-30, kBelowOne)
                            : metadata.number(keys.norm_eps, 1e-30, kBelowOne));
  spec.edges.output_norm_eps = layer.norm_eps;
  spec.layers.assign(static_cast<size_t>(n_layers), layer);
  return spec;
}

int64_t read_vocab_size(const Metadata& metadata, const std::string& key) {
  return metadata.integer(key, 1, 1 << 24);
}

double read_rope_theta(const Metadata& metadata, const std::string& key) {
  return metadata.number_or(key, 10000.0, kTiny, 1e30);
}

double read_rope_factor(const Metadata& metadata, const std::string& key) {
  return metadata.number(key, kTiny, 1e6);
}

void refuse_unless_neutral(const Metadata& metadata, const std::string& prefix,
                           const std::vector<NeutralKey>& keys) {
  for (const NeutralKey& flag : keys) {
    const std::string key = prefix + std::string(flag.key);
    const auto found = metadata.all().find(key);
    if (found == metadata.all().end()) continue;
    const double value = as_number(found->second);
    MINFER_REQUIRE(Input, std::abs(value - flag.neutral) <= 1e-6 * flag.neutral, "key ", key,
                   " is ", metadata.as_text(key), ": not supported (supported: ", flag.neutral,
                   ")");
  }
}

int64_t read_window(const Metadata& metadata, const std::string& key, int64_t trained_seq_len) {
  const auto found = metadata.all().find(key);
  const double* const real =
      found == metadata.all().end() ? nullptr : std::get_if<double>(&found->second);
  if (real != nullptr && *real == HUGE_VAL) return 0;  // "Infinity"
  const int64_t window = metadata.integer_or(key, 0, 0, int64_t{1} << 40);
  return window >= trained_seq_len ? 0 : window;
}

void refuse_sliding_window(const Metadata& metadata, const std::string& key,
                           int64_t trained_seq_len) {
  const int64_t window = read_window(metadata, key, trained_seq_len);
  MINFER_REQUIRE(Input, window == 0, "key ", key, " is ", window,
                 ": attention windows below the context of ", trained_seq_len,
                 " are not supported (supported: none)");
}

ModelSpec read_model_spec(const TensorSource& source) {
  ModelSpec spec = source.key_style == KeyStyle::HuggingFace ? read_hf_spec(source.metadata)
                                                             : read_gguf_spec(source);
  settle_by_tensors(spec, source);
  return spec;
}

std::vector<std::string> unknown_config_keys(const TensorSource& source, const ModelSpec& spec) {
  return source.key_style == KeyStyle::Gguf ? unknown_gguf_keys(source.metadata, spec)
                                            : unknown_hf_keys(source.metadata);
}

}  // namespace minfer
