#include "models/quantize/plan.h"

#include <utility>

#include "loaders/hf_config.h"
#include "models/config_reader.h"
#include "models/source_error.h"

namespace minfer {
namespace {

constexpr int64_t kInt4Group = 64;

// '*' any text, '?' any one character. Backs up to the last star alone, which is enough.
bool fits(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, after_star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

class Planner {
 public:
  Planner(const ModelConfig& config, const QuantizeOptions& options)
      : config_(config), options_(options), uses_(options.rules.size()) {}

  // Fills in the output of a tensor whose name and shape are set.
  void choose(PlannedTensor& tensor) {
    const StoredType type = type_of(tensor.output);
    const bool quantized = type == StoredType::Int4 || type == StoredType::Int8;
    if (!quantized || tensor.output.shape.rank < 2) {
      tensor.output.dtype = float_type(quantized ? StoredType::Keep : type, tensor.source_type);
      return;
    }
    const int64_t in_dim = tensor.output.shape[1];
    int64_t group = type == options_.type      ? options_.group
                    : type == StoredType::Int4 ? kInt4Group
                                               : 0;
    if (is_table(tensor.output.name) && type == StoredType::Int8) group = 0;
    const bool divides = group == 0 ? type == StoredType::Int8 || in_dim % 2 == 0  // whole bytes
                                    : in_dim % group == 0;
    tensor.fallback = !divides;
    const bool is_int4 = type == StoredType::Int4 && divides;
    tensor.output.dtype = is_int4 ? DType::U4 : DType::U8;
    tensor.output.quant = {.scales = DType::F16,
                           .group = divides && group > 0 ? group : in_dim,
                           .asymmetric = is_int4 && options_.asymmetric};
  }

  void require_rules_used() const {
    for (size_t i = 0; i < uses_.size(); ++i) {
      MINFER_REQUIRE(Usage, uses_[i] > 0, "--tensor ", shortened(options_.rules[i].pattern),
                     ": fits no tensor of the model");
    }
  }

 private:
  static bool is_output(const std::string& name) { return name == "lm_head.weight"; }
  static bool is_table(const std::string& name) {
    return is_output(name) || name == "model.embed_tokens.weight";
  }

  StoredType type_of(const TensorEntry& tensor) {
    StoredType type = default_type(tensor);
    for (size_t i = 0; i < options_.rules.size(); ++i) {
      if (!fits(options_.rules[i].pattern, tensor.name)) continue;
      type = options_.rules[i].type;
      ++uses_[i];
    }
    return type;
  }

  StoredType default_type(const TensorEntry& tensor) const {
    if (tensor.shape.rank < 2) return StoredType::Keep;
    if (!is_table(tensor.name)) return options_.type;
    if (is_output(tensor.name)) return options_.head.value_or(StoredType::Int8);
    // Of a tied pair both options mean the one tensor.
    if (!config_.tied_output) return options_.embedding.value_or(StoredType::Int8);
    return options_.embedding ? *options_.embedding : options_.head.value_or(StoredType::Keep);
  }

  static DType float_type(StoredType type, DType source) {
    if (type == StoredType::F16) return DType::F16;
    if (type == StoredType::BF16) return DType::BF16;
    return is_float(source) ? source : DType::F16;
  }

  const ModelConfig& config_;
  const QuantizeOptions& options_;
  std::vector<int64_t> uses_;  // tensors that each rule fits
};

QuantizePlan finished(QuantizePlan plan, const QuantizeOptions& options) {
  Planner planner(plan.config, options);
  for (PlannedTensor& tensor : plan.tensors) planner.choose(tensor);
  planner.require_rules_used();
  return plan;
}

void require_hf_form(const ModelConfig& config) {
  MINFER_REQUIRE(Input, config.is_llama(), "architecture ", config.architecture_name(),
                 ": cannot be quantized to a Hugging Face directory (supported: llama)");
  MINFER_REQUIRE(Input, config.rotary_dim == config.head_dim, "rotates ", config.rotary_dim, " of ",
                 config.head_dim, " elements of a head, which config.json cannot say");
  MINFER_REQUIRE(
      Input, config.attention_bias == config.attention_out_bias,
      "has biases in some matrices of its attention alone, which config.json cannot say");
}

// "torch_dtype" of older files, "dtype" of newer ones.
DType configured_dtype(const Metadata& metadata) {
  const std::string key = metadata.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = metadata.text_or(key, "float16");
  require_supported(key, name, {"float32", "float16", "bfloat16"});
  return name == "float32" ? DType::F32 : name == "float16" ? DType::F16 : DType::BF16;
}

}  // namespace

std::vector<TensorEntry> QuantizePlan::outputs() const {
  std::vector<TensorEntry> entries;
  for (const PlannedTensor& tensor : tensors) entries.push_back(tensor.output);
  return entries;
}

QuantizePlan plan_quantization(const TensorSource& source, const QuantizeOptions& options) try {
  QuantizePlan plan;
  plan.config = read_model_config(source);
  Weights weights;
  const std::vector<WeightBinding> bindings =
      bind_weights(source, plan.config, weights, plan.unused);
  require_hf_form(plan.config);
  MINFER_REQUIRE(Input, find_rope_divisors(source, plan.config) == nullptr,
                 "tensor rope_freqs.weight: config.json cannot say what is in it");
  const std::vector<NamedShape> names = hf_weights(plan.config);
  for (size_t i = 0; i < bindings.size(); ++i) {
    const TensorEntry& entry = *bindings[i].entry;
    MINFER_REQUIRE(Input, !entry.quant, "tensor ", shortened(entry.name),
                   ": is quantized already; expected a float type or GGUF's");
    PlannedTensor tensor;
    tensor.output.name = names[i].name;
    tensor.output.shape = names[i].shape;
    tensor.source = &entry;
    tensor.source_type = entry.dtype;
    tensor.source_bytes = narrow<int64_t>(entry.file_bytes);
    tensor.rope_heads = bindings[i].parts.front().rope_heads;
    plan.tensors.push_back(std::move(tensor));
  }
  return finished(std::move(plan), options);
} catch (const Error& e) {
  throw e.kind() == ErrorKind::Input ? in_source(source, e) : e;
}

QuantizePlan plan_quantization(const std::string& config_path, const QuantizeOptions& options) {
  const Metadata metadata = read_hf_config(config_path);
  QuantizePlan plan;
  plan.config = read_hf_config(metadata);
  require_hf_form(plan.config);
  const DType dtype = configured_dtype(metadata);
  for (const NamedShape& named : hf_weights(plan.config)) {
    PlannedTensor tensor;
    tensor.output.name = named.name;
    tensor.output.shape = named.shape;
    tensor.source_type = dtype;
    tensor.source_bytes = bytes_of(dtype, named.shape);
    plan.tensors.push_back(std::move(tensor));
  }
  return finished(std::move(plan), options);
}

}  // namespace minfer
