#include "models/hf_config_text.h"

#include <nlohmann/json.hpp>

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

Json rope_scaling(const ModelConfig& config) {
  switch (config.rope_scaling) {
    case RopeScaling::None:
      break;
    case RopeScaling::Linear:
      return {{"rope_type", "linear"}, {"factor", config.rope_factor}};
    case RopeScaling::Llama3:
      return {{"rope_type", "llama3"},
              {"factor", config.rope_factor},
              {"low_freq_factor", config.rope_low_freq_factor},
              {"high_freq_factor", config.rope_high_freq_factor},
              {"original_max_position_embeddings", config.rope_original_seq_len}};
  }
  return nullptr;
}

const char* torch_name(DType dtype) {
  return dtype == DType::BF16 ? "bfloat16" : dtype == DType::F16 ? "float16" : "float32";
}

}  // namespace

std::string hf_config_text(const ModelConfig& config, DType dtype) {
  MINFER_CHECK(config.is_llama(), "config.json of another architecture");
  return Json({{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
               {"hidden_size", config.dim},
               {"intermediate_size", config.ffn_dim},
               {"num_hidden_layers", config.n_layers},
               {"num_attention_heads", config.n_heads},
               {"num_key_value_heads", config.n_kv_heads},
               {"head_dim", config.head_dim},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.trained_seq_len},
               {"rms_norm_eps", config.norm_eps},
               {"rope_theta", config.rope_theta},
               {"rope_scaling", rope_scaling(config)},
               {"tie_word_embeddings", config.tied_output},
               {"attention_bias", config.attention_bias},
               {"mlp_bias", config.mlp_bias},
               {"hidden_act", "silu"},
               {"torch_dtype", torch_name(dtype)}})
             .dump(2) +
         '\n';
}

}  // namespace minfer
