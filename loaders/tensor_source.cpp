#include "loaders/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "loaders/foreign_file.h"
#include "loaders/formats.h"

namespace minfer {

std::string groups_text(int bits, int64_t group, bool asymmetric) {
  return cat("int", bits, group == 0 ? " row" : cat(" g", group), asymmetric ? " asymmetric" : "");
}

std::string type_text(const TensorEntry& entry) {
  if (!entry.quant) return std::string(info(entry.dtype).name);
  const int64_t group = entry.quant->group == entry.shape.last() ? 0 : entry.quant->group;
  return groups_text(entry.dtype == DType::U4 ? 4 : 8, group, entry.quant->asymmetric);
}

const TensorEntry* TensorSource::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors[found->second];
}

void TensorSource::add_tensor(TensorEntry entry) {
  const bool is_new = index_.emplace(entry.name, tensors.size()).second;
  MINFER_REQUIRE(Input, is_new, "tensor ", shortened(entry.name), ": is there twice");
  tensors.push_back(std::move(entry));
}

size_t TensorSource::index_of(const TensorEntry& entry) const {
  const auto found = index_.find(entry.name);
  MINFER_CHECK(found != index_.end(), "tensor ", entry.name, " of another source");
  return found->second;
}

void FileTensorSource::add_tensor(TensorEntry entry, Extent extent) {
  TensorSource::add_tensor(std::move(entry));
  extents_.push_back(extent);
}

void FileTensorSource::read_bytes(const TensorEntry& entry, void* to) const {
  const size_t index = index_of(entry);
  const Extent& extent = extents_[index];
  files_[extent.file].read(extent.begin, to, tensors[index].file_bytes);
}

void FileTensorSource::read_into(HostTensor& to, const TensorEntry& entry) const {
  to.reset(entry.dtype, entry.shape);
  MINFER_CHECK(std::cmp_equal(to.view().n_bytes(), entry.file_bytes), "tensor ", entry.name);
  read_bytes(entry, to.view().data);
}

HostTensor TensorSource::read(const TensorEntry& entry) const {
  HostTensor tensor;
  read_into(tensor, entry);
  return tensor;
}

HostTensor TensorSource::read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const {
  HostTensor whole = read(entry);
  if (n == entry.shape[0]) return whole;
  const Tensor rows = whole.view().rows(begin, n);
  HostTensor copy(rows.dtype, rows.shape);
  std::memcpy(copy.view().data, rows.data, static_cast<size_t>(rows.n_bytes()));
  return copy;
}

HostTensor FileTensorSource::read_rows(const TensorEntry& entry, int64_t begin, int64_t n) const {
  if (std::cmp_not_equal(bytes_of(entry.dtype, entry.shape), entry.file_bytes)) {
    return TensorSource::read_rows(entry, begin, n);  // stored otherwise than read() delivers it
  }
  Shape shape = entry.shape;
  shape.dims[0] = begin;
  const auto skipped = static_cast<uint64_t>(bytes_of(entry.dtype, shape));
  shape.dims[0] = n;
  MINFER_CHECK(begin >= 0 && n >= 0 && begin + n <= entry.shape[0], "rows of ", entry.name);
  HostTensor rows(entry.dtype, shape);
  const Extent& extent = extents_[index_of(entry)];
  files_[extent.file].read(extent.begin + skipped, rows.view().data,
                           static_cast<uint64_t>(rows.view().n_bytes()));
  return rows;
}

void TensorSource::read_quantized_into(HostQuantizedMatrix&, const TensorEntry& entry) const {
  throw Error(ErrorKind::Internal, cat("tensor ", entry.name, " has no groups"));
}

HostQuantizedMatrix TensorSource::read_quantized(const TensorEntry& entry) const {
  HostQuantizedMatrix matrix;
  read_quantized_into(matrix, entry);
  return matrix;
}

void FileTensorSource::check_unchanged() const {
  for (const File& file : files_) file.check_unchanged();
}

namespace {

// Why a file is none of ours; what people often point at is named, by its first bytes.
[[noreturn]] void throw_not_a_model(const File& file) {
  std::string start(std::min<uint64_t>(file.size(), 512), '\0');
  file.read(0, start.data(), start.size());
  const std::string what = foreign_format(start, file.path());
  MINFER_REQUIRE(Input, what.empty(), shown_path(file.path()), ": ", what);
  start.resize(std::min<size_t>(start.size(), 4));
  throw Error(ErrorKind::Input,
              cat(shown_path(file.path()), ": is no model: ", file.size(),
                  " bytes that begin with \"", shortened(start),
                  "\"; expected GGUF, safetensors, llama2.c or a Hugging Face directory"));
}

std::unique_ptr<TensorSource> open_file(File file) {
  if (is_gguf(file)) return open_gguf(std::move(file));
  if (is_safetensors(file)) return open_safetensors(std::move(file));
  if (is_llama2c(file)) return open_llama2c(std::move(file));
  throw_not_a_model(file);
}

}  // namespace

std::unique_ptr<TensorSource> open_source(const std::string& path) {
  std::error_code ignored;  // what is wrong with the path is told by File
  std::unique_ptr<TensorSource> source = std::filesystem::is_directory(path, ignored)
                                             ? open_hf_directory(path)
                                             : open_file(File(path));
  source->path = path;
  const std::vector<std::string>& of_metadata = source->metadata.warnings;
  source->warnings.insert(source->warnings.begin(), of_metadata.begin(), of_metadata.end());
  return source;
}

}  // namespace minfer
