#include "loaders/gguf_writer.h"

#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

#include "kernels/base/math.h"
#include "loaders/gguf_part.h"

namespace minfer {
namespace {

// GGUF's header, piece by piece; little-endian, as every machine that minfer runs on.
class Bytes {
 public:
  template <typename T>
  void add(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add_text(std::string_view value) {
    add(uint64_t{value.size()});
    text += value;
  }
  void add_type(GgufValueType type) { add(static_cast<uint32_t>(type)); }

  std::string text;
};

void add_array(Bytes& to, GgufValueType type, size_t n) {
  to.add_type(GgufValueType::Array);
  to.add_type(type);
  to.add(uint64_t{n});
}

template <typename Narrow, typename Wide>
void add_integer(Bytes& to, Wide value, GgufValueType narrow_type, GgufValueType wide_type) {
  const bool fits = std::in_range<Narrow>(value);
  to.add_type(fits ? narrow_type : wide_type);
  if (fits) return to.add(static_cast<Narrow>(value));
  to.add(value);
}

struct AddValue {
  Bytes& to;

  void operator()(bool value) const {
    to.add_type(GgufValueType::Bool);
    to.add(uint8_t{value});
  }
  void operator()(uint64_t value) const {
    add_integer<uint32_t>(to, value, GgufValueType::U32, GgufValueType::U64);
  }
  void operator()(int64_t value) const {
    add_integer<int32_t>(to, value, GgufValueType::I32, GgufValueType::I64);
  }
  void operator()(double value) const {
    to.add_type(GgufValueType::F32);
    to.add(static_cast<float>(value));
  }
  void operator()(const std::string& value) const {
    to.add_type(GgufValueType::Text);
    to.add_text(value);
  }
  void operator()(const std::vector<bool>& values) const {
    add_array(to, GgufValueType::Bool, values.size());
    for (const bool value : values) to.add(uint8_t{value});
  }
  void operator()(const std::vector<int64_t>& values) const {
    bool all_fit = true;
    for (const int64_t value : values) all_fit = all_fit && std::in_range<int32_t>(value);
    add_array(to, all_fit ? GgufValueType::I32 : GgufValueType::I64, values.size());
    for (const int64_t value : values) {
      if (all_fit) {
        to.add(static_cast<int32_t>(value));
      } else {
        to.add(value);
      }
    }
  }
  void operator()(const std::vector<double>& values) const {
    add_array(to, GgufValueType::F32, values.size());
    for (const double value : values) to.add(static_cast<float>(value));
  }
  void operator()(const std::vector<std::string>& values) const {
    add_array(to, GgufValueType::Text, values.size());
    for (const std::string& value : values) to.add_text(value);
  }
};

uint64_t aligned(uint64_t n_bytes) {
  return static_cast<uint64_t>(
      align_up(narrow<int64_t>(n_bytes), static_cast<int64_t>(kGgufAlignment)));
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path, const Metadata& metadata,
                       const std::vector<TensorEntry>& tensors)
    : file_(path) {
  constexpr uint32_t kVersion = 3;
  Bytes header;
  header.text = kGgufMagic;
  header.add(kVersion);
  header.add(uint64_t{tensors.size()});
  header.add(uint64_t{metadata.all().size()});
  for (const auto& [key, value] : metadata.all()) {
    header.add_text(key);
    std::visit(AddValue{header}, value);
  }
  uint64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    header.add_text(tensor.name);
    header.add(static_cast<uint32_t>(tensor.shape.rank));
    for (int i = tensor.shape.rank; i-- > 0;) header.add(uint64_t(tensor.shape[i]));
    header.add(ggml_type_number(tensor.dtype));
    header.add(offset);
    const bool is_new = begins_.emplace(tensor.name, offset).second;
    MINFER_CHECK(is_new, "tensor ", tensor.name, " is there twice");
    const auto n_bytes = static_cast<uint64_t>(bytes_of(tensor.dtype, tensor.shape));
    n_left_ += n_bytes;
    offset = aligned(offset + n_bytes);
  }
  header.text.resize(aligned(header.text.size()), '\0');
  for (auto& [name, begin] : begins_) begin += header.text.size();
  file_.write(0, header.text.data(), header.text.size());
  // The padding behind the last tensor is part of the file.
  const std::string padding(aligned(1), '\0');
  if (offset > 0)
    file_.write(header.text.size() + offset - padding.size(), padding.data(), padding.size());
}

void GgufWriter::write(const std::string& name, uint64_t begin, const void* bytes, uint64_t n) {
  const auto found = begins_.find(name);
  MINFER_CHECK(found != begins_.end() && n <= n_left_, "tensor ", name, " is not of this file");
  file_.write(found->second + begin, bytes, n);
  n_left_ -= n;
}

void GgufWriter::finish() {
  MINFER_CHECK(n_left_ == 0, n_left_, " bytes of tensors are not written");
  file_.finish();
}

}  // namespace minfer
