#include "loaders/quantized_checkpoint.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

namespace minfer {
namespace {

class QuantizedCheckpoint final : public TensorSource {
 public:
  QuantizedCheckpoint(std::unique_ptr<SafetensorsSource> files, PackedWeights packed)
      : files_(std::move(files)) {
    format = files_->format + (packed.scheme.empty() ? "" : ", " + packed.scheme);
    key_style = files_->key_style;
    metadata = std::move(files_->metadata);
    warnings = files_->warnings;
    warnings.insert(warnings.end(), packed.warnings.begin(), packed.warnings.end());
    unusable = files_->unusable;
    input_activations = packed.input_activations;

    std::set<std::string> parts;
    for (PackedWeight& weight : packed.weights) {
      for (const PackedWeight::Stored* part : weight.parts) {
        parts.insert(part->record.name);
        unusable.erase(part->record.name);
      }
      add_tensor(weight.entry);
      packed_.push_back(std::move(weight));
    }
    for (const TensorEntry& entry : files_->tensors) {
      if (!parts.contains(entry.name)) add_tensor(entry);
    }
  }

  void read_into(HostTensor& to, const TensorEntry& entry) const override {
    const size_t index = index_of(entry);
    if (index >= packed_.size()) return files_->read_into(to, entry);
    if (packed_[index].read_rows) return read_rows_into(to, entry, 0, entry.shape[0]);
    MINFER_CHECK(packed_[index].read, "tensor ", entry.name, " is a matrix of groups");
    deliver(to, entry, packed_[index].read);
  }
  void read_quantized_into(HostQuantizedMatrix& to, const TensorEntry& entry) const override {
    const size_t index = index_of(entry);
    MINFER_CHECK(index < packed_.size() && packed_[index].read_quantized, "tensor ", entry.name,
                 " has no groups");
    deliver(to, entry, packed_[index].read_quantized);
  }
  HostTensor read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const override {
    const size_t index = index_of(entry);
    if (index >= packed_.size()) return files_->read_rows(entry, begin, n);
    if (!packed_[index].read_rows) return TensorSource::read_rows(entry, begin, n);
    HostTensor rows;
    read_rows_into(rows, entry, begin, n);
    return rows;
  }
  int64_t check_checksums() const override { return files_->check_checksums(); }
  void check_unchanged() const override { files_->check_unchanged(); }

 private:
  // Rows of the outermost dim of an entry, which may be a view with other dims than in `tensors`.
  void read_rows_into(HostTensor& to, const TensorEntry& entry, int64_t begin, int64_t n) const {
    const size_t index = index_of(entry);
    const Shape& whole = tensors[index].shape;
    const int64_t row = whole.rank == 2 ? 1 : whole.last();  // of the innermost dim
    const int64_t n_rows = entry.shape.n_elements() / entry.shape[0] / row;
    Shape shape = entry.shape;
    shape.dims[0] = n;
    to.reset(entry.dtype, shape);
    packed_[index].read_rows(to.view().data, *files_, begin * n_rows, n * n_rows);
  }
  // `read` is one of the functions of a PackedWeight.
  template <typename T>
  void deliver(T& to, const TensorEntry& entry,
               const std::function<void(T&, const SafetensorsSource&)>& read) const {
    try {
      read(to, *files_);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Input) throw;
      throw e.in(cat(shown_path(path), ": tensor ", shortened(entry.name)));
    }
  }

  std::unique_ptr<SafetensorsSource> files_;
  std::vector<PackedWeight> packed_;  // of the first tensors
};

// Settings that the readers of the methods look at, and those of how the weights were found, which
// say nothing about what is stored.
constexpr std::string_view kKnownSettings[] = {
    // read
    "quant_method", "format", "quantization_status", "config_groups", "ignore", "kv_cache_scheme",
    "sparsity_config", "moe_sparsity_config", "transform_config", "bits", "w_bit", "group_size",
    "q_group_size", "sym", "desc_act", "checkpoint_format", "is_marlin_format", "dynamic",
    "zero_point", "version", "packing_format", "backend", "data_type", "act_bits", "super_bits",
    "extra_config", "rotation", "adapter", "pack_dtype", "dequantize",
    // without effect here
    "global_compression_ratio", "damp_percent", "damp_auto_increment", "static_groups",
    "true_sequential", "lm_head", "model_name_or_path", "model_file_base_name", "meta", "tokenizer",
    "dataset", "batch_size", "block_name_to_quantize", "to_quant_block_names",
    "cache_block_outputs", "disable_exllama", "exllama_config", "max_input_length",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "pad_token_id",
    "use_cuda_fp16", "use_exllama", "model_seqlen", "mse", "modules_to_not_convert", "do_fuse",
    "fuse_max_seq_len", "modules_to_fuse", "iters", "lr", "minmax_lr", "seqlen", "nsamples",
    "autoround_version", "enable_minmax_tuning", "enable_quanted_input", "enable_norm_bias_tuning",
    "gradient_accumulate_steps", "low_gpu_mem_usage", "low_cpu_mem_usage", "amp", "scale_dtype",
    "quant_lm_head", "supported_types", "train_bs", "ipex_config", "hyb_act", "act_group_aware",
    "offload_to_disk", "failsafe", "fallback", "quant_method_version", "act_data_type",
    "act_dynamic", "act_group_size", "act_sym", "quantizer", "true_sequential_blocks",
    "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules",
    "llm_int8_threshold"};

void warn_of_unknown_settings(const Metadata& metadata, std::vector<std::string>& warnings) {
  for (const std::string& name : names_below(metadata, "quantization_config")) {
    if (std::ranges::find(kKnownSettings, name) != std::end(kKnownSettings)) continue;
    warnings.push_back(cat("key quantization_config.", shortened(name), " is not known to minfer"));
  }
}

bool is_gpt_oss(const Metadata& metadata) {
  const std::string key = "model_type";
  return metadata.has(key) && metadata.text(key) == "gpt_oss";
}

// What transformers' Mxfp4Config has. What is converted, the tensors show.
PackedWeights find_mxfp4_weights(const SafetensorsSource& source) {
  const std::string root = "quantization_config";
  MINFER_REQUIRE(Input, is_gpt_oss(source.metadata), "key ", root,
                 ".quant_method is \"mxfp4\": not supported for other models than gpt_oss");
  for (const std::string& name : names_below(source.metadata, root)) {
    require_supported(root, name, {"quant_method", "modules_to_not_convert", "dequantize"});
  }
  return find_gpt_oss_experts(source);
}

// The name of a tensor, readable or not, that ends so; else empty.
std::string stored_with_end(const TensorSource& source, std::string_view end) {
  for (const TensorEntry& entry : source.tensors) {
    if (entry.name.ends_with(end)) return entry.name;
  }
  for (const auto& [name, reason] : source.unusable) {
    if (name.ends_with(end)) return name;
  }
  return "";
}

// mlx-lm writes its settings twice, without a method.
void refuse_mlx(const SafetensorsSource& source) {
  const std::string scales = stored_with_end(source, ".scales");
  if (names_below(source.metadata, "quantization").empty() || scales.empty()) return;
  throw Error(ErrorKind::Input,
              cat("tensor ", shortened(scales),
                  " and key quantization: weights as MLX packs them, "
                  "which are not supported; take the model that they were made of"));
}

// Merging an adapter leaves the section behind, over plain weights.
PackedWeights leftover_of_bitsandbytes(const SafetensorsSource& source) {
  for (const char* end : {".absmax", ".SCB"}) {
    const std::string name = stored_with_end(source, end);
    MINFER_REQUIRE(Input, name.empty(), "tensor ", shortened(name),
                   ": weights as bitsandbytes packs them, which are not supported; take the model "
                   "that they were made of");
  }
  return {.scheme = "",
          .weights = {},
          .warnings = {"the quantization_config, of bitsandbytes, describes no tensor: all weights "
                       "are taken as they are stored"}};
}

PackedWeights find_packed_weights(const SafetensorsSource& source) {
  const std::string key = "quantization_config.quant_method";
  refuse_mlx(source);
  if (names_below(source.metadata, "quantization_config").empty()) {
    return is_gpt_oss(source.metadata) ? find_gpt_oss_experts(source) : PackedWeights();
  }
  const std::string& method = source.metadata.text(key);
  if (method == "mxfp4") return find_mxfp4_weights(source);
  if (method == "bitsandbytes") return leftover_of_bitsandbytes(source);
  require_supported(key, method,
                    {"compressed-tensors", "gptq", "gptqmodel", "awq", "auto-round", "auto_round",
                     "intel/auto-round", "mxfp4"});
  if (method == "compressed-tensors") return find_compressed_tensors(source);
  return find_gptq_weights(source, method.starts_with("gptq") ? read_gptq_scheme(source.metadata)
                                   : method == "awq"          ? read_awq_scheme(source.metadata)
                                                     : read_auto_round_scheme(source.metadata));
}

}  // namespace

std::unique_ptr<TensorSource> join_packed_weights(std::unique_ptr<SafetensorsSource> source) {
  PackedWeights packed = find_packed_weights(*source);
  const bool has_settings = !names_below(source->metadata, "quantization_config").empty();
  if (packed.weights.empty() && !has_settings) return source;
  warn_of_unknown_settings(source->metadata, packed.warnings);
  return std::make_unique<QuantizedCheckpoint>(std::move(source), std::move(packed));
}

}  // namespace minfer
