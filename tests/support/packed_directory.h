#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/model_files.h"

// Quantized Hugging Face directories with one small matrix "m.weight", byte by byte and without the
// code under test.
namespace minfer::test {

struct PackedDirectory {
  nlohmann::json quantization;  // quantization_config
  std::map<std::string, SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata = {};  // of the safetensors file

  std::string config_text() const {
    return nlohmann::json{{"model_type", "llama"}, {"quantization_config", quantization}}.dump();
  }
  std::string tensors_file() const { return safetensors_file(tensors, metadata); }
};

constexpr uint16_t kHalfOne = 0x3c00, kHalfTwo = 0x4000;  // f16

// [2, 8] of int4 in groups of 4: codes 0 to 7 and 15 to 8; scales 1, 2 and 2, 1.
inline PackedDirectory packed_compressed_tensors() {
  const nlohmann::json weights = {{"num_bits", 4},   {"type", "int"},       {"symmetric", true},
                                  {"group_size", 4}, {"strategy", "group"}, {"dynamic", false}};
  return {
      {{"quant_method", "compressed-tensors"},
       {"format", "pack-quantized"},
       {"ignore", nlohmann::json::array()},
       {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}},
      {{"m.weight_packed",
        {"I32", {2, 1}, bytes_of_values(uint32_t{0x76543210}, uint32_t{0x89abcdef})}},
       {"m.weight_scale", {"F16", {2, 2}, bytes_of_values(kHalfOne, kHalfTwo, kHalfTwo, kHalfOne)}},
       {"m.weight_shape", {"I64", {2}, bytes_of_values(int64_t{2}, int64_t{8})}}}};
}

// The same with [groups, out] zero-points 5 and 6 of the rows' signed codes.
inline PackedDirectory asymmetric_compressed_tensors() {
  PackedDirectory made = packed_compressed_tensors();
  made.quantization["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  made.tensors["m.weight_zero_point"] = {"I8", {2, 2}, std::string("\5\5\6\6")};
  return made;
}

// [8, 8] of int4 in groups of 4: code of (row, column) is the column; scale 1, zero-point 7 + 1.
inline PackedDirectory packed_gptq() {
  std::vector<uint32_t> codes(8, 0x76543210), zeros(2, 0x77777777);
  const std::vector<uint16_t> scales(16, kHalfOne);
  const std::vector<int32_t> g_idx = {0, 0, 0, 0, 1, 1, 1, 1};
  return {{{"quant_method", "gptq"},
           {"bits", 4},
           {"group_size", 4},
           {"sym", true},
           {"desc_act", false},
           {"checkpoint_format", "gptq"}},
          {{"m.qweight", {"I32", {1, 8}, bytes_of_vector(codes)}},
           {"m.qzeros", {"I32", {2, 1}, bytes_of_vector(zeros)}},
           {"m.scales", {"F16", {2, 8}, bytes_of_vector(scales)}},
           {"m.g_idx", {"I32", {8}, bytes_of_vector(g_idx)}}}};
}

// [8, 4] of int4 in one group: code of (row, column) is the row, in AWQ's order; zero-point 3.
inline PackedDirectory packed_awq() {
  const std::vector<uint32_t> codes(4, 0x75316420), zeros(1, 0x33333333);
  const std::vector<uint16_t> scales(8, kHalfTwo);
  return {{{"quant_method", "awq"},
           {"bits", 4},
           {"group_size", 4},
           {"zero_point", true},
           {"version", "gemm"}},
          {{"m.qweight", {"I32", {4, 1}, bytes_of_vector(codes)}},
           {"m.qzeros", {"I32", {1, 1}, bytes_of_vector(zeros)}},
           {"m.scales", {"F16", {1, 8}, bytes_of_vector(scales)}}}};
}

}  // namespace minfer::test
