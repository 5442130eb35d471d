#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"

// Shared by the families' readers of both key vocabularies; private to models/.
namespace minfer {

// What one vocabulary calls the sizes; an empty name is a size that it does not have.
struct SizeKeys {
  std::string dim, ffn_dim, n_layers, n_heads, n_kv_heads, head_dim, trained_seq_len, norm_eps;
};

// Values for keys that may be absent; 0 stands for "required".
struct SizeDefaults {
  int64_t n_kv_heads = 0;  // 0: n_heads
  int64_t head_dim = 0;    // 0: dim / n_heads
  int64_t ffn_dim = 0;
  int64_t trained_seq_len = 0;
  double norm_eps = 0;
};

// A spec with every size but vocab_size, each in its range and in keeping with the others, and
// layers that are alike.
ModelSpec read_sizes(const Metadata& metadata, const SizeKeys& keys, const SizeDefaults& defaults);

int64_t read_vocab_size(const Metadata& metadata, const std::string& key);
double read_rope_theta(const Metadata& metadata, const std::string& key);
double read_rope_factor(const Metadata& metadata, const std::string& key);

// A key that changes the mathematics in a way that minfer does not have: refused, unless its value
// says what holds without it.
struct NeutralKey {
  std::string_view key;
  double neutral;  // false is 0, true is 1
};
void refuse_unless_neutral(const Metadata& metadata, const std::string& prefix,
                           const std::vector<NeutralKey>& keys);

// Positions that a query sees, its own included. 0, all of them, where the key is absent or says a
// window that no position can look past.
int64_t read_window(const Metadata& metadata, const std::string& key, int64_t trained_seq_len);
// The same, refused where it is not 0.
void refuse_sliding_window(const Metadata& metadata, const std::string& key,
                           int64_t trained_seq_len);

ModelSpec read_hf_spec(const Metadata& metadata);
ModelSpec read_gguf_spec(const TensorSource& source);
// Keys of config.json that are neither read, nor known to say nothing about the mathematics.
std::vector<std::string> unknown_hf_keys(const Metadata& metadata);
// Keys of the architecture that neither change what minfer computes nor are known not to.
std::vector<std::string> unknown_gguf_keys(const Metadata& metadata, const ModelSpec& spec);

}  // namespace minfer
