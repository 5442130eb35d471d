#include <algorithm>
#include <array>

#include "loaders/gptq_scheme.h"
#include "loaders/packed_words.h"

// GPTQ and AWQ checkpoints: both store a matrix as [in, out], its codes and zero-points packed.
// Source: the AutoGPTQ, GPTQModel and AutoAWQ packages.
namespace minfer {
namespace {

using Stored = PackedWeight::Stored;

constexpr std::string_view kCodes = ".qweight";

// The tensors of a module, and the sizes that follow from them.
struct Module {
  std::string name;
  const Stored *codes, *zeros, *scales, *g_idx;  // g_idx may be null
  int64_t out_dim, in_dim, n_groups;
};

Module find_module(const SafetensorsSource& source, const std::string& name,
                   const GptqScheme& scheme) {
  Module m;
  m.name = name;
  m.codes = &packed_part(source, name, "qweight", {"I32"});
  m.zeros = &packed_part(source, name, "qzeros", {"I32"});
  m.scales = &packed_part(source, name, "scales", {});
  m.g_idx = source.find_stored(name + ".g_idx");
  const std::vector<int64_t>& words = m.codes->record.dims;
  MINFER_REQUIRE(Input, words.size() == 2 && words[0] > 0 && words[1] > 0, "tensor ",
                 shortened(m.codes->record.name), ": has ", words.size(),
                 " dims, expected 2 of more than 0");
  const int64_t per_word = PackedWords::per_word(scheme.bits);
  m.in_dim = scheme.codes_along_in ? checked_mul(words[0], per_word) : words[0];
  m.out_dim = scheme.codes_along_in ? words[1] : checked_mul(words[1], per_word);
  MINFER_REQUIRE(Input, m.out_dim % per_word == 0, "tensor ", shortened(m.codes->record.name),
                 ": has ", m.out_dim, " columns, expected a multiple of ", per_word);
  const int64_t group = scheme.group < 0 ? m.in_dim : scheme.group;
  MINFER_REQUIRE(Input, m.in_dim % group == 0, "tensor ", shortened(m.codes->record.name),
                 ": groups of ", group, " do not divide its ", m.in_dim, " rows");
  m.n_groups = m.in_dim / group;
  require_dims(*m.scales, {m.n_groups, m.out_dim});
  require_dims(*m.zeros, {m.n_groups, m.out_dim / per_word});
  if (m.g_idx != nullptr) require_dims(packed_part(source, name, "g_idx", {"I32"}), {m.in_dim});
  return m;
}

// Words [n_rows][n_cols] to [n_cols][n_rows].
void transpose_words(uint32_t* to, const uint32_t* from, int64_t n_rows, int64_t n_cols) {
  constexpr int64_t kTile = 16;  // words of a cache line
  for (int64_t row0 = 0; row0 < n_rows; row0 += kTile) {
    for (int64_t col0 = 0; col0 < n_cols; col0 += kTile) {
      for (int64_t row = row0; row < std::min(row0 + kTile, n_rows); ++row) {
        for (int64_t col = col0; col < std::min(col0 + kTile, n_cols); ++col) {
          to[col * n_rows + row] = from[row * n_cols + col];
        }
      }
    }
  }
}

// AWQ's words [in][out / 8], each of eight rows, to U4 [out, in].
void unpack_awq(uint8_t* to, const uint32_t* words, int64_t out_dim, int64_t in_dim) {
  constexpr int64_t kTileWords = 16, kTileBytes = 64;  // of a cache line
  const int64_t row_words = out_dim / 8, row_bytes = in_dim / 2;
  uint8_t tile[8 * kTileWords][kTileBytes];
  for (int64_t word0 = 0; word0 < row_words; word0 += kTileWords) {
    const int64_t n_words = std::min(kTileWords, row_words - word0);
    for (int64_t byte0 = 0; byte0 < row_bytes; byte0 += kTileBytes) {
      const int64_t n_bytes = std::min(kTileBytes, row_bytes - byte0);
      for (int64_t byte = 0; byte < n_bytes; ++byte) {
        const uint32_t* const even = words + 2 * (byte0 + byte) * row_words + word0;
        const uint32_t* const odd = even + row_words;
        for (int64_t word = 0; word < n_words; ++word) {
          // One byte for each of the word's places 0, 2, 4, 6 and 1, 3, 5, 7.
          const uint32_t places[2] = {(even[word] & 0x0f0f0f0f) | (odd[word] & 0x0f0f0f0f) << 4,
                                      (even[word] >> 4 & 0x0f0f0f0f) | (odd[word] & 0xf0f0f0f0)};
          for (size_t i = 0; i < 8; ++i) {
            const int place = GptqScheme::kAwqPlaces[i];
            tile[8 * word + int64_t(i)][byte] = uint8_t(places[place % 2] >> place / 2 * 8);
          }
        }
      }
      for (int64_t row = 0; row < 8 * n_words; ++row) {
        std::copy_n(tile[row], n_bytes, to + (8 * word0 + row) * row_bytes + byte0);
      }
    }
  }
}

// [in, out] and [groups, out] of a module, element by element.
class Elements {
 public:
  Elements(const SafetensorsSource& files, const Module& module, const GptqScheme& scheme)
      : module_(module),
        scheme_(scheme),
        codes_(read_part<uint32_t>(files, *module.codes)),
        zeros_(read_part<uint32_t>(files, *module.zeros)),
        scales_(read_float_part(files, *module.scales)) {}

  // All of them, as a QuantizedMatrix has them.
  void copy_codes(const HostTensor& to) const {
    void* const data = to.view().data;
    if (scheme_.codes_along_in) {
      transpose_words(static_cast<uint32_t*>(data), codes_.data(),
                      module_.in_dim / PackedWords::per_word(scheme_.bits), module_.out_dim);
    } else {
      unpack_awq(static_cast<uint8_t*>(data), codes_.data(), module_.out_dim, module_.in_dim);
    }
  }
  int code(int64_t row, int64_t column) const {  // codes along in
    const int64_t per_word = PackedWords::per_word(scheme_.bits);
    const int64_t word = column / per_word * module_.out_dim + row;
    return PackedWords{&codes_[static_cast<size_t>(word)], scheme_.bits}.at(column % per_word);
  }
  int zero(int64_t row, int64_t group) const {
    const int64_t per_word = PackedWords::per_word(scheme_.bits);
    const int64_t word = group * (module_.out_dim / per_word) + row / per_word;
    const int place = scheme_.places[static_cast<size_t>(row % per_word)];
    const int zero = PackedWords{&zeros_[static_cast<size_t>(word)], scheme_.bits}.at(place);
    return (zero + scheme_.zero_offset) & ((1 << scheme_.bits) - 1);
  }
  float scale(int64_t row, int64_t group) const {
    return scales_[static_cast<size_t>(group * module_.out_dim + row)];
  }

 private:
  const Module& module_;
  const GptqScheme& scheme_;
  std::vector<uint32_t> codes_, zeros_;
  std::vector<float> scales_;
};

// The group of each input, in range; empty where they are in order. Zeros alone say the latter too:
// some writers leave g_idx as it was made.
std::vector<int32_t> read_groups_out_of_order(const SafetensorsSource& files,
                                              const Module& module) {
  if (module.g_idx == nullptr) return {};
  auto groups = read_part<int32_t>(files, *module.g_idx);
  const int64_t group = module.in_dim / module.n_groups;
  bool in_order = true, all_zero = true;
  for (size_t i = 0; i < groups.size(); ++i) {
    MINFER_REQUIRE(Input, groups[i] >= 0 && groups[i] < module.n_groups, "tensor ",
                   shortened(module.name + ".g_idx"), ": element ", i, " is ", groups[i],
                   ", expected 0 to ", module.n_groups - 1);
    in_order &= groups[i] == static_cast<int64_t>(i) / group;
    all_zero &= groups[i] == 0;
  }
  if (in_order || all_zero) groups.clear();
  return groups;
}

void read_matrix(HostQuantizedMatrix& to, const SafetensorsSource& files, const Module& module,
                 const GptqScheme& scheme, const TensorEntry& entry) {
  const Elements elements(files, module, scheme);
  begin_matrix(
      to, entry, [&](int64_t row, int64_t group) { return elements.scale(row, group); },
      [&](int64_t row, int64_t group) { return elements.zero(row, group); });
  elements.copy_codes(to.codes);
}

// Columns whose groups are in any order have no QuantizedMatrix.
void read_dequantized(HostTensor& to, const SafetensorsSource& files, const Module& module,
                      const GptqScheme& scheme) {
  const std::vector<int32_t> groups = read_groups_out_of_order(files, module);
  MINFER_REQUIRE(System, !groups.empty(), "tensor ", shortened(module.name + ".g_idx"),
                 ": has changed since the file was opened");
  const Elements elements(files, module, scheme);
  to.reset(DType::F32, {module.out_dim, module.in_dim});
  float* out = to.as<float>();
  for (int64_t row = 0; row < module.out_dim; ++row) {
    for (int64_t column = 0; column < module.in_dim; ++column) {
      const int64_t group = groups[static_cast<size_t>(column)];
      const int code = elements.code(row, column) - elements.zero(row, group);
      *out++ = float(code) * elements.scale(row, group);
    }
  }
}

PackedWeight make_weight(const SafetensorsSource& source, const std::string& name,
                         const GptqScheme& scheme) {
  const Module module = find_module(source, name, scheme);
  PackedWeight weight;
  weight.parts = {module.codes, module.zeros, module.scales};
  if (module.g_idx != nullptr) weight.parts.push_back(module.g_idx);
  weight.entry = packed_entry(name, scheme.bits, module.out_dim, module.in_dim,
                              module.in_dim / module.n_groups, scheme.asymmetric, *module.scales,
                              weight.parts);
  if (!read_groups_out_of_order(source, module).empty()) {
    weight.entry.dtype = DType::F32;
    weight.entry.quant.reset();
    weight.read = [module, scheme](HostTensor& to, const SafetensorsSource& files) {
      read_dequantized(to, files, module, scheme);
    };
  } else {
    weight.read_quantized = [module, scheme, entry = weight.entry](HostQuantizedMatrix& to,
                                                                   const SafetensorsSource& files) {
      read_matrix(to, files, module, scheme, entry);
    };
  }
  return weight;
}

}  // namespace

PackedWeights find_gptq_weights(const SafetensorsSource& source, const GptqScheme& scheme) {
  PackedWeights packed;
  int64_t n_dequantized = 0;
  for (const Stored& stored : source.all_stored()) {
    const std::string& name = stored.record.name;
    if (!name.ends_with(kCodes)) continue;
    packed.weights.push_back(
        make_weight(source, name.substr(0, name.size() - kCodes.size()), scheme));
    n_dequantized += packed.weights.back().entry.quant ? 0 : 1;
  }
  packed.scheme =
      cat(scheme.name, " ",
          groups_text(scheme.bits, std::max(scheme.group, int64_t{0}), scheme.asymmetric));
  if (n_dequantized > 0) {
    packed.warnings.push_back(cat(n_dequantized,
                                  " tensors have columns in any order of groups (desc_act) and are "
                                  "held as F32"));
  }
  return packed;
}

}  // namespace minfer
