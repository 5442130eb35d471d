#include "models/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
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

void read_sizes(ModelConfig& config, const Metadata& metadata, const SizeKeys& keys,
                const SizeDefaults& defaults) {
  constexpr int64_t kMaxDim = 1 << 20, kMaxFfnDim = 1 << 22, kMaxSeqLen = int64_t{1} << 31;
  const auto size = [&](const std::string& key, int64_t fallback, int64_t high) {
    return fallback > 0 ? metadata.integer_or(key, fallback, 1, high)
                        : metadata.integer(key, 1, high);
  };
  config.n_layers = size(keys.n_layers, 0, 1024);
  config.dim = size(keys.dim, 0, kMaxDim);
  config.n_heads = size(keys.n_heads, 0, 4096);
  config.n_kv_heads = config.n_heads;
  if (!keys.n_kv_heads.empty()) {
    const int64_t fallback = defaults.n_kv_heads > 0 ? defaults.n_kv_heads : config.n_heads;
    config.n_kv_heads = size(keys.n_kv_heads, fallback, 4096);
  }
  MINFER_REQUIRE(Input, config.n_heads % config.n_kv_heads == 0, config.n_heads,
                 " heads are no multiple of ", config.n_kv_heads, " key/value heads");

  if (!keys.head_dim.empty() && metadata.has(keys.head_dim)) {
    config.head_dim = metadata.integer(keys.head_dim, 2, 1024);
  } else {
    MINFER_REQUIRE(Input, config.dim % config.n_heads == 0, "key ", keys.dim, ": width ",
                   config.dim, " is no multiple of ", config.n_heads, " heads");
    config.head_dim = config.dim / config.n_heads;
  }
  MINFER_REQUIRE(Input, config.head_dim >= 2 && config.head_dim <= 1024 && config.head_dim % 2 == 0,
                 "head size ", config.head_dim, ", expected an even number from 2 to 1024");
  config.rotary_dim = config.head_dim;

  config.ffn_dim = size(keys.ffn_dim, defaults.ffn_dim, kMaxFfnDim);
  config.trained_seq_len = size(keys.trained_seq_len, defaults.trained_seq_len, kMaxSeqLen);
  constexpr double kBelowOne = 1 - 0x1p-53;
  config.norm_eps = static_cast<float>(
      defaults.norm_eps > 0 ? metadata.number_or(keys.norm_eps, defaults.norm_eps, 1e-30, kBelowOne)
                            : metadata.number(keys.norm_eps, 1e-30, kBelowOne));
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

void refuse_sliding_window(const Metadata& metadata, const std::string& key,
                           int64_t trained_seq_len) {
  const auto found = metadata.all().find(key);
  const double* const real =
      found == metadata.all().end() ? nullptr : std::get_if<double>(&found->second);
  if (real != nullptr && *real == HUGE_VAL) return;  // "Infinity"
  const int64_t window = metadata.integer_or(key, 0, 0, int64_t{1} << 40);
  MINFER_REQUIRE(Input, window == 0 || window >= trained_seq_len, "key ", key, " is ", window,
                 ": attention windows below the context of ", trained_seq_len,
                 " are not supported (supported: none)");
}

ModelConfig read_model_config(const TensorSource& source) {
  ModelConfig config = source.key_style == KeyStyle::HuggingFace ? read_hf_config(source.metadata)
                                                                 : read_gguf_config(source);
  settle_by_tensors(config, source);
  return config;
}

std::vector<std::string> unknown_config_keys(const TensorSource& source,
                                             const ModelConfig& config) {
  return source.key_style == KeyStyle::Gguf ? unknown_gguf_keys(source.metadata, config)
                                            : unknown_hf_keys(source.metadata);
}

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies(static_cast<size_t>(config.rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    double frequency = std::pow(config.rope_theta, exponent);
    if (config.rope_scaling == RopeScaling::Linear) frequency /= config.rope_factor;
    if (config.rope_scaling == RopeScaling::Llama3) {
      // Turns within the original context: few are stretched by the factor, many are kept, those
      // between are blended linearly. Source: Llama 3.1's reference code.
      const double turns =
          static_cast<double>(config.rope_original_seq_len) * frequency / (2 * std::numbers::pi);
      const double kept =
          std::clamp((turns - config.rope_low_freq_factor) /
                         (config.rope_high_freq_factor - config.rope_low_freq_factor),
                     0.0, 1.0);
      frequency *= kept + (1 - kept) / config.rope_factor;
    }
    if (!config.rope_freq_divisors.empty()) frequency /= config.rope_freq_divisors[i];
    frequencies[i] = frequency;
  }
  return frequencies;
}

}  // namespace minfer
