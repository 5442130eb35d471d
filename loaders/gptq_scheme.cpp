#include "loaders/gptq_scheme.h"

#include <algorithm>
#include <initializer_list>

// Source: the AutoGPTQ, GPTQModel, AutoAWQ and AutoRound packages.
namespace minfer {
namespace {

const std::string kSettings = "quantization_config.";

// The first of two names of a key that is there; the newer one where none is.
std::string key_of(const Metadata& metadata, const char* newer, const char* older) {
  return kSettings +
         (metadata.has(kSettings + newer) || !metadata.has(kSettings + older) ? newer : older);
}

GptqScheme read_common(const Metadata& metadata, const std::string& name,
                       std::initializer_list<int64_t> supported_bits) {
  GptqScheme scheme;
  scheme.name = name;
  const std::string bits_key = key_of(metadata, "bits", "w_bit");
  const int64_t bits = metadata.integer(bits_key, 1, 16);
  MINFER_REQUIRE(Input, std::ranges::find(supported_bits, bits) != supported_bits.end(), "key ",
                 bits_key, " is ", bits, ": not supported by ", name,
                 " files here (supported: ", supported_bits.size() == 1 ? "4" : "4, 8", ")");
  scheme.bits = static_cast<int>(bits);
  const std::string group_key = key_of(metadata, "group_size", "q_group_size");
  scheme.group = metadata.integer_or(group_key, 128, -1, 1 << 20);
  MINFER_REQUIRE(Input, scheme.group != 0, "key ", group_key, " is 0, expected -1 or more than 0");
  // What would change the mathematics of whole modules.
  for (const char* key : {"rotation", "adapter"}) require_absent(metadata, kSettings + key);
  const std::string word = metadata.text_or(kSettings + "pack_dtype", "int32");
  require_supported(kSettings + "pack_dtype", word, {"int32"});
  return scheme;
}

void use_awq_packing(GptqScheme& scheme) {
  scheme.codes_along_in = false;
  scheme.places = GptqScheme::kAwqPlaces;
}

// Settings of single modules: those that are said not to be quantized are stored as floats, which
// the files show by themselves.
void refuse_other_modules(const Metadata& metadata) {
  const std::string root = kSettings + "extra_config";
  for (const std::string& module : names_below(metadata, root)) {
    const std::string at = cat(root, ".", module);
    for (auto it = metadata.all().lower_bound(at + ".");
         it != metadata.all().end() && it->first.starts_with(at + "."); ++it) {
      const bool is_bits = it->first.ends_with(".bits") || it->first.ends_with(".act_bits");
      MINFER_REQUIRE(Input, !is_bits || metadata.integer(it->first, 1, 64) >= 16, "key ", it->first,
                     " is ", metadata.as_text(it->first),
                     ": other settings of single modules are not supported (supported: 16, not "
                     "quantized)");
    }
  }
}

}  // namespace

GptqScheme read_gptq_scheme(const Metadata& metadata) {
  GptqScheme scheme = read_common(metadata, "GPTQ", {4, 8});
  require_absent(metadata, kSettings + "dynamic");  // settings of single modules
  MINFER_REQUIRE(Input, !metadata.boolean_or(kSettings + "is_marlin_format", false), "key ",
                 kSettings, "is_marlin_format is true: not supported");
  const std::string key = key_of(metadata, "checkpoint_format", "format");
  const std::string format = metadata.text_or(key, "gptq");
  require_supported(key, format, {"gptq", "gptq_v2"});
  scheme.zero_offset = format == "gptq" ? 1 : 0;
  scheme.asymmetric = !metadata.boolean_or(kSettings + "sym", true);
  return scheme;
}

GptqScheme read_awq_scheme(const Metadata& metadata) {
  GptqScheme scheme = read_common(metadata, "AWQ", {4});
  const std::string key = key_of(metadata, "version", "checkpoint_format");
  require_supported(key, metadata.text_or(key, "gemm"), {"gemm", "GEMM"});
  MINFER_REQUIRE(Input, metadata.boolean_or(kSettings + "zero_point", true), "key ", kSettings,
                 "zero_point is false: not supported (supported: true)");
  use_awq_packing(scheme);
  return scheme;
}

GptqScheme read_auto_round_scheme(const Metadata& metadata) {
  const std::string key = key_of(metadata, "packing_format", "backend");
  const std::string packing = metadata.text_or(key, "auto_round:auto_gptq");
  require_supported(key, packing,
                    {"auto_round", "auto_round:auto_gptq", "auto_round:gptq",
                     "auto_round:gptqmodel", "auto_round:auto_awq", "auto_gptq", "auto_awq"});
  const bool is_awq = packing.ends_with("awq");
  GptqScheme scheme =
      is_awq ? read_common(metadata, "AutoRound", {4}) : read_common(metadata, "AutoRound", {4, 8});
  require_supported(kSettings + "data_type", metadata.text_or(kSettings + "data_type", "int"),
                    {"int"});
  for (const char* act : {"act_bits", "super_bits"}) {
    MINFER_REQUIRE(Input, metadata.integer_or(kSettings + act, 16, 1, 64) >= 16, "key ", kSettings,
                   act, " is ", metadata.as_text(kSettings + act),
                   ": not supported (supported: 16)");
  }
  refuse_other_modules(metadata);
  if (is_awq) {
    use_awq_packing(scheme);
  } else {
    scheme.zero_offset = packing.ends_with("gptq") ? 1 : 0;
    scheme.asymmetric = !metadata.boolean_or(kSettings + "sym", true);
  }
  return scheme;
}

}  // namespace minfer
