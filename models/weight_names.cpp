#include "models/weight_names.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <system_error>

#include "models/weight_spelling.h"

namespace minfer {
namespace {

constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

// Buffers that hold no weights: angles that follow from the configuration, causal masks, scales of
// an 8-bit cache.
bool is_known_buffer(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {
      "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attn.bias",
      ".attn.masked_bias",   "self_attn.k_scale",     "self_attn.v_scale"};
  return name == kRopeDivisors || std::ranges::any_of(kSuffixes, [&](std::string_view suffix) {
           return name.ends_with(suffix);
         });
}

// A tensor that the model needs, by the name that one kind of file gives it.
struct Slot {
  std::string name;
  Shape shape;
  bool transposed;
  std::vector<WeightPart> parts;
};

// Goes through a model's weights in one order for all kinds of files.
class Walk {
 public:
  //   stored_as_output  a tied pair goes by the name of the output layer
  Walk(const ModelConfig& config, const Spelling& spelling, bool stored_as_output)
      : config_(config),
        names_(spelling.names),
        prefix_(spelling.prefix),
        output_(spelling.output),
        stored_as_output_(stored_as_output) {}

  std::vector<Slot> slots(Weights& weights) {
    const ModelConfig& c = config_;
    bind_embedding(weights);
    if (!names_.positions.empty()) {
      rows(prefix_ + std::string(names_.positions), c.trained_seq_len, weights.positions, true);
    }
    weights.layers.resize(static_cast<size_t>(c.n_layers));
    for (int64_t i = 0; i < c.n_layers; ++i) {
      bind_layer(cat(prefix_, names_.layers, i, "."), weights.layers[static_cast<size_t>(i)]);
    }
    norm(prefix_ + std::string(names_.output_norm), weights.output_norm, weights.output_norm_bias);
    return std::move(slots_);
  }

 private:
  void bind_embedding(Weights& weights) {
    const std::string embedding = prefix_ + std::string(names_.embedding);
    const bool is_table = !config_.tied_output;
    rows(stored_as_output_ ? output_ : embedding, config_.vocab_size, weights.embedding, is_table);
    if (!config_.tied_output) rows(output_, config_.vocab_size, weights.output, false);
  }

  void bind_layer(const std::string& at, LayerWeights& layer) {
    const ModelConfig& c = config_;
    const auto name = [&](std::string_view module) { return at + std::string(module); };
    norm(name(names_.attn_norm), layer.attn_norm, layer.attn_norm_bias);

    const int64_t q_rope = c.interleaved_rope ? c.n_heads : 0;
    const int64_t k_rope = c.interleaved_rope ? c.n_kv_heads : 0;
    const WeightPart q = {&layer.wq, &layer.bq, c.q_dim(), q_rope};
    const WeightPart k = {&layer.wk, &layer.bk, c.kv_dim(), k_rope};
    const WeightPart v = {&layer.wv, &layer.bv, c.kv_dim(), 0};
    if (names_.wqkv.empty()) {
      linear(name(names_.wq), c.dim, c.attention_bias, {q});
      linear(name(names_.wk), c.dim, c.attention_bias, {k});
      linear(name(names_.wv), c.dim, c.attention_bias, {v});
    } else {
      linear(name(names_.wqkv), c.dim, c.attention_bias, {q, k, v});
    }
    linear(name(names_.wo), c.q_dim(), c.attention_out_bias, {{&layer.wo, &layer.bo, c.dim, 0}});

    norm(name(names_.ffn_norm), layer.ffn_norm, layer.ffn_norm_bias);
    if (!names_.w_gate.empty()) {
      linear(name(names_.w_gate), c.dim, c.mlp_bias,
             {{&layer.w_gate, &layer.b_gate, c.ffn_dim, 0}});
    }
    linear(name(names_.w_up), c.dim, c.mlp_bias, {{&layer.w_up, &layer.b_up, c.ffn_dim, 0}});
    linear(name(names_.w_down), c.ffn_dim, c.mlp_bias, {{&layer.w_down, &layer.b_down, c.dim, 0}});
  }

  void norm(const std::string& module, DeviceTensor& weight, DeviceTensor& bias) {
    add(module + ".weight", {config_.dim}, false, {{.vector = &weight, .n_rows = config_.dim}});
    if (!config_.is_llama()) {
      add(module + ".bias", {config_.dim}, false, {{.vector = &bias, .n_rows = config_.dim}});
    }
  }

  // A matrix and, with `has_bias`, the vector of the same rows.
  void linear(const std::string& module, int64_t in_dim, bool has_bias,
              const std::vector<WeightPart>& parts) {
    std::vector<WeightPart> matrices = parts, vectors = parts;
    int64_t out_dim = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      matrices[i].vector = nullptr;
      vectors[i].matrix = nullptr;
      out_dim += parts[i].n_rows;
    }
    const Shape shape = names_.transposed ? Shape{in_dim, out_dim} : Shape{out_dim, in_dim};
    add(module + ".weight", shape, names_.transposed, std::move(matrices));
    if (has_bias) add(module + ".bias", {out_dim}, false, std::move(vectors));
  }

  void rows(const std::string& module, int64_t n_rows, Matrix& matrix, bool is_table) {
    add(module + ".weight", {n_rows, config_.dim}, false,
        {{.matrix = &matrix, .n_rows = n_rows, .is_table = is_table}});
  }

  void add(const std::string& name, const Shape& shape, bool transposed,
           std::vector<WeightPart> parts) {
    slots_.push_back({name, shape, transposed, std::move(parts)});
  }

  const ModelConfig& config_;
  const Names& names_;
  std::string prefix_, output_;
  bool stored_as_output_;
  std::vector<Slot> slots_;
};

// As the source calls them.
std::vector<Slot> slots_of(const Spelling& spelling, const TensorSource& source,
                           const ModelConfig& config, Weights& weights) {
  // A tied pair is stored under either name in Hugging Face files.
  const bool stored_as_output = config.tied_output &&
                                !is_stored(source, spelling.embedding_name()) &&
                                source.find(spelling.output_name()) != nullptr;
  return Walk(config, spelling, stored_as_output).slots(weights);
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
  MINFER_REQUIRE(Input, entry->shape == slot.shape, "tensor ", slot.name, ": shape ", entry->shape,
                 ", expected ", slot.shape);
  return entry;
}

// Whether the tensor is the bias of a linear layer of the model: one that is bound to nothing holds
// zeros, see settle_by_tensors.
bool is_idle_bias(const Spelling& spelling, const ModelConfig& config, const std::string& name) {
  if (!config.is_llama() || !name.ends_with(".bias")) return false;
  return std::ranges::any_of(linear_modules(spelling.names), [&](std::string_view module) {
    return name.ends_with(cat(".", module, ".bias"));
  });
}

// Whether a name is that of something in one of the model's layers.
bool is_in_layer(const Spelling& spelling, const ModelConfig& config, std::string_view name) {
  const std::string before = cat(spelling.prefix, spelling.names.layers);
  if (!name.starts_with(before)) return false;
  name.remove_prefix(before.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_number = error == std::errc() && end != name.data() + name.size() && *end == '.';
  return is_number && layer >= 0 && layer < config.n_layers;
}

// Of a layer, and nothing that minfer knows: llama.cpp refuses such a file too, while transformers
// computes without it and says so.
void refuse_in_layers(const TensorSource& source, const Spelling& spelling,
                      const ModelConfig& config, const std::vector<std::string>& surplus) {
  if (source.key_style != KeyStyle::Gguf) return;
  for (const std::string& name : surplus) {
    MINFER_REQUIRE(Input, !is_in_layer(spelling, config, name), "tensor ", shortened(name),
                   ": a layer of architecture ", config.architecture_name(),
                   " has no such tensor here, and would not be computed as it is meant");
  }
}

std::vector<std::string> surplus_of(const TensorSource& source, const Spelling& spelling,
                                    const ModelConfig& config,
                                    const std::set<const TensorEntry*>& bound) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : source.tensors) {
    const bool is_copy = config.tied_output && entry.name == spelling.output_name();
    const bool is_known = bound.contains(&entry) || is_copy || is_known_buffer(entry.name) ||
                          is_idle_bias(spelling, config, entry.name);
    if (!is_known) names.push_back(entry.name);
  }
  for (const auto& [name, reason] : source.unusable) {
    if (!is_known_buffer(name)) names.push_back(name);
  }
  return names;
}

std::vector<NamedShape> weights_by(KeyStyle style, const ModelConfig& config) {
  const Names& names = names_of(style, config.architecture);
  Weights weights;
  std::vector<NamedShape> all;
  for (const Slot& slot : Walk(config, Spelling::usual(names), false).slots(weights)) {
    all.push_back({slot.name, slot.shape});
  }
  return all;
}

}  // namespace

std::vector<WeightBinding> bind_weights(const TensorSource& source, const ModelConfig& config,
                                        Weights& weights, std::vector<std::string>& surplus) {
  std::vector<WeightBinding> bindings;
  std::set<const TensorEntry*> bound;
  const Spelling spelling = Spelling::of(source, config);
  for (Slot& slot : slots_of(spelling, source, config, weights)) {
    const TensorEntry* entry = find_entry(source, slot);
    bound.insert(entry);
    bindings.push_back({entry, slot.transposed, std::move(slot.parts)});
  }
  surplus = surplus_of(source, spelling, config, bound);
  refuse_in_layers(source, spelling, config, surplus);
  return bindings;
}

std::vector<NamedShape> hf_weights(const ModelConfig& config) {
  return weights_by(KeyStyle::HuggingFace, config);
}

std::vector<NamedShape> gguf_weights(const ModelConfig& config) {
  return weights_by(KeyStyle::Gguf, config);
}

const TensorEntry* find_rope_divisors(const TensorSource& source, const ModelConfig& config) {
  if (source.key_style != KeyStyle::Gguf || !config.is_llama()) return nullptr;
  const TensorEntry* entry = source.find(std::string(kRopeDivisors));
  const Shape shape = {config.rotary_dim / 2};
  MINFER_REQUIRE(Input, entry == nullptr || entry->shape == shape, "tensor ", kRopeDivisors,
                 ": shape ", entry->shape, ", expected ", shape);
  return entry;
}

}  // namespace minfer
