#include <cmath>
#include <nlohmann/json.hpp>

#include "loaders/hf_config.h"
#include "loaders/strict_json.h"
#include "models/config_reader.h"
#include "tests/fuzz/parser_targets.h"

namespace minfer::test {
namespace {

using nlohmann::json;

std::string random_json(Random& random, size_t depth) {
  const auto blank = [&] { return std::string(one_in(random, 8) ? " " : ""); };
  switch (below(random, depth == 0 ? 5 : 7)) {
    case 0:
      return any_of(random, std::vector<std::string>{"null", "true", "false", "NaN", "-Infinity"});
    case 1:
      return std::to_string(static_cast<int64_t>(random()) >> below(random, 64));
    case 2:
      return cat(below(random, 100), ".", below(random, 100), "e",
                 static_cast<int>(below(random, 800)) - 400);
    case 3:
    case 4:
      return json(random_text(random, {}))
          .dump(-1, ' ', one_in(random, 2), json::error_handler_t::replace);
    default: {
      const bool is_object = one_in(random, 2);
      std::string text = is_object ? "{" : "[";
      for (size_t n = below(random, 6); n > 0; --n) {
        if (is_object) text += cat("\"", "abcdef"[below(random, 6)], "\"", blank(), ":");
        text += random_json(random, depth - 1) + blank() + (n > 1 ? "," : "");
      }
      return text + (is_object ? "}" : "]");
    }
  }
}

// What both take is the same value; what the library takes, Python's rules take too, unless it is
// deeper than is accepted.
void compare_with_library(const std::string& text) {
  std::vector<std::string> warnings;
  const json theirs = json::parse(text, nullptr, false);
  json ours;
  try {
    ours = parse_python_json(text, "f", warnings);
  } catch (const Error& e) {
    const bool has_nul = text.find('\0') != text.npos;
    if (!theirs.is_discarded() && !has_nul &&
        std::string_view(e.what()).find("levels") == std::string_view::npos)
      throw Error(ErrorKind::Internal, cat("refused what the library takes: ", e.what()));
    throw;
  }
  if (warnings.empty() && theirs != ours)
    throw Error(ErrorKind::Internal, theirs.is_discarded() ? "taken" : "another value");
  parse_strict_json(text);
}

constexpr const char* kConfigs[] = {
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 128,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
"high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "torch_dtype": "bfloat16",
"eos_token_id": [1, 2], "bos_token_id": 1, "attention_bias": false, "mlp_bias": false})",
    R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64,
"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
"vocab_size": 100, "max_position_embeddings": 64, "rope_theta": 10000.0, "use_sliding_window": true,
"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"], "rope_scaling": {
"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
"beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false}})",
    R"({"architectures": ["SmolLM3ForCausalLM"], "hidden_size": 64,
"intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
"vocab_size": 100, "max_position_embeddings": 64, "no_rope_layers": [1, 0, 1],
"no_rope_layer_interval": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0,
"rope_theta": 5000.0}})",
    R"({"architectures": ["Phi3ForCausalLM"], "hidden_size": 32,
"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
"max_position_embeddings": 256, "original_max_position_embeddings": 64, "sliding_window": 16,
"partial_rotary_factor": 0.5, "rope_scaling": {"type": "su", "attention_factor": 1.1,
"short_factor": [1.0, 1.5], "long_factor": [1, 4]}})"};

// What is taken has finite angles, for short texts and for long ones.
void read_config(const std::string& text) {
  const ModelSpec spec = read_hf_spec(parse_hf_config(text));
  for (const RopeSpec& rope : spec.ropes) {
    for (const int64_t seq_len : {int64_t{1}, spec.trained_seq_len}) {
      bool is_finite = std::isfinite(rope.table_scale);
      for (const double x : rope_frequencies(rope, seq_len)) is_finite &= std::isfinite(x);
      if (!is_finite) throw Error(ErrorKind::Internal, "angles that are not finite");
    }
  }
}

}  // namespace

void add_json_targets(std::vector<FuzzTarget>& targets) {
  targets.push_back({"Json",
                     [](Random& random) {
                       std::string text = random_json(random, 4);
                       return one_in(random, 3) ? text : mutated(std::move(text), random);
                     },
                     compare_with_library});
  targets.push_back({"ModelSpec",
                     [](Random& random) { return mutated_json(any_of(random, kConfigs), random); },
                     read_config});
}

}  // namespace minfer::test
