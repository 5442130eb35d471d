#include <algorithm>
#include <array>

#include "loaders/packed_words.h"

// GPTQ and AWQ checkpoints: both store a matrix as [in, out], its levels and zero-points packed.
// Source: the AutoGPTQ, GPTQModel and AutoAWQ packages.
namespace minfer {
namespace {

using Stored = PackedWeight::Stored;

constexpr std::string_view kLevels = ".qweight";

// Which column of a word's eight is in each of its places, and the reverse: AWQ interleaves.
using Places = std::array<int, 8>;
constexpr Places kInOrder = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr Places kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};  // of column i of a word

struct GptqScheme {
  std::string name;
  int bits = 4;
  int64_t group = -1;  // -1: one scale a row
  bool asymmetric = true;
  bool levels_along_in = true;  // a word of qweight holds rows of [in, out]; else columns
  Places places = kInOrder;     // of the columns of a word
  // GPTQ's first files hold the zero-point less one. A zero-point of 0 wraps around in them.
  int zero_offset = 0;
  bool any_order = false;  // g_idx may give each input its own group
};

// The tensors of a module, and the sizes that follow from them.
struct Module {
  std::string name;
  const Stored *levels, *zeros, *scales, *g_idx;  // g_idx may be null
  int64_t out_dim, in_dim, n_groups;
};

Module find_module(const SafetensorsSource& source, const std::string& name,
                   const GptqScheme& scheme) {
  Module m;
  m.name = name;
  m.levels = &packed_part(source, name, "qweight", {"I32"});
  m.zeros = &packed_part(source, name, "qzeros", {"I32"});
  m.scales = &packed_part(source, name, "scales", {});
  m.g_idx = source.find_stored(name + ".g_idx");
  const std::vector<int64_t>& words = m.levels->record.dims;
  MINFER_REQUIRE(Input, words.size() == 2 && words[0] > 0 && words[1] > 0, "tensor ",
                 shortened(m.levels->record.name), ": has ", words.size(),
                 " dims, expected 2 of more than 0");
  const int64_t per_word = PackedWords::per_word(scheme.bits);
  m.in_dim = scheme.levels_along_in ? checked_mul(words[0], per_word) : words[0];
  m.out_dim = scheme.levels_along_in ? words[1] : checked_mul(words[1], per_word);
  MINFER_REQUIRE(Input, m.out_dim % per_word == 0, "tensor ", shortened(m.levels->record.name),
                 ": has ", m.out_dim, " columns, expected a multiple of ", per_word);
  const int64_t group = scheme.group < 0 ? m.in_dim : scheme.group;
  MINFER_REQUIRE(Input, m.in_dim % group == 0, "tensor ", shortened(m.levels->record.name),
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
            const int place = kAwqPlaces[i];
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
        levels_(read_part<uint32_t>(files, *module.levels)),
        zeros_(read_part<uint32_t>(files, *module.zeros)),
        scales_(read_float_part(files, *module.scales)) {}

  // All of them, as a QuantizedMatrix has them.
  void copy_levels(const HostTensor& to) const {
    void* const data = to.view().data;
    if (scheme_.levels_along_in) {
      transpose_words(static_cast<uint32_t*>(data), levels_.data(),
                      module_.in_dim / PackedWords::per_word(scheme_.bits), module_.out_dim);
    } else {
      unpack_awq(static_cast<uint8_t*>(data), levels_.data(), module_.out_dim, module_.in_dim);
    }
  }
  int level(int64_t row, int64_t column) const {  // levels along in
    const int64_t per_word = PackedWords::per_word(scheme_.bits);
    const int64_t word = column / per_word * module_.out_dim + row;
    return PackedWords{&levels_[static_cast<size_t>(word)], scheme_.bits}.at(column % per_word);
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
  std::vector<uint32_t> levels_, zeros_;
  std::vector<float> scales_;
};

// The group of each input; empty where the file does not say.
std::vector<int32_t> read_group_of_input(const SafetensorsSource& files, const Module& module) {
  if (module.g_idx == nullptr) return {};
  auto groups = read_part<int32_t>(files, *module.g_idx);
  for (size_t i = 0; i < groups.size(); ++i) {
    MINFER_REQUIRE(Input, groups[i] >= 0 && groups[i] < module.n_groups, "g_idx[", i, "] is ",
                   groups[i], ", expected 0 to ", module.n_groups - 1);
  }
  return groups;
}

void read_matrix(HostQuantizedMatrix& to, const SafetensorsSource& files, const Module& module,
                 const GptqScheme& scheme, const TensorEntry& entry) {
  const std::vector<int32_t> groups = read_group_of_input(files, module);
  for (size_t i = 0; i < groups.size(); ++i) {
    const int64_t expected = int64_t(i) / entry.quant->group;
    MINFER_REQUIRE(Input, groups[i] == expected, "g_idx[", i, "] is ", groups[i], ", expected ",
                   expected, " without desc_act");
  }
  const Elements elements(files, module, scheme);
  begin_matrix(
      to, entry, [&](int64_t row, int64_t group) { return elements.scale(row, group); },
      [&](int64_t row, int64_t group) { return elements.zero(row, group); });
  elements.copy_levels(to.levels);
}

// Columns whose groups are in any order have no QuantizedMatrix.
void read_dequantized(HostTensor& to, const SafetensorsSource& files, const Module& module,
                      const GptqScheme& scheme) {
  std::vector<int32_t> groups = read_group_of_input(files, module);
  for (int64_t i = static_cast<int64_t>(groups.size()); i < module.in_dim; ++i) {
    groups.push_back(static_cast<int32_t>(i / (module.in_dim / module.n_groups)));
  }
  const Elements elements(files, module, scheme);
  to.reset(DType::F32, {module.out_dim, module.in_dim});
  float* out = to.as<float>();
  for (int64_t row = 0; row < module.out_dim; ++row) {
    for (int64_t column = 0; column < module.in_dim; ++column) {
      const int64_t group = groups[static_cast<size_t>(column)];
      const int level = elements.level(row, column) - elements.zero(row, group);
      *out++ = float(level) * elements.scale(row, group);
    }
  }
}

PackedWeight make_weight(const SafetensorsSource& source, const std::string& name,
                         const GptqScheme& scheme) {
  const Module module = find_module(source, name, scheme);
  PackedWeight weight;
  weight.parts = {module.levels, module.zeros, module.scales};
  if (module.g_idx != nullptr) weight.parts.push_back(module.g_idx);
  weight.entry = packed_entry(name, scheme.bits, module.out_dim, module.in_dim,
                              module.in_dim / module.n_groups, scheme.asymmetric, *module.scales,
                              weight.parts);
  if (scheme.any_order) {
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

PackedWeights find_weights(const SafetensorsSource& source, const GptqScheme& scheme) {
  PackedWeights packed;
  for (const Stored& stored : source.all_stored()) {
    const std::string& name = stored.record.name;
    if (!name.ends_with(kLevels)) continue;
    packed.weights.push_back(
        make_weight(source, name.substr(0, name.size() - kLevels.size()), scheme));
  }
  packed.scheme =
      cat(scheme.name, " ",
          groups_text(scheme.bits, std::max(scheme.group, int64_t{0}), scheme.asymmetric));
  if (scheme.any_order) {
    packed.warnings.push_back(cat(packed.weights.size(),
                                  " tensors have columns in any order of groups (desc_act) and are "
                                  "held as F32"));
  }
  return packed;
}

GptqScheme read_common(const Metadata& metadata, const std::string& name) {
  GptqScheme scheme;
  scheme.name = name;
  scheme.bits = static_cast<int>(metadata.integer("quantization_config.bits", 1, 16));
  scheme.group = metadata.integer_or("quantization_config.group_size", 128, -1, 1 << 20);
  MINFER_REQUIRE(Input, scheme.group != 0,
                 "key quantization_config.group_size is 0, expected -1 or more than 0");
  return scheme;
}

void require_bits(const GptqScheme& scheme, std::initializer_list<int> supported) {
  MINFER_REQUIRE(Input, std::ranges::find(supported, scheme.bits) != supported.end(),
                 "key quantization_config.bits is ", scheme.bits, ": not supported by ",
                 scheme.name, " files here (supported: ", supported.size() == 1 ? "4" : "4, 8",
                 ")");
}

}  // namespace

PackedWeights find_gptq(const SafetensorsSource& source) {
  const Metadata& metadata = source.metadata;
  const std::string root = "quantization_config.";
  GptqScheme scheme = read_common(metadata, "GPTQ");
  require_bits(scheme, {4, 8});
  require_absent(metadata, root + "dynamic");  // settings of single modules
  MINFER_REQUIRE(Input, !metadata.boolean_or(root + "is_marlin_format", false), "key ", root,
                 "is_marlin_format is true: not supported");
  const std::string key = root + "checkpoint_format";
  const std::string format = metadata.text_or(key, "gptq");
  require_supported(key, format, {"gptq", "gptq_v2"});
  scheme.zero_offset = format == "gptq" ? 1 : 0;
  scheme.asymmetric = !metadata.boolean_or(root + "sym", true);
  scheme.any_order = metadata.boolean_or(root + "desc_act", false);
  return find_weights(source, scheme);
}

PackedWeights find_awq(const SafetensorsSource& source) {
  const Metadata& metadata = source.metadata;
  const std::string root = "quantization_config.";
  GptqScheme scheme = read_common(metadata, "AWQ");
  require_bits(scheme, {4});
  std::string version = metadata.text_or(root + "version", "gemm");
  require_supported(root + "version", version, {"gemm", "GEMM"});
  MINFER_REQUIRE(Input, metadata.boolean_or(root + "zero_point", true), "key ", root,
                 "zero_point is false: not supported (supported: true)");
  scheme.levels_along_in = false;
  scheme.places = kAwqPlaces;
  return find_weights(source, scheme);
}

}  // namespace minfer
