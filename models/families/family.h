#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.h"
#include "models/weight_list.h"

// One file a family of models: what its files say, and by which names. Nothing else knows a family.
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
  // one name follow one another for each expert. In `modules`, "*" is the number of the expert.
  std::vector<std::vector<std::pair<WeightRole, std::string_view>>> stacked = {};

  // Several roles may have one module: their rows follow one another in it. Internal where the
  // family has no such weight.
  std::string_view module(WeightRole role) const;
  bool has_module(WeightRole role) const;
};

// Whether the key attention.sliding_window of a GGUF file is the window of all layers.
enum class GgufWindow { None, AllLayers };

struct Family {
  std::string_view name;               // "qwen2": ModelSpec::family
  std::string_view hf_class;           // "Qwen2ForCausalLM"; empty: no such files
  std::string_view hf_model_type;      // "qwen2", for files that have no class
  std::string_view gguf_architecture;  // "qwen2"; empty: no such files
  ModelSpec (*read_hf)(const Metadata& config);
  // Null where another family, which stands before this one in the list, reads its files.
  ModelSpec (*read_gguf)(const TensorSource& source, const Metadata& keys);
  WeightNames hf_names = {}, gguf_names = {};
  // Rows (2 i, 2 i + 1) of a head of queries or keys are a rotary pair in GGUF files.
  bool gguf_rotary_pairs = false;
  GgufWindow gguf_window = GgufWindow::None;
  // Whether linear layers have biases goes by the tensors: by what is there and not zero.
  bool biases_by_tensors = false;
  // The key of config.json with the number of experts; empty for families without. Of the families
  // of one GGUF architecture, those with it read the files with experts.
  std::string_view experts_key = {};
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
