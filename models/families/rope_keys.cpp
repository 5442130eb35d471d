#include "models/families/rope_keys.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "models/config_reader.h"

namespace minfer {
namespace {

constexpr int64_t kMaxSeqLen = int64_t{1} << 31;
constexpr const char* kOriginal = "original_max_position_embeddings";

// Whether a type of scaling has the key, or all may have it. Files leave linear's and llama3's keys
// beside other types, where transformers ignores them. A key of YaRN or longrope beside another
// type would say that the file means something else than its type.
bool is_rope_key(RopeScaling scaling, const std::string& name) {
  using Names = std::vector<std::string_view>;
  static const Names kOfAll = {
      "rope_type",        "type",    "rope_theta",           "factor", "low_freq_factor",
      "high_freq_factor", kOriginal, "partial_rotary_factor"};
  static const std::map<RopeScaling, Names> kMore = {
      {RopeScaling::Yarn,
       {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "finetuned", "attn_factor", "extrapolation_factor"}},
      {RopeScaling::LongRope, {"attention_factor", "short_factor", "long_factor"}}};
  const auto has = [&](const Names& names) { return std::ranges::count(names, name) > 0; };
  const auto more = kMore.find(scaling);
  return has(kOfAll) || (more != kMore.end() && has(more->second));
}

// Also settings for each type of layer, which are objects, are not understood.
void refuse_other_rope_keys(const Metadata& config, const std::string& root, RopeScaling scaling) {
  for (const std::string& name : names_below(config, root)) {
    const std::string key = cat(root, ".", name);
    MINFER_REQUIRE(Input, config.has(key), "key ", key, " is an object: not supported");
    MINFER_REQUIRE(Input, is_rope_key(scaling, name), "key ", root, " is \"", shortened(name),
                   "\": not supported with rope type ",
                   scaling == RopeScaling::None ? "default" : scaling_name(scaling));
  }
}

// Where the settings of a rotation may stand: transformers takes the first that is there.
std::vector<std::string> rope_roots(const Metadata& config, std::string_view layer_type) {
  const std::string old_root = "rope_scaling", new_root = "rope_parameters";
  if (layer_type.empty()) return {old_root, new_root};
  for (const std::string& name : names_below(config, new_root)) {
    require_supported(new_root, name, {"full_attention", "sliding_attention"});
  }
  const std::string own = cat(new_root, ".", layer_type);
  if (layer_type == "full_attention") return {old_root, own};
  return {own};
}

RopeScaling read_type(const Metadata& config, const std::string& at, bool phi3_types) {
  std::string key = at + "rope_type";
  if (!config.has(key)) key = at + "type";  // its first name
  const std::string type = config.text_or(key, "default");
  if (phi3_types) {
    require_supported(key, type, {"default", "longrope", "su", "yarn"});
    return type == "default" ? RopeScaling::None : RopeScaling::LongRope;
  }
  require_supported(key, type, {"default", "linear", "llama3", "dynamic", "yarn", "longrope"});
  for (const RopeScaling scaling : {RopeScaling::Linear, RopeScaling::Llama3, RopeScaling::Dynamic,
                                    RopeScaling::Yarn, RopeScaling::LongRope}) {
    if (type == scaling_name(scaling)) return scaling;
  }
  return RopeScaling::None;
}

double read_theta(const Metadata& config, const std::string& at, const HfRopeDefaults& defaults) {
  for (const std::string& key : {at + "rope_theta", std::string(defaults.theta_key)}) {
    if (config.has(key)) return read_rope_theta(config, key);
  }
  const std::string last = cat("rope_parameters.", defaults.layer_type,
                               defaults.layer_type.empty() ? "" : ".", "rope_theta");
  return config.has(last) ? read_rope_theta(config, last) : defaults.theta;
}

int64_t read_rotary_dim(const Metadata& config, const std::string& at, int64_t head_dim,
                        const HfRopeDefaults& defaults) {
  std::string key = at + "partial_rotary_factor";
  if (!config.has(key)) key = defaults.partial_key;
  const double part = config.number_or(key, defaults.partial_factor, 0, 1);
  const auto rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  MINFER_REQUIRE(Input, rotary_dim >= 2 && rotary_dim % 2 == 0, "key ", key, " is ", part, ": ",
                 rotary_dim, " of ", head_dim, " elements, expected an even number");
  return rotary_dim;
}

void read_llama3(RopeSpec& rope, const Metadata& config, const std::string& at) {
  rope.low_freq_factor = config.number(at + "low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = config.number(at + "high_freq_factor", 1e-6, 1e6);
  MINFER_REQUIRE(Input, rope.low_freq_factor < rope.high_freq_factor,
                 "rope scaling: low_freq_factor ", rope.low_freq_factor,
                 " is not below high_freq_factor ", rope.high_freq_factor);
}

// beta_fast and beta_slow, which 0 leaves at their defaults.
void read_yarn_ramp(RopeSpec& rope, const Metadata& keys, const std::string& fast,
                    const std::string& slow) {
  const auto read = [&](double& beta, const std::string& key) {
    const double value = keys.number_or(key, beta, 0, 1e6);
    if (value > 0) beta = std::max(value, 1e-6);
  };
  read(rope.beta_fast, fast);
  read(rope.beta_slow, slow);
  MINFER_REQUIRE(Input, rope.theta > 1, "rope theta is ", rope.theta, ": YaRN needs more than 1");
}

void read_yarn(RopeSpec& rope, const Metadata& config, const std::string& at) {
  read_yarn_ramp(rope, config, at + "beta_fast", at + "beta_slow");
  rope.truncate = config.boolean_or(at + "truncate", true);
  const double mscale = config.number_or(at + "mscale", 0, 0, 1e6);
  const double all_dim = config.number_or(at + "mscale_all_dim", 0, 0, 1e6);
  rope.table_scale = mscale > 0 && all_dim > 0 ? yarn_table_scale(rope.factor, mscale) /
                                                     yarn_table_scale(rope.factor, all_dim)
                                               : yarn_table_scale(rope.factor);
  rope.table_scale = config.number_or(at + "attention_factor", rope.table_scale, 1e-6, 1e6);
  // Of the code that YaRN's first checkpoints came with; transformers does not read them.
  refuse_unless_neutral(config, at, {{"attn_factor", 1}, {"extrapolation_factor", 1}});
}

std::vector<double> read_divisors(const Metadata& config, const std::string& key, size_t n) {
  const auto found = config.all().find(key);
  std::vector<double> divisors;
  if (found != config.all().end() && std::holds_alternative<std::vector<int64_t>>(found->second)) {
    for (const int64_t value : config.integers(key)) divisors.push_back(double(value));
  } else {
    divisors = config.numbers(key);
  }
  MINFER_REQUIRE(Input, divisors.size() == n, "key ", key, " has ", divisors.size(),
                 " values, expected ", n);
  for (double& divisor : divisors) {
    divisor = double{static_cast<float>(divisor)};  // as transformers and GGUF files have them
    MINFER_REQUIRE(Input, divisor > 0 && std::isfinite(divisor), "key ", key, " has ", divisor,
                   ", expected more than 0");
  }
  return divisors;
}

void read_longrope(RopeSpec& rope, const Metadata& config, const std::string& at) {
  const auto n_pairs = static_cast<size_t>(rope.rotary_dim / 2);
  rope.short_divisors = read_divisors(config, at + "short_factor", n_pairs);
  rope.long_divisors = read_divisors(config, at + "long_factor", n_pairs);
  MINFER_REQUIRE(Input, rope.original_seq_len > 1, "longrope: an original context of ",
                 rope.original_seq_len, " tokens, expected more than 1");
  const auto original = static_cast<double>(rope.original_seq_len);
  double factor = 1;
  if (config.has(at + "factor")) {
    factor = read_rope_factor(config, at + "factor");
  } else {
    factor = config.number_or("max_position_embeddings", original, 1, 1e10) / original;
  }
  const double scale = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope.table_scale = config.number_or(at + "attention_factor", scale, 1e-6, 1e6);
}

int64_t read_original(const Metadata& config, const std::string& at, RopeScaling scaling,
                      int64_t of_family) {
  // What transformers takes, in this order.
  std::string key = kOriginal;
  if (scaling == RopeScaling::Dynamic) {
    key = "max_position_embeddings";
  } else if (!config.has(key)) {
    if (of_family > 0) return of_family;
    key = config.has(at + kOriginal) ? at + kOriginal : "max_position_embeddings";
  }
  return config.integer(key, 1, kMaxSeqLen);
}

// As llama.cpp computes it: always with whole pairs, and the scale from the factor.
void read_gguf_yarn(RopeSpec& rope, const Metadata& keys, const std::string& prefix) {
  const std::string at = prefix + "rope.scaling.";
  read_yarn_ramp(rope, keys, at + "yarn_beta_fast", at + "yarn_beta_slow");
  rope.original_seq_len =
      keys.integer_or(at + "original_context_length",
                      keys.integer(prefix + "context_length", 1, kMaxSeqLen), 1, kMaxSeqLen);
  const double scale = yarn_table_scale(rope.factor);
  rope.table_scale = scale * keys.number_or(at + "attn_factor", 1, 1e-6, 1e6);
  refuse_unless_neutral(keys, at, {{"yarn_ext_factor", 1}, {"yarn_log_multiplier", 0}});
  // llama.cpp overwrites this key, which converters write as config.json has it: the scale, or 1.
  const std::string key = at + "yarn_attn_factor";
  const double written = keys.number_or(key, 1, 0, 1e6);
  MINFER_REQUIRE(Input, written == 1 || std::abs(written - scale) <= 1e-6 * scale, "key ", key,
                 " is ", written, ": not supported (supported: 1, ", scale, ")");
}

}  // namespace

RopeSpec read_hf_rope(const Metadata& config, int64_t head_dim, const HfRopeDefaults& defaults) {
  const std::vector<std::string> roots = rope_roots(config, defaults.layer_type);
  const auto is_there = [&](const std::string& root) { return !names_below(config, root).empty(); };
  const auto found = std::ranges::find_if(roots, is_there);
  const std::string at = (found == roots.end() ? roots.back() : *found) + ".";
  RopeSpec rope{.theta = read_theta(config, at, defaults), .rotary_dim = head_dim};
  if (defaults.partial) rope.rotary_dim = read_rotary_dim(config, at, head_dim, defaults);
  rope.scaling = read_type(config, at, defaults.phi3_types);
  for (const std::string& root : roots) refuse_other_rope_keys(config, root, rope.scaling);
  if (rope.scaling == RopeScaling::None) return rope;
  if (rope.scaling != RopeScaling::LongRope) {
    rope.factor = read_rope_factor(config, at + "factor");
  }
  if (rope.scaling == RopeScaling::Linear) return rope;
  rope.original_seq_len = read_original(config, at, rope.scaling, defaults.original_seq_len);
  if (rope.scaling == RopeScaling::Llama3) read_llama3(rope, config, at);
  if (rope.scaling == RopeScaling::Yarn) read_yarn(rope, config, at);
  if (rope.scaling == RopeScaling::LongRope) read_longrope(rope, config, at);
  if (rope.scaling == RopeScaling::Dynamic) {
    MINFER_REQUIRE(Input, rope.rotary_dim > 2 && rope.factor >= 1, "key ", at, "factor is ",
                   rope.factor, " with ", rope.rotary_dim,
                   " rotated elements: dynamic scaling needs 1 or more, and more than 2");
  }
  return rope;
}

RopeSpec read_gguf_rope(const TensorSource& source, const Metadata& keys, const std::string& prefix,
                        int64_t head_dim) {
  RopeSpec rope;
  rope.theta = read_rope_theta(keys, prefix + "rope.freq_base");
  rope.rotary_dim = keys.integer_or(prefix + "rope.dimension_count", head_dim, 2, head_dim);
  MINFER_REQUIRE(Input, rope.rotary_dim % 2 == 0, "key ", prefix, "rope.dimension_count is ",
                 rope.rotary_dim, ", expected an even number");

  const std::string at = prefix + "rope.scaling.", type_key = at + "type";
  const bool is_long = source.find("rope_factors_long.weight") != nullptr ||
                       source.find("rope_factors_short.weight") != nullptr;
  // Older converters write longrope's tensors and no type.
  const std::string type = keys.text_or(type_key, is_long ? "longrope" : "linear");
  require_supported(type_key, type, {"none", "linear", "yarn", "longrope"});
  MINFER_REQUIRE(Input, is_long == (type == "longrope"), "key ", type_key, " is \"", type,
                 is_long ? "\": not supported with tensors rope_factors_long.weight and "
                           "rope_factors_short.weight"
                         : "\": tensors rope_factors_long.weight and rope_factors_short.weight "
                           "are missing");
  if (is_long) {
    rope.scaling = RopeScaling::LongRope;
    rope.original_seq_len = keys.integer(at + "original_context_length", 1, kMaxSeqLen);
    rope.table_scale = keys.number_or(at + "attn_factor", 1, 1e-6, 1e6);
    return rope;
  }
  if (type != "yarn") refuse_unless_neutral(keys, at, {{"attn_factor", 1}});
  std::string factor_key = at + "factor";
  if (!keys.has(factor_key)) factor_key = prefix + "rope.scale_linear";  // its first name
  if (type == "none" || (type == "linear" && !keys.has(factor_key))) return rope;
  rope.scaling = type == "yarn" ? RopeScaling::Yarn : RopeScaling::Linear;
  rope.factor = read_rope_factor(keys, factor_key);
  if (rope.scaling == RopeScaling::Yarn) read_gguf_yarn(rope, keys, prefix);
  return rope;
}

void set_ropes(ModelSpec& spec, RopeSpec full, const RopeSpec& sliding,
               const std::vector<bool>& slides) {
  set_rope(spec, std::move(full));
  if (sliding == spec.ropes.front()) return;
  spec.ropes.push_back(sliding);
  for (size_t i = 0; i < slides.size(); ++i) {
    if (slides[i]) spec.layers[i].rope = 1;
  }
}

void set_rope(ModelSpec& spec, RopeSpec rope) {
  // YaRN and dynamic scaling are for texts that are `factor` times as long, whatever the file says
  // of its context.
  if (rope.scaling == RopeScaling::Yarn || rope.scaling == RopeScaling::Dynamic) {
    const double extended = rope.factor * static_cast<double>(rope.original_seq_len);
    spec.trained_seq_len =
        std::max(spec.trained_seq_len,
                 static_cast<int64_t>(std::min(extended, static_cast<double>(kMaxSeqLen))));
  }
  spec.ropes = {std::move(rope)};
  for (LayerSpec& layer : spec.layers) layer.rope = 0;
}

}  // namespace minfer
