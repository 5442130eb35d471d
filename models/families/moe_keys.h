#pragma once

#include "models/families/family.h"

// Readers of what mixtures of experts are said by; private to models/families.
namespace minfer {

// The keys of the number of experts, in config.json, with more of the family's own, and in a GGUF
// file: own_keys of families with experts.
std::vector<std::string_view> hf_expert_keys(std::vector<std::string_view> more = {});
constexpr std::string_view kGgufExpertsKey = "expert_count";

// What a family's class in transformers assumes for absent keys.
struct HfMoeDefaults {
  int64_t n_experts = 0, n_active_experts = 0;
  int64_t ffn_dim = 0;         // of moe_intermediate_size; 0: experts have intermediate_size
  int64_t shared_ffn_dim = 0;  // of shared_expert_intermediate_size; 0: there is no such key
  bool renormalizes = false;   // norm_topk_prob
  int64_t n_dense = 0;         // blocks without experts before all others
};

// Gives the blocks experts: all, or those that decoder_sparse_step and mlp_only_layers leave, where
// the experts have a size of their own.
void set_hf_experts(ModelSpec& spec, const Metadata& config, const HfMoeDefaults& defaults);

// What a GGUF architecture implies.
struct GgufMoeForm {
  bool renormalizes = false;      // unless a key says otherwise
  bool has_gated_shared = false;  // a shared expert with a gate
  RouterScore score = RouterScore::Softmax;
};

// The same from a GGUF file, for all blocks but the leading dense ones.
void set_gguf_experts(ModelSpec& spec, const Metadata& keys, std::string_view architecture,
                      const GgufMoeForm& form);

// The names of router and experts in most families' files, and more of the family's own.
WeightNames moe_hf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});
WeightNames moe_gguf_names(std::vector<std::pair<WeightRole, std::string_view>> more = {});

}  // namespace minfer
