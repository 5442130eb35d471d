#include "loaders/quantized_dir.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "loaders/checksum.h"
#include "loaders/compressed_tensors.h"
#include "loaders/file.h"
#include "loaders/gguf_writer.h"
#include "loaders/output_file.h"
#include "loaders/sha256_sums.h"
#include "loaders/side_files.h"
#include "loaders/small_files.h"
#include "loaders/staging.h"

namespace minfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr uint64_t kMaxSideFileBytes = 256 << 20;

class QuantizedDirWriter final : public ModelWriter {
 public:
  explicit QuantizedDirWriter(QuantizedDirOptions options)
      : options_(std::move(options)),
        layout_(options_.tensors),
        staging_(options_.output,
                 options_.single_file ? OutputKind::Safetensors : OutputKind::Directory,
                 options_.replace) {
    if (!options_.source_dir.empty()) side_files_ = side_files(options_.source_dir).names;
    staging_.require_space(expected_bytes());
    if (options_.single_file) inside_ = files_to_carry();
    weights_ = std::make_unique<SafetensorsWriter>(path_of(kWeights), records(), metadata());
    for (const auto& [name, bytes] : inside_) {
      weights_->append(inside_tensor_name(name), bytes.data(), bytes.size());
    }
  }

  void write_rows(const TensorEntry& tensor, int64_t, const Tensor& rows) override {
    weights_->append(tensor.name, rows.data, static_cast<uint64_t>(rows.n_bytes()));
  }

  void write_rows(const TensorEntry& tensor, int64_t begin, const QuantizedMatrix& rows) override {
    layout_.append(*weights_, tensor, begin, rows);
  }

  std::vector<std::string> finish(const std::string& report) override {
    weights_->finish();
    sums_[kWeights] = weights_->check(options_.progress);
    if (options_.single_file) return staging_.commit_file(kWeights);
    add_file(kConfig, final_config());
    for (const std::string& name : side_files_) {
      add_file(name, read_whole_file(source_path(name), kMaxSideFileBytes));
    }
    if (!options_.tokenizer.all().empty()) {
      GgufWriter(path_of(kTokenizerGguf), options_.tokenizer, {}).finish();
      sums_[kTokenizerGguf] =
          sha256_hex(read_whole_file(path_of(kTokenizerGguf), kMaxSideFileBytes));
    }
    add_file(kQuantReport, report);
    std::string sums;
    for (const auto& [name, sum] : sums_) sums += sum + "  " + name + '\n';
    add_file(kSha256Sums, sums);
    return staging_.commit_directory();
  }

 private:
  std::string path_of(const std::string& name) const { return staging_.directory() + '/' + name; }
  std::string source_path(const std::string& name) const {
    return (fs::path(options_.source_dir) / name).string();
  }

  std::string final_config() const {
    return layout_.with_quantization_config(options_.config, options_.tied_output);
  }

  std::map<std::string, std::string> files_to_carry() const {
    std::map<std::string, std::string> files = {{kConfig, final_config()}};
    for (const std::string& name : side_files_) {
      if (std::ranges::find(kInsideFiles, name) == std::end(kInsideFiles)) continue;
      files[name] = read_whole_file(source_path(name), kMaxSideFileBytes);
    }
    return files;
  }

  // Tensors that are no whole multiples of 64 bytes come last, so that the others begin at one.
  std::vector<SafetensorsWriter::Record> records() const {
    std::vector<SafetensorsWriter::Record> all;
    for (const TensorEntry& tensor : options_.tensors) {
      for (auto& record : layout_.records(tensor)) all.push_back(std::move(record));
    }
    std::ranges::stable_partition(all, [](const auto& record) { return record.n_bytes % 64 == 0; });
    for (const auto& [name, bytes] : inside_) {
      all.push_back({inside_tensor_name(name), "U8", {std::ssize(bytes)}, bytes.size()});
    }
    return all;
  }

  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> all = options_.metadata;
    all["format"] = "pt";  // what transformers asks for
    all["minfer.format"] = "1";
    return all;
  }

  int64_t expected_bytes() const {
    constexpr int64_t kSmallFiles = 16 << 20;  // header, configuration, report
    int64_t n_bytes = kSmallFiles;
    for (const TensorEntry& tensor : options_.tensors) {
      n_bytes = checked_add(n_bytes, layout_.stored_bytes(tensor));
    }
    for (const std::string& name : side_files_) {
      std::error_code ignored;  // a file that cannot be read is an error when it is
      const uintmax_t size = fs::file_size(source_path(name), ignored);
      if (!ignored) n_bytes = checked_add(n_bytes, narrow<int64_t>(size));
    }
    return n_bytes;
  }

  void add_file(const std::string& name, const std::string& bytes) {
    write_file(path_of(name), bytes);
    MINFER_REQUIRE(System, read_whole_file(path_of(name), bytes.size()) == bytes,
                   shown_path(path_of(name)), ": does not hold what was written");
    sums_[name] = sha256_hex(bytes);
  }

  QuantizedDirOptions options_;
  CompressedTensorsLayout layout_;
  Staging staging_;
  std::vector<std::string> side_files_;         // names in source_dir
  std::unique_ptr<SafetensorsWriter> weights_;  // closed before staging_ goes
  std::map<std::string, std::string> sums_;     // SHA-256 by file name
  std::map<std::string, std::string> inside_;   // of a single file, by name
};

}  // namespace

std::unique_ptr<ModelWriter> make_quantized_dir_writer(QuantizedDirOptions options) {
  return std::make_unique<QuantizedDirWriter>(std::move(options));
}

}  // namespace minfer
