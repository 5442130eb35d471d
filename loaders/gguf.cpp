#include <string>
#include <utility>

#include "loaders/formats.h"
#include "loaders/gguf_part.h"

namespace minfer {
namespace {

constexpr int64_t kMaxParts = 512;  // each keeps a descriptor open

// How many files the model is in, as its part `number` (from 0) says.
int64_t check_split(const Metadata& metadata, int64_t number) {
  const int64_t n_parts = metadata.integer_or("split.count", 1, 0, kMaxParts);
  if (n_parts <= 1) return 1;
  const int64_t found = metadata.integer("split.no", 0, n_parts - 1);
  MINFER_REQUIRE(Input, found == number, "is part ", found + 1, " of ", n_parts,
                 number == 0 ? "; open the first one" : cat(", expected part ", number + 1));
  return n_parts;
}

std::string part_suffix(int64_t number, int64_t n_parts) {
  const auto five_digits = [](int64_t value) {
    const std::string digits = std::to_string(100000 + value);  // kMaxParts has fewer digits
    return digits.substr(1);
  };
  return cat("-", five_digits(number + 1), "-of-", five_digits(n_parts), ".gguf");
}

class GgufSource final : public FileTensorSource {
 public:
  explicit GgufSource(File first) {
    const std::string first_path = first.path();
    int64_t n_parts = 1;
    std::string stem;  // of the names of all parts, from the first part's name only
    in_file(first_path, [&] {
      GgufPart part = read_gguf_part(first);
      format = cat("gguf v", part.version);
      n_parts = check_split(part.metadata, 0);
      if (n_parts > 1) stem = stem_of(first_path, n_parts);
      add_part(first, part);
      metadata = std::move(part.metadata);
    });
    files_.push_back(std::move(first));
    for (int64_t i = 1; i < n_parts; ++i) {
      File file(stem + part_suffix(i, n_parts));
      in_file(file.path(), [&] {
        const GgufPart part = read_gguf_part(file);
        const int64_t n = check_split(part.metadata, i);
        MINFER_REQUIRE(Input, n == n_parts, "key split.count is ", n, ", expected ", n_parts,
                       " as in the first part");
        add_part(file, part);
      });
      files_.push_back(std::move(file));
    }
    if (n_parts > 1) in_file(first_path, [&] { check_n_tensors(); });
  }

 private:
  static std::string stem_of(const std::string& first_path, int64_t n_parts) {
    const std::string suffix = part_suffix(0, n_parts);
    MINFER_REQUIRE(Input, first_path.ends_with(suffix), "is the first of ", n_parts,
                   " parts, so its name has to end in ", suffix);
    return first_path.substr(0, first_path.size() - suffix.size());
  }

  // The tensors of the file that comes next in files_.
  void add_part(const File& file, const GgufPart& part) {
    for (const GgufRecord& record : part.records) {
      const std::string& name = record.entry.name;
      if (!record.unusable.empty()) {
        const bool is_new = find(name) == nullptr && unusable.emplace(name, record.unusable).second;
        MINFER_REQUIRE(Input, is_new, "tensor ", shortened(name), ": is there twice");
        continue;
      }
      MINFER_REQUIRE(Input, !unusable.contains(name), "tensor ", shortened(name),
                     ": is there twice");
      add_tensor(record.entry, {files_.size(), part.data_begin + record.offset});
    }
    if (part.unused_bytes > 0) {
      warnings.push_back(
          cat(shown_path(file.path()), ": ", part.unused_bytes, " bytes belong to no tensor"));
    }
  }

  void check_n_tensors() const {
    const int64_t n = metadata.integer("split.tensors.count", 0, kMaxGgufTensors);
    const size_t found = tensors.size() + unusable.size();
    MINFER_REQUIRE(Input, std::cmp_equal(n, found), "key split.tensors.count is ", n,
                   ", the parts have ", found);
  }
};

}  // namespace

std::unique_ptr<TensorSource> open_gguf(File file) {
  return std::make_unique<GgufSource>(std::move(file));
}

}  // namespace minfer
