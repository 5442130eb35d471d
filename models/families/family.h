#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.h"
#include "models/weight_list.h"

// One file a family of models: what its files say, and by which names. Nothing else knows a family,
// but for how Hugging Face files store the experts of gpt-oss: loaders/gpt_oss_experts.cpp.
namespace minfer {

// The names that one kind of file gives to the modules of a model; each module has a ".weight" and
// may have a ".bias".
struct WeightNames {
  std::string_view prefix;  // of all but the output matrix; some files leave it out
  std::string_view layers;  // "layers.": behind the prefix, and in front of a block's number
  std::vector<std::pair<WeightRole, std::string_view>> modules;
  bool transposed = false;  // matrices of the blocks are stored [in, out]
  // Other forms of a block's mixture of experts, in which tensors [n_experts, rows, in] hold the
  // matrices of all experts. They name whole tensors, behind the block's number; roles that have
  // one name follow one another for each expert. Biases [n_experts, rows] have the same name with
  // ".bias" for ".weight", or "_bias" behind it. In `modules`, "*" is the number of the expert.
  std::vector<std::vector<std::pair<WeightRole, std::string_view>>> stacked = {};

  // Several roles may have one module: their rows follow one another in it. Internal where the
  // family has no such weight.
  std::string_view module(WeightRole role) const;
  bool has_module(WeightRole role) const;
};

// What the key attention.sliding_window of a GGUF file is: not there, the window of all layers, or
// that of some layers, which the family knows.
enum class GgufWindow { None, AllLayers, SomeLayers };

struct Family {
  std::string_view name;               // "qwen2": ModelSpec::family
  std::string_view hf_class;           // "Qwen2ForCausalLM"; empty: no such files
  std::string_view hf_model_type;      // "qwen2", for files that have no class
  std::string_view gguf_architecture;  // "qwen2"; empty: no such files
  ModelSpec (*read_hf)(const Metadata& config);
  // Null where another family, which stands before this one in the list, reads its files.
  ModelSpec (*read_gguf)(const TensorSource& source, const Metadata& keys);
  WeightNames hf_names = {}, gguf_names = {};
  // A key that only this family's files have, and not as 0, of those of its GGUF architecture; it
  // then stands before the others in the list. Empty: none.
  std::string_view gguf_key = {};
  // Adds what only this family's files say: to config.json, and to a GGUF file, whose keys begin
  // with `prefix`. Null: nothing.
  void (*add_hf_keys)(Metadata& config, const ModelSpec& spec) = nullptr;
  void (*add_gguf_keys)(Metadata& keys, const std::string& prefix, const ModelSpec& spec) = nullptr;
  bool hf_partial_rotation = false;  // add_hf_keys says how much of a head rotates
  // Added to the weights of norms in Hugging Face files.
  float hf_norm_offset = 0;
  // Rows (2 i, 2 i + 1) of a head of queries or keys are a rotary pair, in Hugging Face files and
  // in GGUF files.
  bool hf_rotary_pairs = false, gguf_rotary_pairs = false;
  // In Hugging Face files the rows of the one tensor of queries, keys and values are those of one
  // head after the other: its query, its key and its value.
  bool hf_qkv_by_head = false;
  GgufWindow gguf_window = GgufWindow::None;
  // Whether linear layers have biases goes by the tensors: by what is there and not zero.
  bool biases_by_tensors = false;
  // YaRN, whose ramp begins and ends at whole rotary pairs unless config.json says `truncate`
  // false, is so in GGUF files, which cannot say it.
  bool gguf_truncates_yarn = true;
  // The key of config.json with the number of experts; empty for families without.
  std::string_view hf_experts_key = {};

  bool has_pairs(KeyStyle style) const {
    return style == KeyStyle::HuggingFace ? hf_rotary_pairs : gguf_rotary_pairs;
  }
};

// Every family, in the order in which their names are looked up.
std::vector<const Family*> all_families();

// The family that config.json's class or model type names, the one that general.architecture names,
// and the one of a spec. The first two throw Input with the list of what is supported.
const Family& family_of_hf(const Metadata& config);
const Family& family_of_gguf(const Metadata& metadata);
const Family& family_of(const ModelSpec& spec);

// The names in Llama's files. Other families add some to them, replace some, or neither.
WeightNames llama_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});
WeightNames llama_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});

}  // namespace minfer
