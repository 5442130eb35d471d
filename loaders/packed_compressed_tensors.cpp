#include <algorithm>

#include "loaders/packed_words.h"

// Source: the compressed-tensors package (compressors pack_quantized and naive_quantized), version
// 0.20.
namespace minfer {
namespace {

using Stored = PackedWeight::Stored;

constexpr const char* kRoot = "quantization_config";
constexpr std::string_view kPacked = ".weight_packed", kWeightSuffix = ".weight";

// One of config_groups: how weights may be stored.
struct PackedScheme {
  int bits = 0;
  int64_t group = 0;  // 0: one scale a row
  bool asymmetric = false;
  std::string input_activations;  // "int8", "int8-asym"; empty: floats

  int64_t columns(int64_t in_dim) const { return group == 0 ? in_dim : group; }
};

// Inputs of 8-bit integers whose scale is found on the way, one a token: what minfer can do too.
std::string read_input_activations(const Metadata& metadata, const std::string& at) {
  if (names_below(metadata, at).empty()) return "";
  const std::string key = at + ".";
  require_supported(key + "type", metadata.text_or(key + "type", "int"), {"int"});
  const int64_t bits = metadata.integer_or(key + "num_bits", 8, 1, 64);
  MINFER_REQUIRE(Input, bits == 8, "key ", key, "num_bits is ", bits,
                 ": not supported (supported: 8)");
  const bool is_dynamic = metadata.has(key + "dynamic") && metadata.boolean(key + "dynamic");
  MINFER_REQUIRE(Input, is_dynamic, "key ", key,
                 "dynamic is false: static scales of activations are not supported (supported: "
                 "true)");
  require_supported(key + "strategy", metadata.text_or(key + "strategy", "token"), {"token"});
  return metadata.boolean_or(key + "symmetric", true) ? "int8" : "int8-asym";
}

PackedScheme read_scheme(const Metadata& metadata, const std::string& at) {
  const std::string weights = at + ".weights.";
  require_absent(metadata, at + ".output_activations");
  require_supported(at + ".format", metadata.text_or(at + ".format", "pack-quantized"),
                    {"pack-quantized", "int-quantized", "naive-quantized"});
  require_supported(weights + "type", metadata.text_or(weights + "type", "int"), {"int"});
  MINFER_REQUIRE(Input, !metadata.boolean_or(weights + "dynamic", false), "key ", weights,
                 "dynamic is true: not supported (supported: false)");
  // "group" and "dynamic" come with a weight_g_idx, which says by itself whether columns are out of
  // order; the others were of use to the quantizer alone.
  require_supported(weights + "actorder", metadata.text_or(weights + "actorder", "static"),
                    {"static", "weight", "group", "dynamic"});
  PackedScheme scheme;
  scheme.bits = static_cast<int>(metadata.integer(weights + "num_bits", 1, 16));
  MINFER_REQUIRE(Input, scheme.bits == 4 || scheme.bits == 8, "key ", weights, "num_bits is ",
                 scheme.bits, ": not supported (supported: 4, 8)");
  const int64_t group_size = metadata.integer_or(weights + "group_size", -1, -1, 1 << 20);
  const std::string strategy =
      metadata.text_or(weights + "strategy", group_size > 0 ? "group" : "channel");
  require_supported(weights + "strategy", strategy, {"group", "channel"});
  if (strategy == "group") {
    MINFER_REQUIRE(Input, group_size > 0, "key ", weights, "group_size is ", group_size,
                   ", expected more than 0");
    scheme.group = group_size;
  }
  scheme.asymmetric = !metadata.boolean_or(weights + "symmetric", true);
  scheme.input_activations = read_input_activations(metadata, at + ".input_activations");
  return scheme;
}

std::vector<PackedScheme> read_schemes(const Metadata& metadata) {
  const std::string root = kRoot;
  require_supported(root + ".format", metadata.text_or(root + ".format", "pack-quantized"),
                    {"pack-quantized", "int-quantized", "naive-quantized", "mixed-precision"});
  // What is stored says whether it is packed; these are the states in which scales are final.
  require_supported(root + ".quantization_status",
                    metadata.text_or(root + ".quantization_status", "compressed"),
                    {"compressed", "frozen"});
  require_absent(metadata, root + ".kv_cache_scheme");
  require_absent(metadata, root + ".transform_config");
  require_absent(metadata, root + ".moe_sparsity_config");
  require_supported(root + ".sparsity_config.format",
                    metadata.text_or(root + ".sparsity_config.format", "dense"), {"dense"});
  std::vector<PackedScheme> schemes;
  for (const std::string& group : names_below(metadata, root + ".config_groups")) {
    schemes.push_back(read_scheme(metadata, cat(root, ".config_groups.", group)));
  }
  MINFER_REQUIRE(Input, !schemes.empty(), "key ", root, ".config_groups is missing");
  return schemes;
}

// config_groups name their layers by class or by pattern; what is stored says by itself which
// scheme it follows, and has to follow one.
void require_scheme(const std::string& module, const std::vector<PackedScheme>& schemes, int bits,
                    int64_t group, int64_t in_dim, bool has_zeros) {
  std::string known;
  bool needs_zeros = false;
  for (const PackedScheme& scheme : schemes) {
    const bool fits = scheme.bits == bits && scheme.columns(in_dim) == group;
    if (fits && (has_zeros || !scheme.asymmetric)) return;
    needs_zeros |= fits;
    known +=
        cat(known.empty() ? "" : ", ", groups_text(scheme.bits, scheme.group, scheme.asymmetric));
  }
  MINFER_REQUIRE(Input, !needs_zeros, "tensor ", shortened(module + ".weight_zero_point"),
                 ": is missing");
  throw Error(ErrorKind::Input, cat("tensor ", shortened(module + ".weight"), ": has ",
                                    groups_text(bits, group == in_dim ? 0 : group, has_zeros),
                                    ", config_groups have ", known));
}

// weight_zero_point: packed along the rows, or one signed byte each in older files.
struct ZeroPoints {
  const Stored* stored = nullptr;  // null: symmetric
  int bits = 0;

  static ZeroPoints find(const SafetensorsSource& source, const std::string& module, int bits,
                         int64_t out_dim, int64_t n_groups) {
    ZeroPoints zeros{source.find_stored(module + ".weight_zero_point"), bits};
    if (zeros.stored == nullptr) return zeros;
    packed_part(source, module, "weight_zero_point", {"I32", "I8"});
    const int64_t n_words = ceil_div(out_dim, PackedWords::per_word(bits));
    require_dims(*zeros.stored, {zeros.is_packed() ? n_words : out_dim, n_groups});
    return zeros;
  }

  bool is_packed() const { return stored->record.type_name == "I32"; }

  // As symmetric weights have them, which some writers store too.
  bool all_in_the_middle(const SafetensorsSource& source, int64_t out_dim, int64_t n_groups) const {
    return stored == nullptr ||
           std::ranges::all_of(read(source, out_dim, n_groups),
                               [this](uint8_t zero) { return zero == 1 << (bits - 1); });
  }

  // [out_dim, n_groups], of the unsigned codes.
  std::vector<uint8_t> read(const SafetensorsSource& source, int64_t out_dim,
                            int64_t n_groups) const {
    const int middle = 1 << (bits - 1);
    std::vector<uint8_t> values(static_cast<size_t>(out_dim * n_groups), uint8_t(middle));
    if (stored == nullptr) return values;
    if (is_packed()) {
      const auto words = read_part<uint32_t>(source, *stored);
      const int64_t per_word = PackedWords::per_word(bits);
      for (int64_t i = 0; i < out_dim * n_groups; ++i) {
        const int64_t row = i / n_groups, g = i % n_groups;
        const auto word = static_cast<size_t>(row / per_word * n_groups + g);
        values[static_cast<size_t>(i)] =
            uint8_t(PackedWords{&words[word], bits}.at(row % per_word));
      }
      return values;
    }
    const auto bytes = read_part<int8_t>(source, *stored);
    for (size_t i = 0; i < bytes.size(); ++i) {
      MINFER_REQUIRE(Input, bytes[i] >= -middle && bytes[i] < middle, "zero-point ", i, " is ",
                     int{bytes[i]}, ", expected ", -middle, " to ", middle - 1);
      values[i] = uint8_t(bytes[i] + middle);
    }
    return values;
  }
};

// The codes of an entry, which words of 32 bits hold row by row as U4 and U8 have them; the last
// word of a row may be filled up.
void read_words(const HostTensor& to, const SafetensorsSource& files, const Stored& stored) {
  const Tensor& codes = to.view();
  const auto out_dim = static_cast<size_t>(codes.shape[0]);
  const size_t row_bytes = static_cast<size_t>(codes.n_bytes()) / out_dim;
  const size_t stored_row_bytes = stored.n_bytes() / out_dim;
  if (row_bytes == stored_row_bytes) return files.read_stored(stored, codes.data);
  const auto bytes = read_part<uint8_t>(files, stored);
  for (size_t row = 0; row < out_dim; ++row) {
    std::copy_n(&bytes[row * stored_row_bytes], row_bytes,
                static_cast<uint8_t*>(codes.data) + row * row_bytes);
  }
}

// The codes of an entry, stored as signed bytes.
void read_signed_bytes(const HostTensor& to, const SafetensorsSource& files, const Stored& stored) {
  auto* const codes = static_cast<uint8_t*>(to.view().data);
  files.read_stored(stored, codes);
  const int64_t n = to.view().n_elements();
  for (int64_t i = 0; i < n; ++i) codes[i] ^= 0x80;  // adds 128
}

// The shape that a packed matrix has, which its words alone do not say.
struct Dims {
  int64_t out, in;
};
Dims read_weight_shape(const SafetensorsSource& source, const std::string& module) {
  const Stored& stored = packed_part(source, module, "weight_shape", {"I64", "I32"});
  require_dims(stored, {2});
  std::vector<int64_t> dims;
  if (stored.record.type_name == "I64") {
    dims = read_part<int64_t>(source, stored);
  } else {
    for (const int32_t dim : read_part<int32_t>(source, stored)) dims.push_back(dim);
  }
  for (const int64_t dim : dims) {
    MINFER_REQUIRE(Input, dim > 0 && dim <= 1 << 24, "tensor ", shortened(stored.record.name),
                   ": has ", dim, ", expected 1 to ", 1 << 24);
  }
  return {dims[0], dims[1]};
}

// weight_g_idx where it says nothing: the groups in order, or -1 everywhere, as it was made. Null
// where there is none; throws Input for any other order.
const Stored* find_idle_g_idx(const SafetensorsSource& source, const std::string& module,
                              int64_t in_dim, int64_t group) {
  if (source.find_stored(module + ".weight_g_idx") == nullptr) return nullptr;
  const Stored& stored = packed_part(source, module, "weight_g_idx", {"I32"});
  require_dims(stored, {in_dim});
  const auto groups = read_part<int32_t>(source, stored);
  const bool unset = std::ranges::all_of(groups, [](int32_t g) { return g == -1; });
  for (size_t i = 0; i < groups.size() && !unset; ++i) {
    MINFER_REQUIRE(Input, groups[i] == static_cast<int64_t>(i) / group, "tensor ",
                   shortened(stored.record.name), ": element ", i, " is ", groups[i],
                   ", columns out of order are not supported (supported: ",
                   static_cast<int64_t>(i) / group, ")");
  }
  return &stored;
}

PackedWeight make_weight(const SafetensorsSource& source, const std::string& module,
                         const std::vector<PackedScheme>& schemes, const Stored& codes, int bits,
                         Dims dims, const Stored* shape) {
  const Stored& scales = packed_part(source, module, "weight_scale", {});
  const std::vector<int64_t>& scale_dims = scales.record.dims;
  const int64_t n_groups = scale_dims.size() == 2 ? scale_dims[1] : 1;
  require_dims(scales, {dims.out, n_groups});
  const int64_t group = group_of(scales, n_groups, dims.in);
  const Stored* const g_idx = find_idle_g_idx(source, module, dims.in, group);
  const ZeroPoints zeros = ZeroPoints::find(source, module, bits, dims.out, n_groups);
  require_scheme(module, schemes, bits, group, dims.in, zeros.stored != nullptr);
  const bool asymmetric = !zeros.all_in_the_middle(source, dims.out, n_groups);

  PackedWeight weight;
  weight.parts = {&codes, &scales};
  if (shape != nullptr) weight.parts.push_back(shape);
  for (const Stored* part : {zeros.stored, g_idx}) {
    if (part != nullptr) weight.parts.push_back(part);
  }
  weight.entry =
      packed_entry(module, bits, dims.out, dims.in, group, asymmetric, scales, weight.parts);
  const bool is_packed = shape != nullptr;
  weight.read_quantized = [=, entry = weight.entry, &codes, &scales](
                              HostQuantizedMatrix& to, const SafetensorsSource& files) {
    if (!asymmetric && scales.record.dtype == entry.quant->scales) {
      to.reset(entry.dtype, entry.quant->scales, dims.out, dims.in, group, false);
      files.read_stored(scales, to.scales.view().data);
    } else {
      const std::vector<float> scale = read_float_part(files, scales);
      const std::vector<uint8_t> zero = zeros.read(files, dims.out, n_groups);
      const auto at = [&](int64_t row, int64_t g) {
        return static_cast<size_t>(row * n_groups + g);
      };
      begin_matrix(
          to, entry, [&](int64_t row, int64_t g) { return scale[at(row, g)]; },
          [&](int64_t row, int64_t g) { return int{zero[at(row, g)]}; });
    }
    is_packed ? read_words(to.codes, files, codes) : read_signed_bytes(to.codes, files, codes);
  };
  return weight;
}

// `module`.weight_packed [out, words of a row]; the shape and the words tell the bits.
PackedWeight make_packed(const SafetensorsSource& source, const std::string& module,
                         const std::vector<PackedScheme>& schemes) {
  const Stored& codes = packed_part(source, module, "weight_packed", {"I32"});
  const Dims dims = read_weight_shape(source, module);
  const auto fits = [&](const PackedScheme& scheme) {
    const int64_t n_words = ceil_div(dims.in, PackedWords::per_word(scheme.bits));
    return codes.record.dims == std::vector<int64_t>{dims.out, n_words};
  };
  const auto scheme = std::ranges::find_if(schemes, fits);
  if (scheme == schemes.end()) {
    require_dims(codes, {dims.out, ceil_div(dims.in, PackedWords::per_word(schemes.front().bits))});
  }
  const Stored* shape = source.find_stored(module + ".weight_shape");
  return make_weight(source, module, schemes, codes, scheme->bits, dims, shape);
}

// `module`.weight [out, in], one signed byte each.
PackedWeight make_bytes(const SafetensorsSource& source, const std::string& module,
                        const std::vector<PackedScheme>& schemes) {
  const Stored& codes = packed_part(source, module, "weight", {"I8"});
  const std::vector<int64_t>& dims = codes.record.dims;
  MINFER_REQUIRE(Input, dims.size() == 2 && dims[0] > 0 && dims[1] > 0, "tensor ",
                 shortened(codes.record.name), ": has ", dims.size(),
                 " dims, expected 2 of more than 0");
  return make_weight(source, module, schemes, codes, 8, {dims[0], dims[1]}, nullptr);
}

// Scales beside weights that are still floats, or scales of activations: what the format has, but
// minfer does not compute with.
void refuse_other_scales(const SafetensorsSource& source) {
  constexpr std::string_view kScale = ".weight_scale";
  for (const Stored& stored : source.all_stored()) {
    const std::string& name = stored.record.name;
    for (const std::string_view suffix : {".input_scale", ".output_scale", ".input_global_scale"}) {
      MINFER_REQUIRE(Input, !name.ends_with(suffix), "tensor ", shortened(name),
                     ": static scales of activations are not supported");
    }
    if (!name.ends_with(kScale)) continue;
    const std::string weight = name.substr(0, name.size() - kScale.size()) + ".weight";
    const Stored* const floats = source.find_stored(weight);
    MINFER_REQUIRE(Input, floats == nullptr || !floats->record.dtype, "tensor ", shortened(weight),
                   ": has dtype ", floats->record.type_name, " beside ", shortened(name),
                   ": weights that are yet to be quantized are not supported (supported: packed)");
  }
}

}  // namespace

PackedWeights find_compressed_tensors(const SafetensorsSource& source) {
  const std::vector<PackedScheme> schemes = read_schemes(source.metadata);
  refuse_other_scales(source);
  PackedWeights packed;
  for (const PackedScheme& scheme : schemes) {
    if (!scheme.input_activations.empty()) packed.input_activations = scheme.input_activations;
  }
  for (const Stored& stored : source.all_stored()) {
    const std::string& name = stored.record.name;
    if (name.ends_with(kPacked)) {
      packed.weights.push_back(
          make_packed(source, name.substr(0, name.size() - kPacked.size()), schemes));
    } else if (name.ends_with(kWeightSuffix) && stored.record.type_name == "I8") {
      packed.weights.push_back(
          make_bytes(source, name.substr(0, name.size() - kWeightSuffix.size()), schemes));
    }
  }
  packed.scheme = "compressed-tensors " + common_scheme(packed.weights);
  return packed;
}

}  // namespace minfer
