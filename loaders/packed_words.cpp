#include "loaders/packed_words.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels/base/quant_codec.h"

namespace minfer {
namespace {

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += cat(text.empty() ? "" : ", ", dim);
  return cat("[", text, "]");
}

}  // namespace

const PackedWeight::Stored& packed_part(const SafetensorsSource& source, const std::string& module,
                                        std::string_view suffix,
                                        std::initializer_list<std::string_view> types) {
  const std::string name = cat(module, ".", suffix);
  const PackedWeight::Stored* stored = source.find_stored(name);
  MINFER_REQUIRE(Input, stored != nullptr, "tensor ", shortened(name), ": is missing");
  const SafetensorsRecord& record = stored->record;
  const bool fits = types.size() == 0 ? record.dtype.has_value()
                                      : std::ranges::find(types, record.type_name) != types.end();
  MINFER_REQUIRE(Input, fits, "tensor ", shortened(name), ": has dtype ", record.type_name,
                 ", expected ", types.size() == 0 ? "F32, F16 or BF16" : *types.begin());
  return *stored;
}

void require_dims(const PackedWeight::Stored& stored, const std::vector<int64_t>& dims) {
  MINFER_REQUIRE(Input, stored.record.dims == dims, "tensor ", shortened(stored.record.name),
                 ": shape ", dims_text(stored.record.dims), ", expected ", dims_text(dims));
}

std::vector<float> read_float_part(const SafetensorsSource& source,
                                   const PackedWeight::Stored& stored) {
  const DType dtype = *stored.record.dtype;
  const std::vector<char> bytes = read_part<char>(source, stored);
  const auto n = static_cast<int64_t>(bytes.size()) / info(dtype).block_bytes;
  std::vector<float> values(static_cast<size_t>(n));
  dequantize_row(values.data(), bytes.data(), dtype, n);
  return values;
}

TensorEntry packed_entry(const std::string& module, int bits, int64_t out_dim, int64_t in_dim,
                         int64_t group, bool asymmetric, const PackedWeight::Stored& scales,
                         const std::vector<const PackedWeight::Stored*>& parts) {
  TensorEntry entry;
  entry.name = module + ".weight";
  entry.dtype = bits == 4 ? DType::U4 : DType::U8;
  entry.shape = {out_dim, in_dim};
  MINFER_REQUIRE(Input, bits == 8 || in_dim % 2 == 0, "tensor ", shortened(entry.name), ": has ",
                 in_dim, " columns of 4 bits, expected an even number");
  for (const PackedWeight::Stored* part : parts) entry.file_bytes += part->n_bytes();
  const bool is_f16 = scales.record.dtype == DType::F16;
  entry.quant = QuantScheme{is_f16 ? DType::F16 : DType::F32, group, asymmetric};
  return entry;
}

int64_t group_of(const PackedWeight::Stored& scales, int64_t n_groups, int64_t in_dim) {
  MINFER_REQUIRE(Input, n_groups > 0 && in_dim > 0 && in_dim % n_groups == 0, "tensor ",
                 shortened(scales.record.name), ": has ", n_groups, " scales for ", in_dim,
                 " columns, expected a divisor");
  return in_dim / n_groups;
}

std::string common_scheme(const std::vector<PackedWeight>& weights) {
  std::map<std::string, int64_t> n_elements;
  for (const PackedWeight& weight : weights) {
    n_elements[type_text(weight.entry)] += weight.entry.shape.n_elements();
  }
  const auto most =
      std::ranges::max_element(n_elements, {}, [](auto& item) { return item.second; });
  return most == n_elements.end() ? "without packed weights" : most->first;
}

}  // namespace minfer
