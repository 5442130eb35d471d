#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "loaders/tensor_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/load_everything.h"
#include "tests/support/packed_directory.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_of.h"

// Quantized checkpoints as they are published: settings in other places and under other names, and
// tensors that decide where settings say something else.
namespace minfer {
namespace {

using namespace test;
using nlohmann::json;
using Row = std::vector<float>;
using Indices = std::vector<int32_t>;

const json kNoSettings = json::object();

std::unique_ptr<TensorSource> open_published(const TempDir& dir, const PackedDirectory& packed,
                                             const json& config = kNoSettings) {
  json whole = {{"model_type", "llama"}};
  if (config.empty()) whole["quantization_config"] = packed.quantization;
  whole.update(config);
  dir.write("config.json", whole.dump());
  dir.write("model.safetensors", packed.tensors_file());
  return open_source(dir.path());
}

Row published_row(const TensorSource& source, int64_t row, const std::string& name = "m.weight") {
  const TensorEntry& entry = tensor_of(source, name);
  const HostTensor values =
      entry.quant ? dequantized(source.read_quantized(entry).view()) : source.read(entry);
  const float* begin = values.as<const float>() + row * entry.shape.last();
  return {begin, begin + entry.shape.last()};
}

Row published_row(const PackedDirectory& packed, int64_t row) {
  const TempDir dir;
  return published_row(*open_published(dir, packed), row);
}

void expect_refusal(const PackedDirectory& packed, std::string_view message) {
  const TempDir dir;
  expect_error(ErrorKind::Input, message, [&] { open_published(dir, packed); });
}

// [8, 8] of two groups with scales 1 and 2, so that the group of a column shows.
PackedDirectory gptq_of_two_scales(const Indices& g_idx) {
  PackedDirectory packed = packed_gptq();
  packed.tensors["m.g_idx"].data = bytes_of_vector(g_idx);
  packed.tensors["m.scales"].data = bytes_of_vector(std::vector<uint16_t>(8, kHalfOne)) +
                                    bytes_of_vector(std::vector<uint16_t>(8, kHalfTwo));
  return packed;
}

TEST(GptqOrder, GroupsInOrderArePackedWhateverTheFlagSays) {
  const Indices orders[] = {{0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 0, 0}};
  for (const Indices& order : orders) {
    for (const bool desc_act : {false, true}) {
      PackedDirectory packed = gptq_of_two_scales(order);
      packed.quantization["desc_act"] = desc_act;
      const TempDir dir;
      const auto source = open_published(dir, packed);
      EXPECT_EQ(tensor_of(*source, "m.weight").dtype, DType::U4);
      EXPECT_EQ(published_row(*source, 3), (Row{-8, -7, -6, -5, -8, -6, -4, -2}));
      EXPECT_TRUE(source->warnings.empty());
    }
  }
  PackedDirectory without = gptq_of_two_scales({});
  without.tensors.erase("m.g_idx");
  without.quantization["desc_act"] = true;
  EXPECT_EQ(published_row(without, 3), (Row{-8, -7, -6, -5, -8, -6, -4, -2}));
}

TEST(GptqOrder, GroupsOutOfOrderAreDequantizedWhateverTheFlagSays) {
  for (const bool desc_act : {false, true}) {
    PackedDirectory packed = gptq_of_two_scales({1, 0, 1, 0, 0, 1, 0, 1});
    packed.quantization["desc_act"] = desc_act;
    // A second module in order stays packed.
    for (const char* part : {"qweight", "qzeros", "scales"}) {
      packed.tensors[cat("n.", part)] = packed.tensors[cat("m.", part)];
    }
    const TempDir dir;
    const auto source = open_published(dir, packed);
    EXPECT_EQ(tensor_of(*source, "m.weight").dtype, DType::F32);
    EXPECT_EQ(tensor_of(*source, "n.weight").dtype, DType::U4);
    EXPECT_EQ(published_row(*source, 0), (Row{-16, -7, -12, -5, -4, -6, -2, -2}));
    ASSERT_EQ(source->warnings.size(), 1u);
    EXPECT_TRUE(source->warnings[0].starts_with("1 tensors have columns in any order"));
  }
}

TEST(QuantizationSettings, AreFoundWhereTheirWriterPutThem) {
  struct Place {
    const char* file;  // null: config.json
    PackedDirectory packed;
    json settings;
  };
  json plain_gptq = packed_gptq().quantization;
  plain_gptq.erase("quant_method");
  const Place places[] = {
      {nullptr,
       packed_compressed_tensors(),
       {{"compression_config", packed_compressed_tensors().quantization}}},
      {"quantize_config.json", packed_gptq(), plain_gptq},
      {"quant_config.json",
       packed_awq(),
       {{"w_bit", 4}, {"q_group_size", 4}, {"zero_point", true}, {"version", "GEMM"}}},
      {"quantize_config.json", packed_awq(), packed_awq().quantization},
  };
  for (const Place& place : places) {
    const TempDir dir;
    if (place.file != nullptr) dir.write(place.file, place.settings.dump());
    const auto source = open_published(
        dir, place.packed,
        place.file == nullptr ? place.settings : json{{"quantization_config", nullptr}});
    EXPECT_EQ(tensor_of(*source, "m.weight").dtype, DType::U4);
    EXPECT_EQ(published_row(*source, 1), published_row(place.packed, 1)) << place.settings;
  }
}

TEST(QuantizationSettings, OfAFileBesideAreNamedAndDoNotOverride) {
  const TempDir dir;
  dir.write("quantize_config.json", R"({"bits": 3})");
  EXPECT_EQ(published_row(*open_published(dir, packed_gptq()), 3),
            (Row{-8, -7, -6, -5, -4, -3, -2, -1}));
  const auto without = [&] {
    open_published(dir, packed_gptq(), {{"quantization_config", nullptr}});
  };
  expect_error(ErrorKind::Input, "quantize_config.json: key quantization_config.bits is 3",
               without);
  dir.write("quantize_config.json", R"({"bits": )");
  expect_error(ErrorKind::Input, "quantize_config.json: malformed JSON", without);
  // A file left over beside weights that are not packed says nothing.
  PackedDirectory floats;
  floats.tensors["n.weight"] = {"F16", {1}, bytes_of_values(kHalfTwo)};
  EXPECT_EQ(open_published(dir, floats, {{"use_cache", true}})->format, "safetensors");
}

TEST(QuantizationSettings, MissingMethodIsThatOfItsPackage) {
  PackedDirectory packed = packed_compressed_tensors();
  packed.quantization.erase("quant_method");
  EXPECT_EQ(published_row(packed, 0), (Row{-8, -7, -6, -5, -8, -6, -4, -2}));
}

TEST(WeightFiles, MayHaveOtherNames) {
  const PackedDirectory packed = packed_gptq();
  const json index = {{"weight_map",
                       {{"m.qweight", "x.safetensors"},
                        {"m.qzeros", "x.safetensors"},
                        {"m.scales", "x.safetensors"},
                        {"m.g_idx", "x.safetensors"}}}};
  const std::vector<std::vector<std::string>> sets = {
      {"gptq_model-4bit-128g.safetensors"},
      {"awq_model_w4_g128.safetensors"},
      {"model.fp16.safetensors", "adapter_model.safetensors"},
      {"x.safetensors", "y.safetensors", "gptq_model-4bit-128g.safetensors.index.json"}};
  for (const auto& names : sets) {
    const TempDir dir;
    dir.write("config.json", packed.config_text());
    for (const std::string& name : names) {
      const bool is_index = name.ends_with(".json"), is_other = name[0] == 'y' || name[0] == 'a';
      dir.write(name, is_index                       ? index.dump()
                      : is_other && names.size() > 1 ? safetensors_file("{}", "")
                                                     : packed.tensors_file());
    }
    EXPECT_EQ(published_row(*open_source(dir.path()), 3), (Row{-8, -7, -6, -5, -4, -3, -2, -1}))
        << names[0];
  }
}

TEST(WeightFiles, ShardsWithoutAnIndexAreAWholeSet) {
  const auto open_shards = [](const std::vector<std::string>& names) {
    const TempDir dir;
    dir.write("config.json", R"({"model_type": "llama"})");
    for (size_t i = 0; i < names.size(); ++i) {
      dir.write(names[i],
                safetensors_file({{cat("t", i), {"F32", {1}, std::string(4, '\0')}}}, {}));
    }
    return open_source(dir.path())->tensors.size();
  };
  EXPECT_EQ(open_shards({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}),
            2u);
  EXPECT_EQ(open_shards({"w-00001-of-00001.safetensors"}), 1u);
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"model-00001-of-00003.safetensors",
                                 "model-00002-of-00003.safetensors"},
        {"a-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"},
        {"model-00001-of-00002.safetensors", "model-00001-of-00003.safetensors"},
        {"one.safetensors", "two.safetensors"}}) {
    expect_error(ErrorKind::Input, "files that could be meant: " + names[0],
                 [&] { open_shards(names); });
  }
  expect_error(ErrorKind::Input, "has neither model.safetensors nor", [&] { open_shards({}); });
  expect_error(ErrorKind::Input, "has neither model.safetensors nor",
               [&] { open_shards({"adapter_model.safetensors"}); });
}

// Zero-points of GPTQ's two versions, by each name that a file may have for them.
TEST(QuantizationMethods, HaveSeveralNames) {
  struct Name {
    json settings;
    float first;  // of a row: the code 0 less the zero-point, stored as 7
  };
  const Name names[] = {
      {{{"quant_method", "gptqmodel"}}, -8},
      {{{"checkpoint_format", nullptr}, {"format", "gptq_v2"}}, -7},
      {{{"quant_method", "auto-round"}, {"packing_format", "auto_round:auto_gptq"}}, -8},
      {{{"quant_method", "auto_round"}, {"packing_format", "auto_gptq"}}, -8},
      {{{"quant_method", "auto-round"}, {"packing_format", "auto_round"}}, -7},
      {{{"quant_method", "intel/auto-round"}, {"packing_format", "auto_round:gptqmodel"}}, -7},
      {{{"quant_method", "auto-round"},
        {"data_type", "int"},
        {"extra_config", {{"lm_head", {{"bits", 16}}}}}},
       -8}};
  for (const Name& name : names) {
    PackedDirectory packed = packed_gptq();
    packed.quantization["sym"] = false;
    packed.quantization.merge_patch(name.settings);
    EXPECT_EQ(published_row(packed, 2)[0], name.first) << name.settings;
  }
  PackedDirectory awq = packed_awq();
  awq.quantization = {{"quant_method", "auto-round"},
                      {"bits", 4},
                      {"group_size", 4},
                      {"packing_format", "auto_round:auto_awq"}};
  EXPECT_EQ(published_row(awq, 5), published_row(packed_awq(), 5));
}

TEST(QuantizationMethods, UnknownSettingsAreNamed) {
  PackedDirectory packed = packed_gptq();
  for (const char* known : {"damp_percent", "static_groups", "use_exllama"}) {
    packed.quantization[known] = true;
  }
  packed.quantization["meta"] = {{"quantizer", {"gptqmodel:5"}}};
  const TempDir dir;
  EXPECT_TRUE(open_published(dir, packed)->warnings.empty());
  packed.quantization["novel"] = {{"kind", 1}, {"size", 2}};
  EXPECT_EQ(open_published(dir, packed)->warnings,
            std::vector<std::string>{"key quantization_config.novel is not known to minfer"});
}

TEST(QuantizationMethods, WhatChangesTheMathematicsIsRefused) {
  struct Case {
    json settings;
    const char* message;
  };
  const Case cases[] = {
      {{{"quant_method", "auto-round"}, {"packing_format", "auto_round:llm_compressor"}},
       "packing_format is \"auto_round:llm_compressor\": not supported"},
      {{{"quant_method", "auto-round"}, {"extra_config", {{"q_proj", {{"bits", 8}}}}}},
       "extra_config.q_proj.bits is 8: other settings of single modules are not supported"},
      {{{"quant_method", "auto-round"}, {"act_bits", 8}}, "act_bits is 8: not supported"},
      {{{"quant_method", "auto-round"}, {"data_type", "nv_fp"}}, "data_type is \"nv_fp\""},
      {{{"rotation", "hadamard"}}, "rotation is there: not supported"},
      {{{"adapter", {{"name", "lora"}}}}, "adapter is there: not supported"},
      {{{"pack_dtype", "int64"}}, "pack_dtype is \"int64\": not supported"},
      {{{"quant_method", "fp8"}}, "quant_method is \"fp8\": not supported"}};
  for (const Case& c : cases) {
    PackedDirectory packed = packed_gptq();
    packed.quantization.merge_patch(c.settings);
    expect_refusal(packed, c.message);
  }
}

// int8 [2, 4] by row, its inputs quantized on the way.
PackedDirectory packed_w8a8() {
  PackedDirectory packed = packed_compressed_tensors();
  packed.quantization["format"] = "int-quantized";
  packed.quantization["config_groups"]["group_0"]["weights"] = {
      {"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}};
  packed.quantization["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8},
                                                                          {"type", "int"},
                                                                          {"symmetric", true},
                                                                          {"strategy", "token"},
                                                                          {"dynamic", true}};
  packed.tensors = {{"m.weight", {"I8", {2, 4}, std::string("\1\2\3\4\xff\xfe\x80\x7f", 8)}},
                    {"m.weight_scale", {"F16", {2, 1}, bytes_of_values(kHalfOne, kHalfTwo)}}};
  return packed;
}

TEST(W8A8, LoadsAsInt8AndSaysHowItsInputsAreMeant) {
  for (const bool symmetric : {true, false}) {
    PackedDirectory packed = packed_w8a8();
    packed.quantization["config_groups"]["group_0"]["input_activations"]["symmetric"] = symmetric;
    const TempDir dir;
    const auto source = open_published(dir, packed);
    EXPECT_EQ(type_text(tensor_of(*source, "m.weight")), "int8 row");
    EXPECT_EQ(published_row(*source, 0), (Row{1, 2, 3, 4}));
    EXPECT_EQ(published_row(*source, 1), (Row{-2, -4, -256, 254}));
    EXPECT_EQ(source->input_activations, symmetric ? "int8" : "int8-asym");
  }
  PackedDirectory old_name = packed_w8a8();
  old_name.quantization["format"] = "naive-quantized";
  EXPECT_EQ(published_row(old_name, 0), (Row{1, 2, 3, 4}));
  const TempDir dir;
  EXPECT_EQ(open_published(dir, packed_compressed_tensors())->input_activations, "");
}

TEST(W8A8, OtherInputsAreRefusedByName) {
  struct Case {
    const char* key;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"dynamic", false, "input_activations.dynamic is false: static scales of activations"},
      {"dynamic", nullptr, "input_activations.dynamic is false: static scales of activations"},
      {"num_bits", 4, "input_activations.num_bits is 4: not supported (supported: 8)"},
      {"type", "float", "input_activations.type is \"float\": not supported (supported: int)"},
      {"strategy", "tensor", "input_activations.strategy is \"tensor\""}};
  for (const Case& c : cases) {
    PackedDirectory packed = packed_w8a8();
    packed.quantization["config_groups"]["group_0"]["input_activations"][c.key] = c.value;
    expect_refusal(packed, c.message);
  }
  PackedDirectory with_scale = packed_w8a8();
  with_scale.tensors["m.input_scale"] = {"F32", {1}, std::string(4, '\0')};
  expect_refusal(with_scale,
                 "tensor m.input_scale: static scales of activations are not supported");
}

TEST(CompressedTensors, StatusSaysNothingOfWhatIsPacked) {
  for (const json& status : {json("frozen"), json("compressed"), json(nullptr)}) {
    PackedDirectory packed = packed_compressed_tensors();
    packed.quantization["quantization_status"] = status;
    EXPECT_EQ(published_row(packed, 0), (Row{-8, -7, -6, -5, -8, -6, -4, -2})) << status;
  }
  PackedDirectory floats = packed_compressed_tensors();
  floats.tensors = {{"m.weight", {"F16", {1, 4}, std::string(8, '\0')}},
                    {"m.weight_scale", {"F16", {1, 1}, bytes_of_values(kHalfOne)}}};
  floats.quantization["quantization_status"] = "frozen";
  expect_refusal(floats,
                 "tensor m.weight: has dtype F16 beside m.weight_scale: weights that are "
                 "yet to be quantized are not supported");
}

TEST(CompressedTensors, TensorsThatSayNothingAreNoObstacle) {
  // Zero-points of symmetric weights, as signed bytes and packed.
  PackedDirectory zeros = packed_compressed_tensors();
  zeros.tensors["m.weight_zero_point"] = {"I8", {2, 2}, std::string(4, '\0')};
  PackedDirectory packed_zeros = packed_compressed_tensors();
  packed_zeros.tensors["m.weight_zero_point"] = {
      "I32", {1, 2}, bytes_of_values(uint32_t{0x88}, uint32_t{0x88})};
  PackedDirectory in_order = packed_compressed_tensors();
  in_order.tensors["m.weight_g_idx"] = {
      "I32", {8}, bytes_of_vector(Indices{0, 0, 0, 0, 1, 1, 1, 1})};
  in_order.quantization["config_groups"]["group_0"]["weights"]["actorder"] = "group";
  PackedDirectory unset = packed_compressed_tensors();
  unset.tensors["m.weight_g_idx"] = {"I32", {8}, bytes_of_vector(Indices(8, -1))};
  for (const PackedDirectory& packed : {zeros, packed_zeros, in_order, unset}) {
    const TempDir dir;
    const auto source = open_published(dir, packed);
    EXPECT_EQ(type_text(tensor_of(*source, "m.weight")), "int4 g4");
    EXPECT_EQ(published_row(*source, 0), (Row{-8, -7, -6, -5, -8, -6, -4, -2}));
    EXPECT_TRUE(source->unusable.empty());
  }
}

}  // namespace
}  // namespace minfer
