#include "models/weight_names.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "models/weight_layout.h"
#include "models/weight_spelling.h"

namespace minfer {
namespace {

struct NamedDivisors {
  std::string_view name;
  std::vector<double> RopeSpec::*divisors;
  bool is_of_longrope;
};
constexpr NamedDivisors kRopeTensors[] = {
    {"rope_freqs.weight", &RopeSpec::divisors, false},
    {"rope_factors_short.weight", &RopeSpec::short_divisors, true},
    {"rope_factors_long.weight", &RopeSpec::long_divisors, true}};

// Buffers that hold no weights: angles that follow from the configuration, causal masks, scales of
// an 8-bit cache.
bool is_known_buffer(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {
      "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
      ".attn.bias",          ".attn.masked_bias",     "self_attn.k_scale",
      "self_attn.v_scale",   ".attention.bias",       ".attention.masked_bias"};
  return std::ranges::count(kRopeTensors, name, &NamedDivisors::name) > 0 ||
         std::ranges::any_of(kSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// A tensor that the model needs, by the name that one kind of file gives it.
struct Slot {
  std::string name;
  Shape shape;        // of the tensor
  WeightInfo weight;  // of several in one tensor, the first
  bool transposed = false;
  Shape by_head = {};  // another shape that it may have; rank 0: none
  int64_t qkv_heads = 0;
  std::vector<WeightPart> parts = {};
  bool is_stacked = false;
};

// The rotation of the rows of a weight, where a source stores rotary pairs as neighbours. It does
// so in layers without rotation too, and in the weights that the norm of a head has.
void set_rotary_pairs(WeightPart& part, const WeightInfo& weight, const ModelSpec& spec) {
  const bool is_query = weight.role == WeightRole::Wq || weight.role == WeightRole::QNorm;
  if (!is_query && weight.role != WeightRole::Wk && weight.role != WeightRole::KNorm) return;
  const LayerSpec& layer = spec.layer(weight.layer);
  MINFER_CHECK(!weight.is_norm() || layer.qk_norm == QkNorm::LayerOfEachHead,
               "a norm of rotary pairs whose weights are not those of each head");
  part.rope_heads = is_query ? layer.n_heads : layer.n_kv_heads;
  part.rotary_dim = spec.ropes.at(static_cast<size_t>(std::max(layer.rope, 0))).rotary_dim;
}

// The tensors that hold the model's weights, by the names of one spelling.
//   has_pairs         the source stores rotary pairs as neighbours
//   norm_offset       of a norm's weights, over what the source stores
//   stored_as_output  a tied pair goes by the name of the output layer
//   qkv_by_head       as Family has it
std::vector<Slot> slots_of(const Spelling& spelling, const ModelSpec& spec, Weights& weights,
                           bool has_pairs, float norm_offset, bool stored_as_output,
                           bool qkv_by_head) {
  weights = empty_weights(spec);
  std::vector<Slot> slots;
  std::map<std::string, size_t> slot_of;
  for_each_weight(spec, [&](const WeightInfo& weight) {
    const bool is_tied = stored_as_output && weight.role == WeightRole::Embedding;
    const std::string name = is_tied ? spelling.output_name() : spelling.name(weight);
    WeightPart part{.n_rows = weight.shape[0], .is_table = weight.is_table, .weight = weight};
    if (weight.is_matrix()) {
      part.matrix = &matrix_of(weights, weight);
    } else {
      part.vector = &vector_of(weights, weight);
    }
    if (has_pairs) set_rotary_pairs(part, weight, spec);
    if (weight.is_norm() && !weight.is_bias) part.offset = norm_offset;
    const auto [found, is_new] = slot_of.emplace(name, slots.size());
    if (is_new) {
      slots.push_back({.name = name, .shape = weight.shape, .weight = weight});
      slots.back().is_stacked = spelling.is_stacked(weight);
    } else {
      slots[found->second].shape.dims[0] += part.n_rows;
    }
    Slot& slot = slots[found->second];
    slot.parts.push_back(part);
    if (weight.role == WeightRole::QNorm || weight.role == WeightRole::KNorm) {
      const LayerSpec& layer = spec.layer(weight.layer);
      const bool has_own = layer.qk_norm == QkNorm::LayerOfEachHead;
      if (has_own) slot.by_head = {part.n_rows / layer.head_dim, layer.head_dim};
    }
    if (qkv_by_head && weight.role == WeightRole::Wv) {
      slot.qkv_heads = spec.layer(weight.layer).n_heads;
    }
  });
  for (Slot& slot : slots) {
    slot.transposed =
        spelling.names.transposed && slot.weight.is_matrix() && slot.weight.is_in_block();
    if (slot.transposed) slot.shape = {slot.shape[1], slot.shape[0]};
    if (slot.is_stacked) {
      const int64_t n = spec.layer(slot.weight.layer).n_experts;
      const int64_t rows = slot.shape[0] / n;
      slot.shape = slot.weight.is_matrix() ? Shape{n, rows, slot.shape[1]} : Shape{n, rows};
    }
  }
  return slots;
}

// As the source calls them.
std::vector<Slot> slots_of(const Spelling& spelling, const TensorSource& source,
                           const ModelSpec& spec, Weights& weights) {
  const Family& family = family_of(spec);
  const bool is_hf = source.key_style == KeyStyle::HuggingFace;
  // A tied pair is stored under either name in Hugging Face files.
  const bool stored_as_output = spec.tied_output && !is_stored(source, spelling.embedding_name()) &&
                                source.find(spelling.output_name()) != nullptr;
  return slots_of(spelling, spec, weights, family.has_pairs(source.key_style),
                  is_hf ? family.hf_norm_offset : 0, stored_as_output,
                  is_hf && family.hf_qkv_by_head);
}

// Where a matrix is not there as such, but its parts are as a quantizer has packed them: what is
// wrong; else empty.
std::string packed_hint(const TensorSource& source, const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return "";
  const std::string module = name.substr(0, name.size() - kWeight.size());
  for (const char* part :
       {".qweight", ".weight_packed", ".weight.absmax", ".weight_scale_inv", ".weight_scale"}) {
    if (!is_stored(source, module + part)) continue;
    const bool has_settings = !names_below(source.metadata, "quantization_config").empty();
    return cat("; ", module, part, " is there: packed weights, which ",
               has_settings ? "the quantization_config does not describe"
                            : "need a quantization_config in config.json (or "
                              "quantize_config.json or quant_config.json beside it)");
  }
  return "";
}

const TensorEntry* find_entry(const TensorSource& source, const Slot& slot) {
  const TensorEntry* entry = source.find(slot.name);
  if (entry == nullptr) {
    const auto reason = source.unusable.find(slot.name);
    throw Error(ErrorKind::Input,
                cat("tensor ", slot.name, " ", slot.shape, " ",
                    reason == source.unusable.end() ? "is missing" : reason->second,
                    packed_hint(source, slot.name)));
  }
  // The weights of the norms of several heads may be a matrix, and some converters drop dims of 1.
  const bool is_by_head = slot.by_head.rank > 0 && entry->shape == slot.by_head;
  const bool is_one_row = slot.shape.rank == 2 && slot.shape[0] == 1 &&
                          entry->shape == Shape{slot.shape[1]} && !entry->quant;
  MINFER_REQUIRE(Input, entry->shape == slot.shape || is_by_head || is_one_row, "tensor ",
                 slot.name, ": shape ", entry->shape, ", expected ", slot.shape);
  return entry;
}

// Names of biases that the blocks' linear layers may have: one that is bound to nothing holds
// zeros, see settle_by_tensors.
std::set<std::string> possible_biases(const Spelling& spelling, ModelSpec spec) {
  std::set<std::string> names;
  if (!family_of(spec).biases_by_tensors) return names;
  for (LayerSpec& layer : spec.layers) {
    layer.qkv_bias = layer.attn_out_bias = layer.ffn_bias = true;
  }
  for_each_weight(spec, [&](const WeightInfo& weight) {
    if (weight.is_bias) names.insert(spelling.name(weight));
  });
  return names;
}

// Whether a name is that of something in one of the model's layers.
bool is_in_layer(const Spelling& spelling, const ModelSpec& spec, std::string_view name) {
  const std::string before = cat(spelling.prefix, spelling.names.layers);
  if (!name.starts_with(before)) return false;
  name.remove_prefix(before.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_number = error == std::errc() && end != name.data() + name.size() && *end == '.';
  return is_number && layer >= 0 && layer < spec.n_layers();
}

// Of a layer, and nothing that minfer knows: llama.cpp refuses such a file too, while transformers
// computes without it and says so.
void refuse_in_layers(const TensorSource& source, const Spelling& spelling, const ModelSpec& spec,
                      const std::vector<std::string>& surplus) {
  if (source.key_style != KeyStyle::Gguf) return;
  for (const std::string& name : surplus) {
    MINFER_REQUIRE(Input, !is_in_layer(spelling, spec, name), "tensor ", shortened(name),
                   ": a layer of architecture ", spec.family,
                   " has no such tensor here, and would not be computed as it is meant");
  }
}

std::vector<std::string> surplus_of(const TensorSource& source, const Spelling& spelling,
                                    const ModelSpec& spec,
                                    const std::set<const TensorEntry*>& bound) {
  const std::set<std::string> biases = possible_biases(spelling, spec);
  std::vector<std::string> names;
  for (const TensorEntry& entry : source.tensors) {
    const bool is_copy = spec.tied_output && entry.name == spelling.output_name();
    const bool is_known = bound.contains(&entry) || is_copy || is_known_buffer(entry.name) ||
                          biases.contains(entry.name);
    if (!is_known) names.push_back(entry.name);
  }
  for (const auto& [name, reason] : source.unusable) {
    if (!is_known_buffer(name)) names.push_back(name);
  }
  return names;
}

std::vector<NamedShape> weights_by(KeyStyle style, const ModelSpec& spec) {
  const Family& family = family_of(spec);
  Weights weights;
  std::vector<NamedShape> all;
  for (const Slot& slot :
       slots_of(Spelling::usual(style, spec), spec, weights, family.has_pairs(style), 0, false,
                style == KeyStyle::HuggingFace && family.hf_qkv_by_head)) {
    NamedShape named{slot.name, slot.shape, slot.weight, {}, {}, slot.qkv_heads};
    for (const WeightPart& part : slot.parts) {
      named.weights.push_back(part.weight);
      named.pairs.push_back({part.rope_heads, part.rotary_dim});
    }
    all.push_back(std::move(named));
  }
  return all;
}

}  // namespace

std::vector<WeightBinding> bind_weights(const TensorSource& source, const ModelSpec& spec,
                                        Weights& weights, std::vector<std::string>& surplus) {
  std::vector<WeightBinding> bindings;
  std::set<const TensorEntry*> bound;
  const Spelling spelling = Spelling::of(source, spec);
  for (Slot& slot : slots_of(spelling, source, spec, weights)) {
    const TensorEntry* entry = find_entry(source, slot);
    bound.insert(entry);
    bindings.push_back({entry, slot.transposed, slot.qkv_heads, nullptr, std::move(slot.parts)});
    if (!slot.is_stacked && (!slot.weight.is_matrix() || entry->shape == slot.shape)) continue;
    TensorEntry flat = *entry;
    const int64_t n = slot.shape.n_elements(), n_columns = slot.shape.last();
    flat.shape = slot.weight.is_matrix() ? Shape{n / n_columns, n_columns} : Shape{n};
    WeightBinding& binding = bindings.back();
    binding.flat = std::make_shared<const TensorEntry>(std::move(flat));
    binding.entry = binding.flat.get();
  }
  surplus = surplus_of(source, spelling, spec, bound);
  refuse_in_layers(source, spelling, spec, surplus);
  return bindings;
}

std::vector<NamedShape> hf_weights(const ModelSpec& spec) {
  return weights_by(KeyStyle::HuggingFace, spec);
}

std::vector<NamedShape> gguf_weights(const ModelSpec& spec) {
  return weights_by(KeyStyle::Gguf, spec);
}

RowPlace place_of_row(const NamedShape& named, int64_t row) {
  if (named.qkv_heads > 0) row = qkv_row_in_blocks(row, named.shape[0], named.qkv_heads);
  size_t weight = 0;
  for (; row >= named.weights[weight].shape[0]; ++weight) row -= named.weights[weight].shape[0];
  const RotaryPairs& pairs = named.pairs[weight];
  if (pairs.n_heads > 0) {
    const int64_t head_dim = named.weights[weight].shape[0] / pairs.n_heads;
    row = rope_row_in_halves(row, head_dim, pairs.rotary_dim);
  }
  return {weight, row};
}

std::vector<RopeTensor> find_rope_tensors(const TensorSource& source, const ModelSpec& spec) {
  std::vector<RopeTensor> tensors;
  if (source.key_style != KeyStyle::Gguf || spec.ropes.empty()) return tensors;
  const RopeSpec& rope = spec.ropes.front();
  const Shape shape = {rope.rotary_dim / 2};
  for (const auto& [name, divisors, is_of_longrope] : kRopeTensors) {
    const TensorEntry* entry = source.find(std::string(name));
    const bool is_longrope = rope.scaling == RopeScaling::LongRope;
    MINFER_REQUIRE(Input, entry != nullptr || !is_of_longrope || !is_longrope, "tensor ", name,
                   " is missing");
    if (entry == nullptr) continue;
    MINFER_REQUIRE(Input, is_of_longrope == is_longrope, "tensor ", name,
                   ": not supported with rope scaling ", scaling_name(rope.scaling));
    MINFER_REQUIRE(Input, entry->shape == shape, "tensor ", name, ": shape ", entry->shape,
                   ", expected ", shape);
    tensors.push_back({entry, divisors});
  }
  return tensors;
}

}  // namespace minfer
