#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loaders/tensor_source.h"

namespace minfer {

enum class Architecture { Llama, Gpt2 };
enum class RopeScaling { None, Linear, Llama3 };

// What a decoder-only model is, whatever file it came from. The two families share one forward
// pass; the flags below are where it branches.
struct ModelConfig {
  Architecture architecture = Architecture::Llama;
  int64_t dim = 0;      // residual width
  int64_t ffn_dim = 0;  // width inside the FFN
  int64_t n_layers = 0;
  int64_t n_heads = 0, n_kv_heads = 0;
  int64_t head_dim = 0;         // not always dim / n_heads
  int64_t vocab_size = 0;       // rows of the embedding
  int64_t trained_seq_len = 0;  // context of training
  float norm_eps = 0;
  bool tied_output = false;     // the output layer is the embedding
  bool attention_bias = false;  // on wq, wk, wv
  bool attention_out_bias = false;
  bool mlp_bias = false;

  // Llama: RMSNorm, SwiGLU, RoPE. GPT-2: LayerNorm, GELU, learned positions.
  GeluKind gelu = GeluKind::Tanh;
  double rope_theta = 10000;
  int64_t rotary_dim = 0;  // rotated part of a head, from its start
  RopeScaling rope_scaling = RopeScaling::None;
  double rope_factor = 1;
  double rope_low_freq_factor = 1, rope_high_freq_factor = 4;  // Llama3
  int64_t rope_original_seq_len = 8192;                        // Llama3
  std::vector<double> rope_freq_divisors;  // GGUF's rope_freqs.weight [rotary_dim / 2], or empty
  bool interleaved_rope = false;           // of the file: pairs (2i, 2i + 1); settled at load

  std::vector<std::string> warnings;  // what the tensors contradict, one line each

  int64_t q_dim() const { return n_heads * head_dim; }
  int64_t kv_dim() const { return n_kv_heads * head_dim; }
  bool is_llama() const { return architecture == Architecture::Llama; }
  std::string architecture_name() const { return is_llama() ? "llama" : "gpt2"; }
};

// From the headers, and from the few tensors that a flag is held against (settle_by_tensors).
// Everything that changes the mathematics is either understood or refused by name (Input, with the
// list of what is supported).
ModelConfig read_model_config(const TensorSource& source);

// Keys that minfer knows nothing about, for a warning. In a GGUF file only keys of its architecture
// count.
std::vector<std::string> unknown_config_keys(const TensorSource& source, const ModelConfig& config);

// Rotation frequencies in radians per position, with the scaling applied: [rotary_dim / 2].
std::vector<double> rope_frequencies(const ModelConfig& config);

}  // namespace minfer
