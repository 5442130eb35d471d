#include "tests/support/sample_models.h"

#include "tests/support/model_files.h"
#include "tests/support/packed_directory.h"

namespace minfer::test {
namespace {

std::string gguf_bytes(bool split) {
  GgufBuilder file;
  file.pair("general.alignment", kU32, bytes_of_values(uint32_t{32}))
      .pair("llama.rope.freq_base", kF32, bytes_of_values(1e4f))
      .pair("flag", kBool, "\1")
      .texts("tokenizer.ggml.tokens", {"<s>", "a", ""})
      .array<float>("tokenizer.ggml.scores", kF32, {0, -1, -2});
  if (split) {
    file.pair("split.no", kU16, bytes_of_values(uint16_t{0}))
        .pair("split.count", kU16, bytes_of_values(uint16_t{2}))
        .pair("split.tensors.count", kI32, bytes_of_values(int32_t{3}));
  }
  file.tensor({"a", {3, 2}, 0, bytes_of_vector(counting_floats(6))})
      .tensor({"q", {32, 2}, 8, std::string(68, '\1')});
  return file.build();
}

std::string second_gguf_part() {
  GgufBuilder file;
  file.pair("split.no", kU16, bytes_of_values(uint16_t{1}))
      .pair("split.count", kU16, bytes_of_values(uint16_t{2}))
      .pair("split.tensors.count", kI32, bytes_of_values(int32_t{3}))
      .tensor({"b", {1}, 0, bytes_of_values(1.0f)});
  return file.build();
}

}  // namespace

std::vector<SampleModel> sample_models() {
  const std::string config = R"({"model_type": "llama", "hidden_size": 64, "tie": true,
 "rope_scaling": {"type": "linear", "factor": 2.0}, "eos": [1, 2], "eps": 1e-05})";
  const std::string shard_header =
      R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3],
 "data_offsets": [0, 24]}, "i": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}})";
  const std::string shard = safetensors_file(shard_header, std::string(32, '\0'));
  const std::string index =
      R"({"metadata": {"total_size": 32}, "weight_map": {"a": "m-1.safetensors", "i": "m-1.safetensors"}})";

  const PackedDirectory packed = packed_compressed_tensors(), gptq = packed_gptq();
  const std::string packed_shard = packed.tensors_file(), gptq_shard = gptq.tensors_file();

  PackedDirectory single = packed;
  const std::string inside = packed.config_text();
  single.tensors["minfer.config"] = {"U8", {std::ssize(inside)}, inside};
  const std::string single_file = single.tensors_file();

  Llama2cSizes untied;
  untied.tied = false;
  const std::string index_name = "model.safetensors.index.json";
  return {
      {"Gguf", "m.gguf", gguf_bytes(false), 400},
      {"GgufSplit",
       "m-00001-of-00002.gguf",
       gguf_bytes(true),
       512,
       {{"m-00002-of-00002.gguf", second_gguf_part()}}},
      {"Safetensors", "m.safetensors", shard, 8 + shard_header.size()},
      {"HfShard", "model.safetensors", shard, 8 + shard_header.size(), {{"config.json", config}}},
      {"HfConfig", "config.json", config, config.size(), {{"model.safetensors", shard}}},
      {"HfIndex",
       index_name,
       index,
       index.size(),
       {{"config.json", config}, {"m-1.safetensors", shard}}},
      {"HfPacked",
       "model.safetensors",
       packed_shard,
       packed_shard.size(),
       {{"config.json", packed.config_text()}}},
      {"HfGptq",
       "model.safetensors",
       gptq_shard,
       gptq_shard.size(),
       {{"config.json", gptq.config_text()}}},
      {"HfPackedConfig",
       "config.json",
       packed.config_text(),
       packed.config_text().size(),
       {{"model.safetensors", packed_shard}}},
      {"SingleFile", "m.safetensors", single_file, single_file.size()},
      {"Llama2cLegacy", "m.bin", llama2c_legacy_file(untied), 28},
      {"Llama2cV1", "m.bin", llama2c_v1_file(untied), 256},
      {"Llama2cV2", "m.bin", llama2c_v2_file(untied, 8), 256},
  };
}

}  // namespace minfer::test
