#include "loaders/quantized_checkpoint.h"

#include <set>
#include <utility>

namespace minfer {
namespace {

class QuantizedCheckpoint final : public TensorSource {
 public:
  QuantizedCheckpoint(std::unique_ptr<SafetensorsSource> files, PackedWeights packed)
      : files_(std::move(files)) {
    format = cat(files_->format, ", ", packed.scheme);
    key_style = files_->key_style;
    metadata = files_->metadata;
    warnings = files_->warnings;
    warnings.insert(warnings.end(), packed.warnings.begin(), packed.warnings.end());
    unusable = files_->unusable;

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
    MINFER_CHECK(packed_[index].read, "tensor ", entry.name, " is a matrix of groups");
    deliver(to, entry, packed_[index].read);
  }
  void read_quantized_into(HostQuantizedMatrix& to, const TensorEntry& entry) const override {
    const size_t index = index_of(entry);
    MINFER_CHECK(index < packed_.size() && packed_[index].read_quantized, "tensor ", entry.name,
                 " has no groups");
    deliver(to, entry, packed_[index].read_quantized);
  }
  int64_t check_checksums() const override { return files_->check_checksums(); }
  void check_unchanged() const override { files_->check_unchanged(); }

 private:
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

PackedWeights find_packed_weights(const SafetensorsSource& source) {
  const std::string key = "quantization_config.quant_method";
  const std::string& method = source.metadata.text(key);
  require_supported(key, method, {"compressed-tensors", "gptq", "awq"});
  if (method == "gptq") return find_gptq(source);
  if (method == "awq") return find_awq(source);
  return find_compressed_tensors(source);
}

}  // namespace

std::unique_ptr<TensorSource> join_packed_weights(std::unique_ptr<SafetensorsSource> source) {
  if (names_below(source->metadata, "quantization_config").empty()) return source;
  PackedWeights packed = find_packed_weights(*source);
  return std::make_unique<QuantizedCheckpoint>(std::move(source), std::move(packed));
}

}  // namespace minfer
