#include "tools/quantize_output.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "kernels/base/error.h"

namespace minfer {
namespace {

// The types that llama.cpp and others quantize to, as one may write them behind the input.
bool is_type_name(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::array<std::string_view, 16> kNames = {
      "F16",  "F32",  "BF16", "FP16", "FP32",  "FP8",   "FP4",       "INT4",
      "INT8", "INT2", "INT3", "NF4",  "NVFP4", "MXFP4", "MXFP4_MOE", "COPY"};
  if (std::ranges::count(kNames, text) > 0) return true;
  const size_t q = text.starts_with("IQ") || text.starts_with("TQ") ? 1 : 0;  // Q4_K_M, IQ2_XXS
  return text.size() > q + 1 && text.size() <= q + 7 && text[q] == 'Q' &&
         std::isdigit(static_cast<unsigned char>(text[q + 1])) != 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

// A float type of 16 bits has 16, Q4_1 has 5, Q5_0 has 5.5.
bool has_4_bits(DType dtype) {
  const DTypeInfo& type = info(dtype);
  return dtype != DType::U8 && 8 * type.block_bytes <= 5 * type.block_elements;
}

}  // namespace

OutputKind OutputForm::kind() const {
  if (!gguf.empty()) return OutputKind::Gguf;
  return single_file ? OutputKind::Safetensors : OutputKind::Directory;
}

OutputForm form_of_output(const std::string& output, OutputForm by_options) {
  MINFER_REQUIRE(Usage, !is_type_name(output), shortened(output),
                 " is a type, not the name of an output; --type int4|int8 or --gguf "
                 "f16|q8_0|q4_0 says what is written");
  const std::string name = output.substr(0, output.find_last_not_of('/') + 1);
  const bool is_gguf = name.ends_with(".gguf"), is_safetensors = name.ends_with(".safetensors");
  MINFER_REQUIRE(Usage, !is_gguf || !by_options.single_file, shortened(output, 200),
                 ": --single-file writes a .safetensors file");
  MINFER_REQUIRE(Usage, !is_safetensors || by_options.gguf.empty(), shortened(output, 200),
                 ": --gguf writes a .gguf file");
  if (is_gguf && by_options.gguf.empty()) by_options.gguf = "f16";
  if (is_safetensors) by_options.single_file = true;
  MINFER_REQUIRE(Usage, by_options.kind() == OutputKind::Directory || !output.ends_with('/'),
                 shortened(output, 200), ": the output is a file, the name that of a directory");
  return by_options;
}

void require_not_quantized_twice(const QuantizePlan& plan) {
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool becomes_quantized = tensor.output.quant || !is_float(tensor.output.dtype);
    MINFER_REQUIRE(Usage, !becomes_quantized || !has_4_bits(tensor.source_type), "tensor ",
                   tensor.output.name, " has 4 bits already (", tensor.source_type,
                   "), and would lose more; --allow-requantize does it all the same");
  }
}

}  // namespace minfer
