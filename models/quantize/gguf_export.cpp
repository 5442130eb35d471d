#include "models/quantize/gguf_export.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "kernels/base/math.h"
#include "loaders/gguf_writer.h"
#include "loaders/staging.h"
#include "models/families/family.h"
#include "models/model.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weight_layout.h"

namespace minfer {
namespace {

constexpr const char* kFile = "model.gguf";  // while it is being written

uint64_t file_type(DType type) {  // llama.cpp's number for the file as a whole
  return type == DType::F16 ? 1 : type == DType::Q8_0 ? 7 : 2;
}

void set_rope_scaling(Metadata& metadata, const std::string& at, const RopeSpec& rope) {
  const bool is_yarn = rope.scaling == RopeScaling::Yarn;
  const bool is_longrope = rope.scaling == RopeScaling::LongRope;
  if (rope.scaling != RopeScaling::Linear && !is_yarn && !is_longrope) return;
  metadata.set(at + "type", std::string(scaling_name(rope.scaling)));
  if (!is_longrope) metadata.set(at + "factor", rope.factor);
  if (!is_yarn && !is_longrope) return;
  metadata.set(at + "original_context_length", static_cast<uint64_t>(rope.original_seq_len));
  metadata.set(at + "attn_factor",
               is_yarn ? rope.table_scale / yarn_table_scale(rope.factor) : rope.table_scale);
  if (!is_yarn) return;
  metadata.set(at + "yarn_beta_fast", rope.beta_fast);
  metadata.set(at + "yarn_beta_slow", rope.beta_slow);
}

void set_config(Metadata& metadata, const ModelSpec& spec) {
  const LayerSpec& layer = spec.layer(0);
  const RopeSpec& rope = spec.ropes.front();
  const std::string prefix = cat(family_of(spec).gguf_architecture, ".");
  const auto set = [&](const char* name, int64_t value) {
    metadata.set(prefix + name, static_cast<uint64_t>(value));
  };
  set("vocab_size", spec.vocab_size);
  set("context_length", spec.trained_seq_len);
  set("embedding_length", spec.dim);
  set("feed_forward_length", layer.ffn_dim);
  set("block_count", spec.n_layers());
  if (layer.has_experts()) {
    set("expert_count", layer.n_experts);
    set("expert_used_count", layer.n_active_experts);
    set("expert_feed_forward_length", layer.ffn_dim);
    if (layer.shared_ffn_dim > 0) {
      set("expert_shared_feed_forward_length", layer.shared_ffn_dim);
    }
  }
  set("attention.head_count", layer.n_heads);
  set("attention.head_count_kv", layer.n_kv_heads);
  set("attention.key_length", layer.head_dim);
  set("attention.value_length", layer.head_dim);
  set("rope.dimension_count", rope.rotary_dim);
  metadata.set(prefix + (layer.norm == NormKind::Rms ? "attention.layer_norm_rms_epsilon"
                                                     : "attention.layer_norm_epsilon"),
               double{layer.norm_eps});
  metadata.set(prefix + "rope.freq_base", rope.theta);
  // 0 where there is none: llama.cpp wants the key of such architectures.
  if (family_of(spec).gguf_window == GgufWindow::AllLayers) {
    set("attention.sliding_window", layer.window);
  }
  set_rope_scaling(metadata, prefix + "rope.scaling.", rope);
  const auto add_more = family_of(spec).add_gguf_keys;
  if (add_more != nullptr) add_more(metadata, prefix, spec);
}

void set_tokenizer(Metadata& metadata, const TensorSource& source, const ModelSpec& spec,
                   const std::string& tokenizer_source) {
  Metadata own;
  if (!tokenizer_source.empty()) {
    own = load_tokenizer(tokenizer_source)->to_gguf(spec.vocab_size);
  } else {
    for (const auto& [key, value] : source.metadata.all()) {
      if (key.starts_with("tokenizer.")) own.set(key, value);
    }
  }
  MINFER_REQUIRE(Input, own.has("tokenizer.ggml.model"), shortened(source.path),
                 ": has no tokenizer, which a GGUF file needs");
  for (const auto& [key, value] : own.all()) metadata.set(key, value);
}

// How much slower than without scaling each pair rotates: GGUF has the llama3 scaling, and
// longrope's two, as tables.
std::map<std::string, std::vector<float>> rope_tensors(const RopeSpec& rope) {
  const auto floats = [](const std::vector<double>& divisors) {
    return std::vector<float>(divisors.begin(), divisors.end());
  };
  if (rope.scaling == RopeScaling::LongRope) {
    return {{"rope_factors_long.weight", floats(rope.long_divisors)},
            {"rope_factors_short.weight", floats(rope.short_divisors)}};
  }
  if (rope.scaling != RopeScaling::Llama3) return {};
  RopeSpec plain = rope;
  plain.scaling = RopeScaling::None;
  std::vector<double> divisors = rope_frequencies(plain);
  const std::vector<double> scaled = rope_frequencies(rope);
  for (size_t i = 0; i < scaled.size(); ++i) divisors[i] /= scaled[i];
  return {{"rope_freqs.weight", floats(divisors)}};
}

// What can be told from the spec alone; finish() reads the file again and compares all layers.
void require_gguf_form(const ModelSpec& spec, const std::string& path) {
  const auto require = [&](bool can_be_said, const std::string& what) {
    MINFER_REQUIRE(Input, can_be_said, shortened(path), ": has ", what,
                   ", which a GGUF file of its architecture cannot say");
  };
  for (const LayerSpec& layer : spec.layers) {
    const bool is_said = family_of(spec).gguf_window != GgufWindow::None;
    require(layer.has_experts() == spec.layer(0).has_experts(),
            "some layers with experts and some without");
    require(layer.window == 0 || is_said, cat("an attention window of ", layer.window));
  }
  const RopeSpec& rope = spec.ropes.front();
  require(rope.scaling != RopeScaling::Dynamic, "dynamic RoPE scaling");
  require(rope.scaling != RopeScaling::Yarn || rope.truncate == family_of(spec).gguf_truncates_yarn,
          rope.truncate ? "YaRN with truncation" : "YaRN without truncation");
}

class GgufModelWriter final : public ModelWriter {
 public:
  GgufModelWriter(const QuantizePlan& plan, const GgufExportOptions& options, Metadata metadata)
      : head_dim_(plan.spec.layer(0).head_dim),
        has_pairs_(family_of(plan.spec).gguf_rotary_pairs && !family_of(plan.spec).hf_rotary_pairs),
        layers_(plan.spec.layers),
        staging_(options.output, OutputKind::Gguf, options.replace) {
    const auto divisors = rope_tensors(plan.spec.ropes.front());
    std::map<WeightInfo::Key, const PlannedTensor*> planned;
    for (const PlannedTensor& tensor : plan.tensors) planned[tensor.weight.key()] = &tensor;
    std::vector<TensorEntry> tensors;
    int64_t n_bytes = 16 << 20;  // header
    for (const NamedShape& named : gguf_weights(plan.spec)) {
      const WeightRole role = named.weight.role;
      const bool rotates = role == WeightRole::Wq || role == WeightRole::Wk;
      const bool is_by_head = family_of(plan.spec).hf_qkv_by_head && role == WeightRole::Wq;
      const int64_t qkv_heads = is_by_head ? plan.spec.layer(0).n_heads : 0;
      const TensorEntry& first = planned.at(named.weight.key())->output;
      // The weights of the norms of several heads may be a matrix.
      const Shape& shape = named.weight.is_norm() ? first.shape : named.shape;
      int64_t begin = 0;
      for (const WeightInfo& weight : named.weights) {
        const auto of_part = planned.find(weight.key());  // none: in the tensor of another
        if (of_part != planned.end()) {
          const TensorEntry& output = of_part->second->output;
          MINFER_CHECK(output.dtype == first.dtype, "tensor ", named.name, " of several types");
          slots_[output.name] = {named.name, has_pairs_ && rotates, qkv_heads, shape[0], begin};
        }
        begin += weight.shape[0];
      }
      tensors.push_back({named.name, first.dtype, shape});
      n_bytes = checked_add(n_bytes, bytes_of(first.dtype, shape));
    }
    for (const auto& [name, values] : divisors) {
      tensors.push_back({name, DType::F32, {std::ssize(values)}});
    }
    staging_.require_space(n_bytes);
    file_ = std::make_unique<GgufWriter>(path(), metadata, tensors);
    for (const auto& [name, values] : divisors) {
      file_->write(name, 0, values.data(), values.size() * sizeof(float));
    }
  }

  void write_rows(const TensorEntry& tensor, int64_t begin, const Tensor& rows) override {
    const Slot& slot = slots_.at(tensor.name);
    const int64_t n_rows = rows.shape[0], row_bytes = rows.n_bytes() / n_rows;
    const auto* bytes = static_cast<const char*>(rows.data);
    if (!slot.rotates && slot.qkv_heads == 0) return write(slot, begin, bytes, n_rows, row_bytes);
    for (int64_t i = 0; i < n_rows; ++i) {
      const int64_t row = slot.qkv_heads > 0
                              ? qkv_row_in_blocks(begin + i, slot.n_rows, slot.qkv_heads)
                              : row_in_pairs(begin + i);
      write(slot, row, bytes + i * row_bytes, 1, row_bytes);
    }
  }

  void write_rows(const TensorEntry& tensor, int64_t, const QuantizedMatrix&) override {
    throw Error(ErrorKind::Internal, cat("tensor ", tensor.name, " has groups, GGUF blocks"));
  }

  std::vector<std::string> finish(const std::string&) override {
    file_->finish();
    const ModelSpec written = check_model(*open_source(path()));
    MINFER_REQUIRE(Input, written.layers == layers_,
                   "a layer of the model is one that a GGUF file of its architecture cannot say");
    return staging_.commit_file(kFile);
  }

 private:
  struct Slot {
    std::string name;
    bool rotates = false;   // queries and keys: rotary halves here, pairs there
    int64_t qkv_heads = 0;  // > 0: rows by head here, by queries, keys and values there
    int64_t n_rows = 0;     // of the tensor there
    int64_t begin = 0;      // the first of its rows there
  };

  std::string path() const { return staging_.directory() + '/' + kFile; }

  // Of rows i and i + head_dim / 2 of a head GGUF makes neighbours.
  int64_t row_in_pairs(int64_t row) const {
    const int64_t head = row / head_dim_, i = row % head_dim_, half = head_dim_ / 2;
    return head * head_dim_ + (i < half ? 2 * i : 2 * (i - half) + 1);
  }

  void write(const Slot& slot, int64_t row, const char* bytes, int64_t n_rows, int64_t row_bytes) {
    file_->write(slot.name, static_cast<uint64_t>((slot.begin + row) * row_bytes), bytes,
                 static_cast<uint64_t>(n_rows * row_bytes));
  }

  int64_t head_dim_;
  bool has_pairs_;
  std::vector<LayerSpec> layers_;
  Staging staging_;
  std::unique_ptr<GgufWriter> file_;   // closed before staging_ goes
  std::map<std::string, Slot> slots_;  // by Hugging Face's names
};

}  // namespace

void choose_gguf_types(QuantizePlan& plan, DType type) {
  for (PlannedTensor& tensor : plan.tensors) {
    TensorEntry& output = tensor.output;
    output.quant.reset();
    if (output.shape.rank < 2 || tensor.weight.is_router()) {
      output.dtype = DType::F32;
      const bool is_norm = tensor.weight.is_norm() && !tensor.weight.is_bias;
      if (is_norm) tensor.offset += family_of(plan.spec).hf_norm_offset;
    } else {
      output.dtype = type == DType::Q4_0 && tensor.weight.is_of_tokens() ? DType::Q8_0 : type;
      tensor.fallback = output.shape.last() % info(output.dtype).block_elements != 0;
      if (tensor.fallback) output.dtype = DType::F16;
    }
    output.file_bytes = static_cast<uint64_t>(bytes_of(output.dtype, output.shape));
  }
}

std::unique_ptr<ModelWriter> make_gguf_model_writer(const TensorSource& source,
                                                    const QuantizePlan& plan,
                                                    const GgufExportOptions& options) {
  require_gguf_form(plan.spec, source.path);
  Metadata metadata;
  metadata.set("general.architecture", std::string(family_of(plan.spec).gguf_architecture));
  metadata.set("general.name", shortened(std::filesystem::path(options.output).stem().string()));
  metadata.set("general.file_type", file_type(options.type));
  metadata.set("general.quantization_version", uint64_t{2});
  set_config(metadata, plan.spec);
  set_tokenizer(metadata, source, plan.spec, options.tokenizer_source);
  return std::make_unique<GgufModelWriter>(plan, options, std::move(metadata));
}

}  // namespace minfer
