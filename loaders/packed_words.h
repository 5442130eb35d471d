#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "loaders/quantized_checkpoint.h"

// What the readers of packed weights share.
namespace minfer {

// Unsigned integers of 4 or 8 bits in 32-bit words, the first in the lowest bits. A view.
struct PackedWords {
  const uint32_t* words;
  int bits;

  static int64_t per_word(int bits) { return 32 / bits; }
  int at(int64_t i) const {
    const int64_t per_word_log2 = bits == 4 ? 3 : 2;
    const int64_t place = i & ((1 << per_word_log2) - 1);
    return int((words[i >> per_word_log2] >> (place * bits)) & ((1u << bits) - 1));
  }
};

// The tensor `module.suffix`, of one of these types (empty: any float type). Throws Input if it is
// missing or of another type.
const PackedWeight::Stored& packed_part(const SafetensorsSource& source, const std::string& module,
                                        std::string_view suffix,
                                        std::initializer_list<std::string_view> types);
// Throws Input, with the tensor's name, if its dims differ.
void require_dims(const PackedWeight::Stored& stored, const std::vector<int64_t>& dims);

template <typename T>
std::vector<T> read_part(const SafetensorsSource& source, const PackedWeight::Stored& stored) {
  std::vector<T> values(stored.n_bytes() / sizeof(T));
  source.read_stored(stored, values.data());
  return values;
}
// The same for any float type, as f32.
std::vector<float> read_float_part(const SafetensorsSource& source,
                                   const PackedWeight::Stored& stored);

// The entry of `module`.weight [out_dim, in_dim]. F16 scales stay F16; others become F32, exactly.
TensorEntry packed_entry(const std::string& module, int bits, int64_t out_dim, int64_t in_dim,
                         int64_t group, bool asymmetric, const PackedWeight::Stored& scales,
                         const std::vector<const PackedWeight::Stored*>& parts);

// How many columns share a scale if a row has n_groups scales. Throws Input if n_groups does not
// divide in_dim.
int64_t group_of(const PackedWeight::Stored& scales, int64_t n_groups, int64_t in_dim);

// The scheme of most weights: "int4 g64", "int8 row asymmetric".
std::string common_scheme(const std::vector<PackedWeight>& weights);

// Makes `to` the matrix of an entry and writes its scales and mins, but not its codes, by calling:
//   scale(row, group)  float
//   zero(row, group)   in 0 ... 2^bits - 1
// Throws Input if a symmetric matrix has a zero-point other than the middle code.
template <typename Scale, typename Zero>
void begin_matrix(HostQuantizedMatrix& to, const TensorEntry& entry, Scale scale, Zero zero) {
  const int64_t out_dim = entry.shape[0];
  to.reset(entry.dtype, entry.quant->scales, out_dim, entry.shape[1], entry.quant->group,
           entry.quant->asymmetric);
  const QuantizedMatrix view = to.view();
  const int64_t n_groups = view.n_groups();
  visit_float(entry.quant->scales, [&]<typename T>() {
    for (int64_t row = 0; row < out_dim; ++row) {
      for (int64_t g = 0; g < n_groups; ++g) {
        const float s = scale(row, g);
        const int z = zero(row, g);
        to.scales.as<T>()[row * n_groups + g] = from_f32<T>(s);
        if (view.asymmetric()) {
          to.mins.as<float>()[row * n_groups + g] = -(s * float(z));
        } else {
          MINFER_REQUIRE(Input, z == view.zero_code(), "zero-point of row ", row, ", group ", g,
                         " is ", z, ", expected ", view.zero_code(), " of symmetric weights");
        }
      }
    }
  });
}

}  // namespace minfer
