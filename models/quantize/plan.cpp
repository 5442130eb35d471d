#include "models/quantize/plan.h"

#include <map>
#include <utility>

#include "loaders/hf_config.h"
#include "models/config_reader.h"
#include "models/families/family.h"
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
  Planner(const ModelSpec& spec, const QuantizeOptions& options)
      : spec_(spec), options_(options), uses_(options.rules.size()) {}

  // Fills in the output of a tensor whose name and shape are set.
  void choose(PlannedTensor& tensor) {
    const StoredType type = type_of(tensor);
    const bool quantized = type == StoredType::Int4 || type == StoredType::Int8;
    if (!quantized || tensor.output.shape.rank < 2) {
      tensor.output.dtype = float_type(quantized ? StoredType::Keep : type, tensor.source_type);
      return;
    }
    const int64_t in_dim = tensor.output.shape[1];
    int64_t group = type == options_.type      ? options_.group
                    : type == StoredType::Int4 ? kInt4Group
                                               : 0;
    if (tensor.weight.is_of_tokens() && type == StoredType::Int8) group = 0;
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
  StoredType type_of(const PlannedTensor& tensor) {
    StoredType type = default_type(tensor);
    for (size_t i = 0; i < options_.rules.size(); ++i) {
      if (!fits(options_.rules[i].pattern, tensor.output.name)) continue;
      type = options_.rules[i].type;
      ++uses_[i];
    }
    return type;
  }

  StoredType default_type(const PlannedTensor& tensor) const {
    if (!tensor.weight.is_matrix() || tensor.weight.is_router()) return StoredType::Keep;
    if (!tensor.weight.is_of_tokens()) return options_.type;
    if (tensor.weight.role == WeightRole::Output) return options_.head.value_or(StoredType::Int8);
    // Of a tied pair both options mean the one tensor.
    if (!spec_.tied_output) return options_.embedding.value_or(StoredType::Int8);
    return options_.embedding ? *options_.embedding : options_.head.value_or(StoredType::Keep);
  }

  static DType float_type(StoredType type, DType source) {
    if (type == StoredType::F16) return DType::F16;
    if (type == StoredType::BF16) return DType::BF16;
    return is_float(source) ? source : DType::F16;
  }

  const ModelSpec& spec_;
  const QuantizeOptions& options_;
  std::vector<int64_t> uses_;  // tensors that each rule fits
};

QuantizePlan finished(QuantizePlan plan, const QuantizeOptions& options) {
  Planner planner(plan.spec, options);
  for (PlannedTensor& tensor : plan.tensors) planner.choose(tensor);
  planner.require_rules_used();
  return plan;
}

// Where the weights are in the tensors of a source.
class PartsOfSource {
 public:
  struct Place {
    const WeightBinding* binding;
    const WeightPart* part;
    int64_t begin;  // its first row
  };

  explicit PartsOfSource(const std::vector<WeightBinding>& bindings) {
    for (const WeightBinding& binding : bindings) {
      int64_t begin = 0;
      for (const WeightPart& part : binding.parts) {
        places_[part.weight.key()] = {&binding, &part, begin};
        begin += part.n_rows;
      }
    }
  }
  const Place& of(const WeightInfo& weight) const { return places_.at(weight.key()); }

 private:
  std::map<WeightInfo::Key, Place> places_;
};

// Whether config.json can say it: GPT-2's matrices are transposed there, and not written here.
//   has_config  the source's own config.json says it
void require_hf_form(const ModelSpec& spec, bool has_config) {
  const Family& family = family_of(spec);
  MINFER_REQUIRE(Input, !family.hf_names.transposed, "architecture ", family.name,
                 ": cannot be quantized to a Hugging Face directory (supported: llama)");
  const LayerSpec& layer = spec.layer(0);
  const int64_t rotary_dim = spec.ropes.front().rotary_dim;
  MINFER_REQUIRE(Input, has_config || rotary_dim == layer.head_dim || family.hf_partial_rotation,
                 "rotates ", rotary_dim, " of ", layer.head_dim,
                 " elements of a head, which config.json cannot say");
  MINFER_REQUIRE(
      Input, layer.qkv_bias == layer.attn_out_bias || !family.biases_by_tensors,
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
  plan.spec = read_model_spec(source);
  Weights weights;
  const std::vector<WeightBinding> bindings = bind_weights(source, plan.spec, weights, plan.unused);
  require_hf_form(plan.spec, source.key_style == KeyStyle::HuggingFace);
  for (const RopeTensor& tensor : find_rope_tensors(source, plan.spec)) {
    throw Error(ErrorKind::Input,
                cat("tensor ", tensor.entry->name, ": config.json cannot say what is in it"));
  }
  const Family& family = family_of(plan.spec);
  MINFER_REQUIRE(Input, source.key_style == KeyStyle::HuggingFace || !family.hf_qkv_by_head,
                 "architecture ", family.name, ": only Hugging Face's files can be quantized");
  const PartsOfSource parts(bindings);
  for (const NamedShape& named : hf_weights(plan.spec)) {
    const auto& [binding, part, begin] = parts.of(named.weight);
    const TensorEntry& entry = *binding->entry;
    MINFER_REQUIRE(Input, !entry.quant, "tensor ", shortened(entry.name),
                   ": is quantized already; expected a float type, or a GGUF file");
    PlannedTensor tensor;
    tensor.weight = named.weight;
    tensor.output.name = named.name;
    tensor.output.shape = named.weight.is_norm() ? entry.shape : named.shape;
    tensor.source = &entry;
    tensor.flat = binding->flat;
    tensor.source_begin = begin;
    tensor.source_type = entry.dtype;
    const int64_t n_rows = entry.shape[0], file_bytes = narrow<int64_t>(entry.file_bytes);
    const bool is_whole = tensor.output.shape[0] == n_rows;
    tensor.source_bytes = is_whole ? file_bytes : file_bytes / n_rows * named.shape[0];
    // Where Hugging Face's files have pairs too, rows keep their places.
    if (!family.hf_rotary_pairs) tensor.rope_heads = part->rope_heads;
    tensor.rotary_dim = part->rotary_dim;
    const bool is_norm = named.weight.is_norm() && !named.weight.is_bias;
    tensor.offset = part->offset - (is_norm ? family.hf_norm_offset : 0);
    plan.tensors.push_back(std::move(tensor));
  }
  return finished(std::move(plan), options);
} catch (const Error& e) {
  throw e.kind() == ErrorKind::Input ? in_source(source, e) : e;
}

QuantizePlan plan_quantization(const std::string& config_path, const QuantizeOptions& options) {
  const Metadata metadata = read_hf_config(config_path);
  QuantizePlan plan;
  plan.spec = read_hf_spec(metadata);
  require_hf_form(plan.spec, true);
  const DType dtype = configured_dtype(metadata);
  for (const NamedShape& named : hf_weights(plan.spec)) {
    PlannedTensor tensor;
    tensor.weight = named.weight;
    tensor.output.name = named.name;
    tensor.output.shape = named.shape;
    tensor.source_type = dtype;
    tensor.source_bytes = bytes_of(dtype, named.shape);
    plan.tensors.push_back(std::move(tensor));
  }
  return finished(std::move(plan), options);
}

}  // namespace minfer
