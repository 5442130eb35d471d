#include "models/hf_config_text.h"

#include <nlohmann/json.hpp>

#include "models/families/family.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

Json rope_scaling(const RopeSpec& rope) {
  switch (rope.scaling) {
    case RopeScaling::None:
      break;
    case RopeScaling::Linear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::Llama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_seq_len}};
  }
  return nullptr;
}

const char* torch_name(DType dtype) {
  return dtype == DType::BF16 ? "bfloat16" : dtype == DType::F16 ? "float16" : "float32";
}

}  // namespace

std::string hf_config_text(const ModelSpec& spec, DType dtype) {
  const Family& family = family_of(spec);
  const LayerSpec& layer = spec.layer(0);
  const RopeSpec& rope = spec.ropes.front();
  return Json({{"architectures", {family.hf_class}},
               {"model_type", family.hf_model_type},
               {"hidden_size", spec.dim},
               {"intermediate_size", layer.ffn_dim},
               {"num_hidden_layers", spec.n_layers()},
               {"num_attention_heads", layer.n_heads},
               {"num_key_value_heads", layer.n_kv_heads},
               {"head_dim", layer.head_dim},
               {"vocab_size", spec.vocab_size},
               {"max_position_embeddings", spec.trained_seq_len},
               {"rms_norm_eps", layer.norm_eps},
               {"rope_theta", rope.theta},
               {"rope_scaling", rope_scaling(rope)},
               {"tie_word_embeddings", spec.tied_output},
               {"attention_bias", layer.qkv_bias},
               {"mlp_bias", layer.ffn_bias},
               {"hidden_act", "silu"},
               {"torch_dtype", torch_name(dtype)}})
             .dump(2) +
         '\n';
}

}  // namespace minfer
